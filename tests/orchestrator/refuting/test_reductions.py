"""Edits of reductions: what people forget, put in a wrong place, or imitate on a single rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Placement, Replicate, Shard
from certificates.plan.plan import Plan
from orchestrator.emit import provable
from orchestrator.evaluating.network import Work
from orchestrator.refuting.edits import Edit, numbered
from orchestrator.refuting.proposals import Proposals
from orchestrator.refuting.search import search
from orchestrator.refuting.sites import Sites
from orchestrator.refuting.standing import Standings
from orchestrator.refuting.trials import Trials

from ..plans import pair

TP = {"tp": 2}
COLUMNS, ROWS, WHOLE = {"tp": Shard(1)}, {"tp": Shard(0)}, {"tp": Replicate()}
End = Callable[[ProgramBuilder, Value, Value], Value]


def product(spec: End, plan: End, out: dict[str, Placement], bias: str = "f32[4,4]") -> Plan:
    """A product whose contracted dimension lies on two ranks, then something with a tensor that both hold."""

    def write(b: ProgramBuilder, inner: int, end: End) -> None:
        y = b.input("x", f"f32[4,{inner}]") @ b.input("w", f"f32[{inner},4]")
        b.output("y", end(b, y, b.input("c", bias)))

    inputs = {"x": COLUMNS, "w": ROWS, "c": WHOLE}
    return pair(TP, lambda b: write(b, 6, spec), lambda b: write(b, 3, plan), inputs, {"y": out})


def repairs(plan: Plan) -> list[Edit]:
    """Edits after which the plan is right on sampled inputs."""
    witness = search(plan)
    assert witness is not None
    trials = Trials.of(plan, witness.inputs, Work())
    wrong = trials.wrong()
    scenario = trials.scenarios[0]
    every = Proposals(Sites(plan, wrong), Standings(plan, scenario, scenario.expand(plan))).all()
    return [e for e in every if trials.repairs(e.apply(plan), wrong)]


def added(b: ProgramBuilder, y: Value, c: Value) -> Value:
    return y + c


MISTAKES: dict[str, tuple[Plan, str]] = {
    "a bias is added on every rank": (
        product(added, lambda b, y, c: b.all_reduce(y + c, "tp"), WHOLE),
        "sum operand 0 only over the ranks, then add the other",
    ),
    "a bias is added before rows are scattered": (
        product(added, lambda b, y, c: b.reduce_scatter(y + c, "tp", 0), ROWS),
        "sum operand 0 only over the ranks, then add the other",
    ),
    "times the ranks in place of their sum": (
        product(added, lambda b, y, c: y * 2 + c, WHOLE),
        "all_reduce over tp instead of the multiply",
    ),
    "the own rows in place of the sum's": (
        product(
            lambda b, y, c: y, lambda b, y, c: b.slice(y, [b.axis_index("tp").scale(2), 0], [2, 4]), ROWS
        ),
        "reduce_scatter over tp instead of the slice",
    ),
    "the own rows, times the ranks": (
        product(
            lambda b, y, c: y / 2, lambda b, y, c: b.slice(y, [b.axis_index("tp").scale(2), 0], [2, 4]), ROWS
        ),
        "reduce_scatter over tp instead of the slice, and divide by 2",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_undone_and_the_edited_plan_is_proved(name: str) -> None:
    plan, what = MISTAKES[name]
    found = next(e for e in repairs(plan) if e.what == what)
    assert provable(numbered(found.apply(plan)))


def test_a_part_that_is_added_after_the_sum_joins_it() -> None:
    def write(b: ProgramBuilder, inner: int, joined: bool) -> None:
        x, w, v = (
            b.input("x", f"f32[4,{inner}]"),
            b.input("w", f"f32[{inner},4]"),
            b.input("v", f"f32[{inner},4]"),
        )
        y = b.all_reduce(x @ w, "tp") if joined else x @ w
        b.output("y", y + x @ v)

    plan = pair(TP, lambda b: write(b, 6, False), lambda b: write(b, 3, True),
                {"x": COLUMNS, "w": ROWS, "v": ROWS}, {"y": WHOLE})  # fmt: skip
    found = next(e for e in repairs(plan) if e.what == "add before the sum over ranks, not after it")
    assert provable(numbered(found.apply(plan)))


def test_copies_of_the_own_piece_are_gathered_pieces() -> None:
    def spec(b: ProgramBuilder) -> None:
        b.output("y", b.tanh(b.input("x", "f32[8,3]")))

    def ranks(b: ProgramBuilder) -> None:
        h = b.tanh(b.input("x", "f32[4,3]"))
        b.output("y", b.concatenate([h, h], 0))

    plan = pair(TP, spec, ranks, {"x": ROWS}, {"y": WHOLE})
    assert "all_gather over tp instead of the concatenate" in [e.what for e in repairs(plan)]


def test_no_sum_is_added_before_one_over_the_same_ranks() -> None:
    """It would be a factor in disguise."""
    plan = product(lambda b, y, c: y, lambda b, y, c: b.all_reduce(y / 2, "tp"), WHOLE)
    assert repairs(plan) and not [e for e in repairs(plan) if e.kind in ("insert", "average", "instead")]
