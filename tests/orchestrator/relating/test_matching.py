"""Arithmetic finds its counterpart, in any order of operands and brackets; another formula finds none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from orchestrator.relating.knowledge import Knowledge

from .kit import Formula, facts, formulas, last, related

ROWS = {"x": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)}), "y": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)})}
DP = {"dp": 2}


def elementwise(spec: Formula, plan: Formula) -> Plan:
    return formulas(DP, spec, plan, ROWS)


SAME: dict[str, tuple[Formula, Formula]] = {
    "sum the other way round": (lambda b, x, y: x + y, lambda b, x, y: y + x),
    "brackets": (lambda b, x, y: (x + y) + x * y, lambda b, x, y: x + (y + y * x)),
    "distributed": (lambda b, x, y: (x + y) * x, lambda b, x, y: x * x + y * x),
    "a factor outside": (lambda b, x, y: b.tanh(x * y) * 3, lambda b, x, y: b.tanh(y * x) * 3),
    "one reduction or two": (lambda b, x, y: (x * y).sum(1), lambda b, x, y: (y * x).sum(1)),
    "moved before": (lambda b, x, y: b.tanh(x.T), lambda b, x, y: b.tanh(x).T),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_formulas_are_related_row_by_row(name: str) -> None:
    """Each fact holds on numbers, and is about the rows of the rank."""
    plan = elementwise(*SAME[name])
    knowledge, _ = related(plan)
    ref = last(plan)
    while knowledge.moves(ref):  # what is moved or scaled is read, not related
        ref = knowledge.model.operands(ref)[0]
    assert facts(knowledge, ref)


OTHER: dict[str, tuple[Formula, Formula]] = {
    "another function": (lambda b, x, y: b.tanh(x), lambda b, x, y: b.logistic(x)),
    "another operand": (lambda b, x, y: b.tanh(x) * x, lambda b, x, y: b.tanh(x) * y),
    "exchanged": (lambda b, x, y: x - y, lambda b, x, y: y * 2 - x),
    "divided the wrong way": (lambda b, x, y: x / y, lambda b, x, y: y / x),
    "another comparison": (
        lambda b, x, y: b.select(b.compare(x, y, "LT"), x, y),
        lambda b, x, y: b.select(b.compare(x, y, "LE"), x, y),
    ),
    "maximum for sum": (lambda b, x, y: (x * y).sum(1), lambda b, x, y: b.reduce(x * y, (1,), "max")),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_formula_has_no_counterpart(name: str) -> None:
    plan = elementwise(*OTHER[name])
    knowledge, _ = related(plan)
    assert facts(knowledge, last(plan)) == []


def test_a_subtraction_the_other_way_round_is_the_negative() -> None:
    plan = elementwise(lambda b, x, y: x - y, lambda b, x, y: y - x)
    (fact,) = facts(related(plan)[0], last(plan))
    assert fact.coef == -1


def test_sums_in_steps_are_one_sum() -> None:
    """Rows first and columns then, of what the specification sums at once."""
    plan = formulas(
        DP,
        lambda b, x: b.tanh(x).sum(0, 1),
        lambda b, x: b.tanh(x).sum(1).sum(0),
        {"x": ("f32[8,3]", "f32[8,3]", {"dp": Replicate()})},
    )
    (fact,) = facts(related(plan)[0], last(plan))
    assert fact.rhs == "s:%1"


def test_an_op_on_tensors_put_together_is_related_as_a_whole() -> None:
    """The plan joins halves that the specification never cut."""

    def joined(b: object, x: object, y: object) -> object:
        whole = b.concatenate([x[:2], x[2:]], 0)  # type: ignore[attr-defined, index]
        return b.tanh(whole) * y  # type: ignore[attr-defined]

    plan = elementwise(lambda b, x, y: b.tanh(x) * y, joined)  # type: ignore[arg-type]
    (fact,) = facts(related(plan)[0], last(plan))
    assert fact.rhs == "s:%1"


def rows_of(knowledge: Knowledge, ref: str) -> set[int]:
    """The rows of a rank's tensor of which something is known."""
    found = facts(knowledge, ref)
    return {i for f in found for i in range(f.lhs_index[1].interval(f.ranges)[1] + 1)}


def test_rows_of_padding_have_no_counterpart_and_the_others_do() -> None:
    given = {"x": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)})}
    plan = formulas(DP, lambda b, x: b.tanh(x), lambda b, x: b.tanh(b.pad(x, (0, 0), (1, 0))), given)
    knowledge, matcher = related(plan)
    assert rows_of(knowledge, last(plan)) == {0, 1, 2, 3}
    assert not matcher.relate(last(plan)), "not all of it"


def test_rows_of_which_nothing_is_known_stay_open() -> None:
    """The input has a row that no relation speaks of; what is made of the others is related in part."""
    given = {"x": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)})}
    plan = formulas(DP, lambda b, x: b.tanh(x), lambda b, x: b.tanh(x), given)
    (relation,) = plan.inputs
    (piece,) = relation.pieces
    short = replace(relation, pieces=(replace(piece, sizes=(3, 3)),))
    plan = replace(plan, inputs=(short,))
    knowledge, matcher = related(plan)
    assert facts(knowledge, last(plan)) == []
    assert matcher.relate_in_part(last(plan))
    assert rows_of(knowledge, last(plan)) == {0, 1, 2}


def test_equal_ops_of_the_specification_are_one() -> None:
    """The step computes one thing twice: the plan's tensor is related to the first of both."""
    plan = elementwise(lambda b, x, y: b.tanh(x) * b.tanh(x), lambda b, x, y: b.tanh(x) * b.tanh(x))
    knowledge, _ = related(plan)
    assert [f.rhs for f in facts(knowledge, "s:%1")] == ["s:%0"]
    assert {f.rhs for f in facts(knowledge, last(plan))} == {"s:%2"}
