"""Mistakes that people make each have an edit that undoes them, and every edit gives a well-formed plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.checking import check_plan
from certificates.plan.placements import Placement, Replicate, Shard
from certificates.plan.plan import Plan
from orchestrator.evaluating.network import Work
from orchestrator.refuting.edits import Edit, numbered
from orchestrator.refuting.proposals import Proposals
from orchestrator.refuting.search import search
from orchestrator.refuting.sites import Sites
from orchestrator.refuting.standing import Standings
from orchestrator.refuting.trials import Trials

from ..plans import pair
from .test_diagnose import unreduced

MESH = {"dp": 2, "tp": 2}
Step = Callable[[ProgramBuilder, Value], Value]
ROWS: Mapping[str, Placement] = {"dp": Shard(0)}
WHOLE: Mapping[str, Placement] = {}


def trials(plan: Plan) -> Trials:
    """On the inputs of a witness, as a diagnosis has them."""
    witness = search(plan)
    assert witness is not None
    return Trials.of(plan, witness.inputs, Work())


def proposed(plan: Plan, found: Trials) -> list[Edit]:
    """Edits for what is wrong, in the order in which they are made."""
    scenario = found.scenarios[0]
    sites = Sites(plan, found.wrong())
    return list(Proposals(sites, Standings(plan, scenario, scenario.expand(plan))).all())


def local(right: Step, wrong: Step, dtype: str = "f32[8,2]") -> Plan:
    """Every rank has all of the input."""

    def write(b: ProgramBuilder, step: Step) -> None:
        b.output("y", step(b, b.input("x", dtype)))

    return pair(
        MESH, lambda b: write(b, right), lambda b: write(b, wrong), {"x": WHOLE}, {"y": WHOLE},
        {"x": (0, 9)} if dtype.startswith("i") else None,
    )  # fmt: skip


def sharded(right: Step, wrong: Step, output: Mapping[str, Placement]) -> Plan:
    """Rows over dp."""

    def write(b: ProgramBuilder, rows: int, step: Step) -> None:
        b.output("y", step(b, b.input("x", f"f32[{rows},2]")))

    return pair(MESH, lambda b: write(b, 8, right), lambda b: write(b, 4, wrong), {"x": ROWS}, {"y": output})


def window(start: int | str) -> Step:
    """Half of the rows: of the rank, or from a number on."""

    def step(b: ProgramBuilder, x: Value) -> Value:
        at = b.axis_index(start).scale(4) if isinstance(start, str) else start
        return b.slice(x, [at, 0], [4, 2])

    return step


def halves(b: ProgramBuilder, x: Value) -> tuple[Value, Value]:
    return x[:4], x[4:] * 3


MISTAKES: dict[str, tuple[Plan, str, str]] = {
    "a sum over the wrong ranks": (
        sharded(lambda b, x: x.sum(), lambda b, x: b.all_reduce(x.sum(), "tp"), WHOLE),
        "group",
        "all_reduce over dp instead of tp",
    ),
    "a sum that is missing": (
        sharded(lambda b, x: b.tanh(x.sum()), lambda b, x: b.tanh(x.sum()), WHOLE),
        "insert",
        "add an all_reduce over dp",
    ),
    "a sum too many": (
        sharded(lambda b, x: b.tanh(x), lambda b, x: b.all_reduce(b.tanh(x), "tp"), ROWS),
        "drop",
        "remove the all_reduce over tp",
    ),
    "a maximum for a sum": (
        sharded(lambda b, x: x.sum(), lambda b, x: b.all_reduce(x.sum(), "dp", "max"), WHOLE),
        "change",
        "reduce with add",
    ),
    "a sum where the mean is meant": (
        local(lambda b, x: b.tanh(x), lambda b, x: b.tanh(x) * 2),
        "scale",
        "divide by 2",
    ),
    "an op too many": (
        local(lambda b, x: b.tanh(x), lambda b, x: b.tanh(b.tanh(x))),
        "drop",
        "remove the tanh",
    ),
    "a difference turned round": (
        local(lambda b, x: b.tanh(x) - x, lambda b, x: x - b.tanh(x)),
        "swap",
        "swap the operands of subtract",
    ),
    "plus for minus": (
        local(lambda b, x: b.tanh(x) - x, lambda b, x: b.tanh(x) + x),
        "change",
        "subtract instead of add",
    ),
    "the wrong branch": (
        local(
            lambda b, x: b.select(b.compare(x, 0, "GT"), x, b.tanh(x)),
            lambda b, x: b.select(b.compare(x, 0, "GT"), b.tanh(x), x),
        ),
        "swap",
        "swap the branches",
    ),
    "the wrong comparison": (
        local(
            lambda b, n: b.convert(b.compare(n, 4, "GT"), "f32"),
            lambda b, n: b.convert(b.compare(n, 4, "GE"), "f32"),
            "i64[8]",
        ),
        "change",
        "compare with GT instead of GE",
    ),
    "another number": (
        local(lambda b, x: b.tanh(x * 6), lambda b, x: b.tanh(x * 7)),
        "literal",
        "6 instead of 7 in the multiply",
    ),
    "parts in the wrong order": (
        local(lambda b, x: b.concatenate(halves(b, x), 0), lambda b, x: b.concatenate(halves(b, x)[::-1], 0)),
        "swap",
        "concatenate in the order 1, 0",
    ),
    "rows of another rank": (
        pair(
            MESH,
            lambda b: b.output("y", b.tanh(b.input("x", "f32[8,2]"))),
            lambda b: b.output("y", b.tanh(window(4)(b, b.input("x", "f32[8,2]")))),
            {"x": WHOLE},
            {"y": ROWS},
        ),
        "change",
        "start at",
    ),
    "padding at the other end": (
        local(lambda b, x: b.pad(b.tanh(x), [1, 0], [0, 0]), lambda b, x: b.pad(b.tanh(x), [0, 0], [1, 0])),
        "change",
        "pad at the other end",
    ),
    "another operand": (
        local(lambda b, x: b.tanh(x) + b.logistic(b.tanh(x)), lambda b, x: b.tanh(x) + b.logistic(x)),
        "operand",
        "in the logistic",
    ),
    "a term that is missing": (
        local(lambda b, x: b.tanh(b.exponential(x)) + x, lambda b, x: b.tanh(b.exponential(x))),
        "add",
        "add x",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_an_edit_that_undoes_it(mistake: str) -> None:
    plan, kind, what = MISTAKES[mistake]
    found = trials(plan)
    wrong = found.wrong()
    assert wrong == [0]
    alike = [e for e in proposed(plan, found) if e.kind == kind and what in e.what]
    assert any(found.repairs(e.apply(plan), wrong) for e in alike), [e.what for e in proposed(plan, found)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_edit_gives_a_plan_that_can_be_written(mistake: str) -> None:
    plan, *_ = MISTAKES[mistake]
    edits = proposed(plan, trials(plan))
    assert edits
    for edit in edits:
        made = edit.apply(plan)
        assert made != plan, edit.what
        check_plan(numbered(made))


def test_a_sum_over_all_ranks_is_proposed_though_no_collective_of_the_plan_has_them() -> None:
    """Groups that the plan lacks come with the edit."""
    plan, *_ = MISTAKES["a sum over the wrong ranks"]
    wide = [e for e in proposed(plan, trials(plan)) if e.what == "all_reduce over dp/tp instead of tp"]
    assert len(wide) == 1 and [g.axes for g in wide[0].groups.values()] == [("dp", "tp")]


def test_what_is_missing_after_a_line_is_said_to_be_after_it(mlp: Plan) -> None:
    plan, partial = unreduced(mlp)
    inserted = [e for e in proposed(plan, trials(plan)) if e.kind == "insert"]
    assert inserted and all(e.after for e in inserted)
    assert ("c0", partial) in {place for e in inserted for place in e.ops}


def test_a_repair_of_one_line_is_one_edit_of_all_its_ops() -> None:
    """Two weights of one loop: the mistake is made once."""

    def write(b: ProgramBuilder, rows: int, group: str | None) -> None:
        for name in ("u", "v"):
            total = b.input(name, f"f32[{rows},2]").sum()
            b.output(name + "2", b.all_reduce(total, group) if group else total)

    names: Mapping[str, Mapping[str, Placement]] = {n: ROWS for n in ("u", "v")}
    outputs: Mapping[str, Mapping[str, Placement]] = {n + "2": {"dp": Replicate()} for n in ("u", "v")}
    plan = pair(MESH, lambda b: write(b, 8, None), lambda b: write(b, 4, "tp"), names, outputs)
    found = trials(plan)
    wrong = found.wrong()
    repairs = [e for e in proposed(plan, found) if found.repairs(e.apply(plan), wrong)]
    assert any(len(e.ops) == 2 and e.what == "all_reduce over dp instead of tp" for e in repairs)


def test_edits_are_made_in_the_same_order_every_time(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    first, second = proposed(plan, trials(plan)), proposed(plan, trials(plan))
    assert [(e.what, e.ops) for e in first] == [(e.what, e.ops) for e in second]


def test_other_operands_are_proposed_last(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    late = [e.kind in ("operand", "add") for e in proposed(plan, trials(plan))]
    assert late == sorted(late) and any(late)


def test_ops_of_one_line_may_have_more_operands_than_others() -> None:
    """A literal is the third operand of one concatenation; the other one of the line has two."""

    def stacked(value: int) -> Step:
        def step(b: ProgramBuilder, x: Value) -> Value:
            row = b.constant(value, "f32[1,2]")
            return b.concatenate([b.concatenate([x, row, row], 0), row], 0)

        return step

    plan = local(stacked(0), stacked(1))
    found = [edit.what for edit in proposed(plan, trials(plan))]
    assert any(what.startswith("0 instead of 1 in the concatenate") for what in found)


@pytest.mark.parametrize(("value", "fractions"), [("6", False), ("1", True), ("3/4", True)])
def test_what_counts_stays_whole(value: str, fractions: bool) -> None:
    """No line is told to divide by 8/3 instead of 8."""
    plan = local(lambda _, x: x / 5, lambda b, x: x / b.constant(value, str(x.type)))
    found = [e.what.partition(" ")[0] for e in proposed(plan, trials(plan)) if e.kind == "literal"]
    assert found and any("/" in number for number in found) is fractions
