"""What a tensor of a rank is to the specification, told by its values."""

from __future__ import annotations

from fractions import Fraction

from .mistakes import standings, step, value


def test_a_local_sum_is_a_partial_sum() -> None:
    plan = step("missing")
    known, name = standings(plan), value(step("missing"), "reduce")
    (found,) = [s for s in known.of(0, name) if s.axes]
    assert (found.coef, found.axes) == (1, ("dp",))
    assert found.spec == next(op.out for op in plan.specification.ops if op.name == "reduce")
    assert known.settled(0, name) and not known.lost(0, name)


def test_a_sum_that_counts_double_is_a_multiple() -> None:
    plan = step("twice")
    doubled = value(plan, "multiply")
    assert [s.coef for s in standings(plan).of(0, doubled)] == [Fraction(2)]
    op = next(o for o in plan.classes[0].program.ops if o.out == doubled)
    assert list(standings(plan).factors([("c0", op)])) == [Fraction(2)]


def test_what_the_specification_never_computes_is_lost() -> None:
    plan = step("swapped")
    assert not standings(plan).lost(0, value(plan, "all_reduce"))
    known = standings(step("missing"))
    assert known.lost(0, value(step("missing"), "subtract")), "half of the sum minus the whole bias"


def test_partial_sums_of_several_ops_have_common_axes() -> None:
    plan = step("missing")
    known, program = standings(plan), plan.classes[0].program
    local = next(op for op in program.ops if op.name == "reduce")
    assert list(known.partial([("c0", local)])) == [(("dp",), Fraction(1))]
    whole = next(op for op in step().classes[0].program.ops if op.name == "all_reduce")
    assert list(standings(step()).partial([("c0", whole)])) == [], "what is whole is no partial sum"
    assert list(known.partial([])) == [] == list(known.factors([]))
