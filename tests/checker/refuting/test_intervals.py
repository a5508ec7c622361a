"""Interval arithmetic: every result encloses the exact value, tightly, and never guesses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.language.ops import ROWS
from checker.refuting.intervals import HIGH, LOW, NOWHERE, Number, Reals

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
    for name in ("exp", "sin", "cos", "tanh", "logistic", "erf"):
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
    for name in ("exp", "tanh", "logistic", "sin", "cos", "erf"):
        whole = R.ends(getattr(R, name)(enclosing(low, high)))
        middle = R.ends(getattr(R, name)(R.of((low + high) / 2)))
        assert whole is not None and middle is not None
        assert whole[0] <= middle[1] and middle[0] <= whole[1]
        assert whole[0] <= middle[0] and middle[1] <= whole[1], name


@pytest.mark.parametrize("a", ["1/1000000", "1/7", "1", "3", "79/5", "16", "20", "1000000"])
def test_the_error_function_is_odd_bounded_and_its_complement_small(a: str) -> None:
    """Where it is 1 up to the precision, neither 1 nor anything beyond it may be missed or claimed."""
    x = Fraction(a)
    value, mirrored = R.ends(R.erf(R.of(x))), R.ends(R.erf(R.of(-x)))
    assert value is not None and mirrored == (-value[1], -value[0])
    assert 0 < value[0] < 1 and value[1] <= 1 and value[1] - value[0] < Fraction(1, 1 << 200)
    assert float(value[0]) == pytest.approx(math.erf(x), rel=1e-14)
    fine = FINE.ends(FINE.erf(FINE.of(x)))
    assert fine is not None and value[0] <= fine[0] and fine[1] <= value[1]


def test_every_elementwise_op_on_reals_has_an_enclosure() -> None:
    """One without would end the check of a stranger's witness in an error of the program."""
    real = {name for name, row in ROWS.items() if "Real" in row.sorts.split()}
    assert real == {*R.unary, *R.binary}


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
    assert R.erf(LOW) == R.neg(R.one) and R.erf(HIGH) == R.one
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


# Every operation on every kind of value, against extended reals ---------------------------------------------

COARSE = Reals(8)
INF = math.inf
Exact = Fraction | float
KINDS: list[Number] = [
    None, NOWHERE, LOW, HIGH,
    *(COARSE.of(Fraction(v)) for v in ("-3", "-1", "-1/2", "0", "1/2", "1", "2", "5/2")),
    *((COARSE.of(Fraction(a))[0], COARSE.of(Fraction(b))[1]) for a, b in (
        ("-3", "-1/2"), ("-2", "0"), ("-1", "2"), ("-2", "1"), ("0", "2"), ("1/2", "3"), ("2", "7/2"))),
]  # fmt: skip


def members(x: Number) -> list[Exact]:
    """Infinities, or ends, middle and zero of an interval."""
    if x in (LOW, HIGH):
        return [-INF if x == LOW else INF]
    a, b = (Fraction(v, COARSE.one[0]) for v in (x or ()))
    return sorted({a, b, (a + b) / 2} | ({Fraction(0)} if a < 0 < b else set()))


def product_of(a: Exact, b: Exact) -> Exact | None:
    if INF in (abs(a), abs(b)):
        return None if 0 in (a, b) else INF if (a > 0) == (b > 0) else -INF
    return a * b


def sum_of(a: Exact, b: Exact) -> Exact | None:
    return None if {a, b} == {INF, -INF} else a + b


def share_of(a: Exact) -> Exact | None:
    return None if a == 0 else Fraction(0) if abs(a) == INF else 1 / Fraction(a)


EXACT: dict[str, Callable[..., Exact | None]] = {
    "add": sum_of, "mul": product_of, "max": max, "min": min, "neg": lambda a: -a, "abs": abs,
    "recip": share_of, "subtract": lambda a, b: sum_of(a, -b),
    "divide": lambda a, b: None if share_of(b) is None else product_of(a, share_of(b) or Fraction(0)),
}  # fmt: skip
#: The value a function may be asked for and must not know: infinite and finite results side by side.
MIXED = {"divide": {(LOW, LOW), (HIGH, HIGH), (LOW, HIGH), (HIGH, LOW)}}


