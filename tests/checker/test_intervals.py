"""Interval arithmetic: every result encloses the exact value, tightly, and never guesses."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.intervals import HIGH, LOW, NOWHERE, Number, Reals

settings.register_profile("checker", deadline=None)  # a busy machine is no failure
settings.load_profile("checker")
R, FINE = Reals(), Reals(512)
rationals = st.fractions(min_value=-50, max_value=50, max_denominator=997)
positives = st.fractions(min_value=Fraction(1, 997), max_value=50, max_denominator=997)


def enclosing(low: Fraction, high: Fraction) -> tuple[int, int]:
    """The tightest interval that holds both rationals."""
    return R.of(low)[0], R.of(high)[1]


def holds(x: Number, value: Fraction) -> bool:
    ends = R.ends(x)
    return ends is not None and ends[0] <= value <= ends[1]


@given(rationals, rationals, rationals, rationals)
def test_ring_operations_enclose_all_members(a: Fraction, b: Fraction, c: Fraction, d: Fraction) -> None:
    x, y = enclosing(*sorted((a, b))), enclosing(*sorted((c, d)))
    for u, v in itertools.product((a, b, (a + b) / 2), (c, d, (c + d) / 2)):
        assert holds(R.add(x, y), u + v)
        assert holds(R.mul(x, y), u * v)
        assert holds(R.neg(x), -u)
        assert holds(R.abs(x), abs(u))
        assert holds(R.max(x, y), max(u, v))
        assert holds(R.min(x, y), min(u, v))
        assert holds(R.weighted([(3, x, y), (2, x, x)]), 3 * u * v + 2 * u * u)


@given(rationals, positives)
def test_division(a: Fraction, b: Fraction) -> None:
    assert holds(R.recip(R.of(b)), 1 / b)
    assert holds(R.recip(R.of(-b)), -1 / b)
    assert R.recip(enclosing(-b, b)) is None, "an interval around zero has no known reciprocal"
    assert R.recip(R.zero) == NOWHERE


@given(rationals, st.integers(-6, 6))
def test_integer_powers_are_exact_rationals(a: Fraction, n: int) -> None:
    if a == 0 and n <= 0:
        assert R.power(R.of(a), R.of(n)) in (None, NOWHERE)
    else:
        assert holds(R.power(R.of(a), R.of(n)), a**n)


@given(rationals, rationals, st.integers(1, 5))
def test_powers_of_intervals(a: Fraction, b: Fraction, n: int) -> None:
    low, high = sorted((a, b))
    for u in (low, high, (low + high) / 2):
        assert holds(R.power(enclosing(low, high), R.of(n)), u**n)


@settings(max_examples=60)
@given(rationals)
def test_elementary_functions_are_tight_and_agree_with_twice_the_precision(a: Fraction) -> None:
    for name in ("exp", "sin", "cos", "tanh", "logistic"):
        coarse, fine = R.ends(getattr(R, name)(R.of(a))), FINE.ends(getattr(FINE, name)(FINE.of(a)))
        assert coarse is not None and fine is not None
        assert coarse[0] <= fine[1] and fine[0] <= coarse[1], name
        assert coarse[1] - coarse[0] <= Fraction(1, 1 << 150) * max(1, abs(coarse[1])), name
        want = 1 / (1 + math.exp(-a)) if name == "logistic" else getattr(math, name)(float(a))
        assert float(coarse[0]) == pytest.approx(want, rel=1e-12, abs=1e-12), name


@settings(max_examples=60)
@given(positives)
def test_roots_and_logarithms(a: Fraction) -> None:
    root, log = R.ends(R.sqrt(R.of(a))), R.ends(R.log(R.of(a)))
    assert root is not None and log is not None
    assert root[0] ** 2 <= a <= root[1] ** 2
    assert root[1] - root[0] < Fraction(1, 1 << 200)
    assert float(log[0]) == pytest.approx(math.log(a), abs=1e-12)
    back = R.exp(R.log(R.of(a)))
    assert holds(back, a), "exp and log are computed apart and must meet"


@given(rationals, rationals)
def test_monotone_functions_enclose_intervals(a: Fraction, b: Fraction) -> None:
    low, high = sorted((a, b))
    for name in ("exp", "tanh", "logistic", "sin", "cos"):
        whole = R.ends(getattr(R, name)(enclosing(low, high)))
        middle = R.ends(getattr(R, name)(R.of((low + high) / 2)))
        assert whole is not None and middle is not None
        assert whole[0] <= middle[1] and middle[0] <= whole[1]
        assert whole[0] <= middle[0] and middle[1] <= whole[1], name


def test_outside_the_domain_there_is_no_value() -> None:
    two, minus = R.of(2), R.of(-2)
    assert R.sqrt(minus) == R.log(minus) == R.rsqrt(minus) == R.log(R.zero) == R.rsqrt(R.zero) == NOWHERE
    around = (minus[0], two[1])
    assert R.sqrt(around) is None and R.log(around) is None
    for op in (R.add, R.mul, R.max, R.min, R.power):
        assert op(NOWHERE, two) == op(two, NOWHERE) == NOWHERE
        assert op(None, two) is op(NOWHERE, None) is None
    assert R.weighted([(1, two, two), (1, NOWHERE, two)]) == NOWHERE
    assert R.weighted([(1, NOWHERE, two), (1, None, two)]) is None
    assert R.exp(R.of(100_000)) is None, "too large to be computed, so not known"


def test_infinities_of_masks() -> None:
    two = R.of(2)
    assert R.exp(LOW) == R.zero and R.exp(HIGH) == HIGH
    assert R.add(LOW, two) == LOW and R.add(LOW, HIGH) == NOWHERE
    assert R.max(LOW, two) == two and R.min(HIGH, two) == two and R.max(HIGH, two) == HIGH
    assert R.mul(LOW, R.of(-3)) == HIGH and R.mul(LOW, R.zero) == NOWHERE
    assert R.mul(LOW, (-1, 1)) is None
    assert R.weighted([(1, LOW, two), (5, two, two)]) == LOW
    assert R.recip(HIGH) == R.zero and R.logistic(LOW) == R.zero
    assert R.ends(LOW) is None


def test_comparisons_never_guess() -> None:
    one, two = R.of(1), R.of(2)
    third = R.of(Fraction(1, 3))
    assert R.less(one, two) is True and R.less(two, one) is False and R.less(one, one) is False
    assert R.less((one[0], two[1]), (one[0] + 5, two[1])) is None
    assert R.equal(one, one) is True and R.equal(one, two) is False
    assert R.equal(third, third) is None, "an interval that is no point may hold different numbers"
    assert R.less(LOW, one) is True and R.less(one, LOW) is False and R.equal(LOW, LOW) is True
    assert R.less(NOWHERE, one) is None and R.equal(None, one) is None
