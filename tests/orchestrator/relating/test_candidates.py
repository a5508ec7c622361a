"""Ops of the specification that read the same elements, at the index and with the factor that follow."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.cells import Cell
from orchestrator.relating.candidates import Candidate, Operand, combine, same_attributes
from orchestrator.relating.ledger import Unrelated
from orchestrator.relating.matching import Matcher

from .kit import Formula, facts, formulas, related

HALF, NONE = Fraction(1, 2), None


@pytest.mark.parametrize(
    ("op", "factors", "result"),
    [
        ("add", [2, 2], 2),
        ("add", [2, 3], None),
        ("add", [2, NONE], 2),  # the other one is zero
        ("multiply", [2, 3], 6),
        ("dot_general", [2, HALF], 1),
        ("divide", [2, HALF], 4),
        ("divide", [2, NONE], None),
        ("maximum", [2, 2], 2),
        ("maximum", [-2, -2], None),  # the largest of the negatives is the smallest
        ("maximum", [2, NONE], None),
        ("reduce", [3], 3),
        ("select", [1, 2, 2], 2),
        ("select", [2, 1, 1], None),  # a scaled truth value is none
        ("select", [NONE, 2, 3], None),
        ("exponential", [1], 1),
        ("exponential", [2], None),
        ("compare", [2, 2], None),
    ],
)
def test_factors_of_operands_make_that_of_the_result(
    op: str, factors: list[Fraction | None], result: Fraction | None
) -> None:
    """``2 a + 2 b`` is twice ``a + b``; ``exp(2 a)`` is no multiple of ``exp(a)``."""
    assert combine(op, [None if f is None else Fraction(f) for f in factors]) == result


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


def test_attributes_that_change_the_meaning_must_agree() -> None:
    made, _ = matched(
        lambda b, x, y: b.reduce(x, (0,), "max"),
        lambda b, x, y: b.convert(b.compare(x, y, "LT"), "f32") + b.convert(b.compare(x, y, "LE"), "f32"),
    )
    less, _, at_most, *_ = made.classes[0].program.ops
    (largest,) = made.specification.ops
    assert same_attributes(less, less) and not same_attributes(less, at_most)
    assert not same_attributes(largest, less)


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