def operation(name: str) -> Callable[..., Number]:
    return COARSE.binary.get(name) or COARSE.unary.get(name) or getattr(COARSE, name)


@pytest.mark.parametrize("name", EXACT)
def test_every_kind_of_value(name: str) -> None:
    """No real number only where that is certain, infinities only where all members agree, intervals that hold
    all members and are as tight as the scale allows, and nothing known in between."""
    exact, arity = EXACT[name], 1 if name in ("neg", "abs", "recip") else 2
    for xs in itertools.product(KINDS, repeat=arity):
        found = operation(name)(*xs)
        if None in xs:
            assert found is None, (name, xs)
        elif NOWHERE in xs:
            unknown = name == "divide" and COARSE.recip(xs[1]) is None
            assert found == (None if unknown else NOWHERE), (name, xs)
        elif name != "divide" or xs[1] not in (LOW, HIGH):
            all_of = [exact(*v) for v in itertools.product(*map(members, xs))]
            kinds = {"none" if v is None else v if abs(v) == INF else "real" for v in all_of}
            want: Number = {"none": NOWHERE, INF: HIGH, -INF: LOW}.get(next(iter(kinds)))
            if kinds == {"real"}:
                reals = [Fraction(v) for v in all_of if v is not None]
                slack = Fraction(4 if name == "divide" else 1, 256)
                ends = COARSE.ends(found)
                assert ends is not None, (name, xs)
                assert min(reals) - slack <= ends[0] <= min(reals), (name, xs)
                assert max(reals) <= ends[1] <= max(reals) + slack, (name, xs)
            else:
                assert found == (want if len(kinds) == 1 else None), (name, xs, kinds)


def test_every_comparison() -> None:
    for x, y in itertools.product(KINDS, repeat=2):
        less, equal = COARSE.less(x, y), COARSE.equal(x, y)
        if None in (x, y) or NOWHERE in (x, y):
            assert less is equal is None, (x, y)
            continue
        (a, *_, b), (c, *_, d) = [members(v) * 2 for v in (x, y)]
        assert less == (True if b < c else False if a >= d else None), (x, y)
        assert equal == (False if b < c or d < a else True if a == b == c == d else None), (x, y)


