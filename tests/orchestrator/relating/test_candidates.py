"""Ops of the specification that read the same elements, at the index and with the factor that follow."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.cells import Cell
from orchestrator.relating.candidates import Candidate, Operand
from orchestrator.relating.ledger import Unrelated
from orchestrator.relating.matching import Matcher

from ..plans import pair, unproved
from .kit import Formula, facts, formulas, related

GIVEN = {"x": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)}), "y": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)})}


def matched(spec: Formula, plan: Formula) -> tuple[Plan, Matcher]:
    made = formulas({"dp": 2}, spec, plan, GIVEN)
    return made, related(made)[1]


def found(spec: Formula, plan: Formula) -> list[Candidate]:
    """The candidates of the last op of a rank, over its whole index."""
    made, matcher = matched(spec, plan)
    ref = f"c0:{made.classes[0].program.ops[-1].out}"
    whole = matcher.k.full_index(ref)
    pattern = matcher.candidates.access(ref)
    assert pattern is not None
    places = [
        (v, [Affine.symbol("dp"), *(Affine.symbol(n) for n in names)])
        for v, names in zip(matcher.model.operands(ref), pattern.operands, strict=True)
    ]
    operands = [matcher.candidates.operand(v, at, whole.ranges) for v, at in places]
    return matcher.candidates.find(ref, pattern, operands, Cell.whole(whole.ranges))


def test_a_maximum_is_the_one_without_a_factor() -> None:
    """Distillation takes a softmax at a temperature and one without: no stage takes the factor out."""

    def halves(b: ProgramBuilder, x: Value, y: Value) -> Value:
        half = b.constant("1/2", x.type)
        return b.exponential(b.maximum(x * half, y * half)) + b.exponential(b.maximum(x, y))

    candidates = found(halves, lambda b, x, y: b.maximum(x, y))
    assert [c.coef for c in candidates] == [1, 2]


def test_a_rank_is_related_to_its_rows() -> None:
    (candidate,) = found(lambda b, x, y: x * y, lambda b, x, y: y * x)
    assert candidate.spec == "s:%0" and candidate.coef == 1
    assert [str(f) for f in candidate.out] == ["4*dp + o0", "o1"]
    assert {p.spec.ref for p in candidate.pairs} <= {"s:x", "s:y"}


def test_every_op_that_reads_the_same_is_a_candidate() -> None:
    """Which one is meant, the proof decides."""
    both = found(lambda b, x, y: (x * y) + (x * y), lambda b, x, y: x * y)
    assert len(both) >= 1 and {c.spec for c in both} <= {"s:%0", "s:%1"}


def test_scaled_operands_scale_the_result_or_rule_it_out() -> None:
    (candidate,) = found(lambda b, x, y: x + y, lambda b, x, y: x * 2 + y * 2)
    assert candidate.coef == 2
    assert found(lambda b, x, y: x + y, lambda b, x, y: x * 2 + y) == []
    assert found(lambda b, x, y: b.tanh(x), lambda b, x, y: b.tanh(x * 2)) == []


def test_an_operand_is_whole_a_summand_or_unrelated() -> None:
    _, matcher = matched(
        lambda b, x, y: b.tanh(x).sum(0), lambda b, x, y: b.tanh(b.all_reduce(b.tanh(x).sum(0), "dp"))
    )
    at, ranges = [Affine.symbol("dp"), Affine.symbol("o0")], {"dp": (0, 2), "o0": (0, 3)}
    share: Operand = matcher.candidates.operand("c0:%1", at, ranges)
    assert share.partial is not None and share.partial.of == ("c0:%1",)
    assert (share.reading.target, share.coef) == ("s:%1", 1)
    whole = matcher.candidates.operand("c0:%2", at, ranges)
    assert whole.partial is None and whole.reading.target == "s:%1"
    with pytest.raises(Unrelated):
        matcher.candidates.operand("c0:%3", at, ranges)


def test_the_largest_of_a_column_is_not_that_of_a_row() -> None:
    """Both read the same tensor; that of a row would be another result for each element of the column."""
    rows = {"x": ("f32[8,3]", "f32[8,3]", {}), "y": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)})}

    def spec(b: ProgramBuilder, x: Value, y: Value) -> Value:
        scores = x @ y.T
        both = b.tanh(b.reduce(scores, [1], "max")), b.reduce(scores.T, [1], "max")
        b.output("rows", both[0])
        return both[1].sum(0)

    def plan(b: ProgramBuilder, x: Value, y: Value) -> Value:
        return b.all_reduce(b.reduce(y @ x.T, [1], "max").sum(0), "dp")

    made = formulas({"dp": 2}, spec, plan, rows)
    knowledge, _ = related(made)
    largest = next(f"c0:{op.out}" for op in made.classes[0].program.ops if op.attrs.get("kind") == "max")
    (fact,) = facts(knowledge, largest)
    _, columns = (op.out for op in made.specification.ops if op.attrs.get("kind") == "max")
    assert fact.rhs == f"s:{columns}"


@pytest.mark.parametrize(("factor", "proved"), [(2, True), (3, False)])
def test_a_part_that_is_a_multiple_of_another_is_read_where_the_sum_has_it(factor: int, proved: bool) -> None:
    """The second part squared is 4 times the first squared; with 1 added it is no multiple, but itself."""

    def write(b: ProgramBuilder, rows: int, factor: int) -> None:
        y = b.exponential(b.input("x", f"f32[{rows},3]"))
        both = b.concatenate([b.reshape(v, (rows, 1, 3)) for v in (y, y * factor)], 1)
        b.output("y", b.tanh(both * both + 1))

    plan = pair(
        {"dp": 2},
        lambda b: write(b, 8, 2),
        lambda b: write(b, 4, factor),
        {"x": {"dp": Shard(0)}},
        {"y": {"dp": Shard(0)}},
    )
    assert (unproved(plan) == []) is proved


@pytest.mark.parametrize(("shift", "proved"), [(0, True), (1, False)])
def test_what_is_alike_in_all_parts_is_read_in_each(shift: int, proved: bool) -> None:
    """A factor that is alike in both parts is known by the first; the other factor says which part it is."""

    def write(b: ProgramBuilder, rows: int, shift: int) -> None:
        x, other = b.input("x", f"f32[{rows},3]"), b.input("z", f"f32[{rows},3,3]")
        alike = b.exponential(b.broadcast(x, (rows, 2, 3), (0, 2)) * 2)
        b.output("y", b.tanh(alike * b.tanh(b.slice(other, [0, shift, 0], [rows, 2, 3]))))

    rows = {"dp": Shard(0)}
    plan = pair(
        {"dp": 2}, lambda b: write(b, 8, 0), lambda b: write(b, 4, shift), {"x": rows, "z": rows}, {"y": rows}
    )
    assert (unproved(plan) == []) is proved