ELEMENTARY: dict[str, tuple[Callable[[float], float], float]] = {
    "exp": (math.exp, -INF), "log": (math.log, 0), "sqrt": (math.sqrt, 0), "sin": (math.sin, -INF),
    "cos": (math.cos, -INF), "tanh": (math.tanh, -INF), "logistic": (lambda a: 1 / (1 + math.exp(-a)), -INF),
}  # fmt: skip
#: Of LOW and HIGH: exp(-inf) = 0 closes a row that is masked in part; what follows from it is known.
AT_INFINITY: dict[str, tuple[Number, Number]] = {
    "exp": (COARSE.zero, HIGH), "logistic": (COARSE.zero, COARSE.one), "tanh": (
        COARSE.neg(COARSE.one), COARSE.one),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_of_every_kind_of_value(name: str) -> None:
    function, least = ELEMENTARY[name]
    for x in KINDS:
        found = getattr(COARSE, name)(x)
        if not x:
            assert found == x, (name, x)
        elif len(x) == 1:
            assert found == AT_INFINITY.get(name, (None, None))[x == HIGH], (name, x)
        elif (x[1] <= 0 if name == "log" else x[1] < 0) and least == 0:
            assert found == NOWHERE, (name, x)
        elif (x[0] <= 0 if name == "log" else x[0] < 0) and least == 0:
            assert found is None, (name, x)
        else:
            ends, points = COARSE.ends(found), [function(float(v)) for v in members(x)]
            assert ends is not None, (name, x)
            assert float(ends[0]) <= min(points) + 1e-9 and max(points) <= float(ends[1]) + 1e-9, (name, x)
            # slopes are at most 1 where nothing better is known, else two units of the scale
            wide = float(Fraction(x[1] - x[0], 256)) if name in ("sin", "cos") else max(points) - min(points)
            assert float(ends[1] - ends[0]) <= wide + 0.05, (name, x)


def test_caps_of_elementary_functions() -> None:
    """The largest arguments that are computed; beyond them nothing is known, and nothing takes long."""
    one = COARSE.one[0]
    for name, most in (("exp", 1 << 11), ("sin", 1 << 20), ("cos", 1 << 20)):
        for sign in (1,) if name == "exp" else (1, -1):
            inside, outside = sign * (most * one - 1), sign * most * one
            assert getattr(COARSE, name)((inside, inside)) is not None, name
            assert getattr(COARSE, name)(tuple(sorted((inside, outside)))) is None, name
            assert getattr(COARSE, name)(tuple(sorted((0, outside)))) is None, name
    two = COARSE.of(2)
    assert COARSE.power(two, COARSE.of(1 << 12)) == (one << (1 << 12),) * 2, "by squaring, exactly"
    assert COARSE.power(two, COARSE.of((1 << 12) + 1)) is None, "by exp, which is too large"


E_BELOW = sum(Fraction(1, math.factorial(k)) for k in range(70))
E_ABOVE = E_BELOW + Fraction(1, math.factorial(69))


@settings(max_examples=40)
@given(st.integers(-6_000, 60), st.integers(0, 6_000))
def test_exp_is_total_downwards(twice: int, wide: int) -> None:
    """Against powers of rationals on both sides of e: y encloses exp(n / 2) if y**2 does e**n."""

    def most(n: int, small: Fraction, large: Fraction) -> Fraction:
        e = large if n >= 0 else small
        return Fraction((e.numerator << 400) // e.denominator + 1, 1 << 400) ** n

    ends = R.ends(R.exp(enclosing(Fraction(twice - wide, 2), Fraction(twice, 2))))
    assert ends is not None and 0 <= ends[0] <= ends[1] and ends[1] > 0
    assert ends[0] == 0 or ends[0] ** 2 * most(wide - twice, E_BELOW, E_ABOVE) <= 1
    assert ends[1] ** 2 * most(-twice, E_BELOW, E_ABOVE) >= 1
    assert ends[1] ** 2 <= 4 * max(most(twice, E_BELOW, E_ABOVE), Fraction(1, 1 << 510)), "nor far above it"


def test_exp_below_the_deepest_exponent() -> None:
    """A value there is above 0 and at most the deepest exponent's, which a fine scale tells from 0."""
    fine = Reals(4096)
    at, one = fine.of(-2048)[0], fine.exp(fine.zero)
    low, high = fine.exp((at, at)) or (0, 0)
    assert one is not None and 0 < low < high < low + 8
    for x in (at - 1, at << 80):
        assert fine.exp((x, x)) == fine.exp((x, at)) == (0, high)
        assert fine.exp((x, 0)) == (0, one[1])
    assert fine.exp((at, 0)) == (low, one[1])
    assert R.exp(R.of(-2049)) == R.exp(R.of(-(10**30))) == (0, 1)
    assert R.logistic(R.of(10**6)) == (R.one[0] - 1, R.one[0])
    assert R.tanh(R.of(-(10**6))) == (-R.one[0], 2 - R.one[0])


def test_powers_of_every_kind_of_value() -> None:
    for x, n in itertools.product(KINDS, range(-3, 4)):
        found = COARSE.power(x, COARSE.of(n))
        if not x or len(x) == 1:
            assert found == (x if not x else None), (x, n)
        elif n <= 0 and x[0] <= 0 <= x[1]:
            assert found == (NOWHERE if n and x == COARSE.zero else None), (x, n)
        else:
            ends, points = COARSE.ends(found), [Fraction(v) ** n for v in members(x)]
            assert ends is not None and ends[0] <= min(points) and max(points) <= ends[1], (x, n)
            assert ends[1] - ends[0] <= max(points) - min(points) + Fraction(1, 4), (x, n)
    half, third = COARSE.of(Fraction(1, 2)), COARSE.of(Fraction(1, 3))
    for exponent in (half, third, (0, COARSE.one[0])):
        assert COARSE.power(COARSE.of(-2), exponent) == NOWHERE, "no integer for sure, or not known to be one"
        ends = COARSE.ends(COARSE.power(COARSE.of(4), exponent))
        assert ends is not None and float(ends[0]) <= 4 ** float(Fraction(exponent[1], 256)) <= float(ends[1])
    for infinite in (LOW, HIGH):
        assert COARSE.power(COARSE.of(2), infinite) is COARSE.power(infinite, COARSE.of(2)) is None


LN_2 = Fraction(
    "0.693147180559945309417232121458176568075500134360255254120680"
    "009493393621969694715605863326996418687542001481020570685734"
)  # fmt: skip
HALF_PI = Fraction(
    "1.570796326794896619231321691639751442098584699687552910487472"
    "29615390820314310449931401741267105853399107404325664115332"
)  # fmt: skip


@pytest.mark.parametrize("bits", [8, 64, 256])
def test_constants(bits: int) -> None:
    """ln 2 and pi/2 to the last of the working bits, below the true value by less than a unit."""
    reals = Reals(bits)
    for mine, true in ((reals.ln2, LN_2), (reals.half_pi, HALF_PI)):
        assert math.floor(true * 2 ** (bits + 64)) - mine in (0, 1)


def test_the_error_of_a_point_is_a_few_units() -> None:
    """Each function at a point, against twice as many bits: a unit in the last place on either side."""
    for a in (Fraction(n, 7) for n in (-69, -35, -11, -1, 0, 1, 3, 7, 22, 50, 99)):
        for name in ("exp", "sin", "cos", "tanh", "logistic", *(("log", "sqrt") if a > 0 else ())):
            point = R.of(a)[0]
            low, high = getattr(R, name)((point, point))
            first, last = getattr(FINE, name)((point << 256, point << 256))
            assert low << 256 <= first <= last <= high << 256, (name, a)
            assert high - low <= max(8, high >> 200), (name, a)


def test_the_smallest_numbers() -> None:
    """One unit of the scale is a number like any other; so is one that may be zero or less."""
    unit, zero = (1, 1), (0, 0)
    assert R.zero == R.of(0) == zero and R.one == R.of(1)
    assert R.log(unit) is not None and R.log((0, 1)) is R.log((-5, 1)) is R.log((-5, 5)) is None
    assert R.log((-5, 0)) == R.log(zero) == NOWHERE
    assert R.sqrt(unit) == (1 << 128, 1 << 128) and R.sqrt(zero) == zero and R.sqrt((-1, 1)) is None
    assert R.sqrt((-2, -1)) == NOWHERE and R.sqrt((-1, 0)) is None
    assert R.recip((-1, 0)) is R.recip((0, 1)) is R.recip((-1, 1)) is None and R.recip(unit) is not None
    assert R.abs((-3, 1)) == R.abs((-1, 3)) == (0, 3) and R.abs((-3, -1)) == R.abs((1, 3)) == (1, 3)
    assert R.mul(LOW, unit) == LOW and R.mul(LOW, (-1, -1)) == HIGH and R.mul(HIGH, (0, 1)) is None
    assert R.power((0, 1), R.of(0)) is R.power((-1, 0), R.of(0)) is R.power((-1, 1), R.of(-1)) is None
    assert R.power(unit, R.of(0)) == R.power((-1, -1), R.of(0)) == R.one
    assert R.power((-1, 1), R.of(1)) == (-1, 1) and R.power(R.of(-1), R.of(3)) == R.of(-1)


def test_roots_are_as_tight_as_can_be() -> None:
    for n in (2, 3, 4, 7, 9):
        low, high = R.sqrt(R.of(n)) or (0, 0)
        assert low * low <= n << 512 <= high * high and high - low == (0 if n in (4, 9) else 1)


def test_the_error_function_of_what_is_unknown_is_unknown() -> None:
    """A witness whose value nobody could compute is no refutation; it must not end in a traceback either."""
    assert R.erf(None) is None and R.erf(NOWHERE) == NOWHERE
