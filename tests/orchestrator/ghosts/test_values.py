"""Quotients of exponential polynomials in lowest terms."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from orchestrator.cells import Unfollowable
from orchestrator.ghosts.values import (
    OMEGA,
    ONE,
    Letter,
    Value,
    Values,
    divided,
    exactly,
    letter,
    number,
    shared,
    told,
)


def values() -> Values:
    """Letters with a large first letter are positive, ``n`` is not negative."""
    return Values(lambda x: x[0].isupper(), lambda x: x == "n")


V = values()
x, y, P, Q, A, B, n = (letter(name, (0,)) for name in ("x", "y", "P", "Q", "A", "B", "n"))
mask = Value({frozenset({(Letter("t", (0,), truth=True), ONE)}): ONE}, {})


def less(a: Value, b: Value) -> Value:
    return V.plus(a, V.scaled(b, -ONE))


def over(a: Value, b: Value) -> Value:
    return V.times(a, V.inverse(b))


def test_a_merge_by_logarithms_is_a_quotient_of_sums() -> None:
    one, two = over(A, P), over(B, Q)
    gate = V.logistic(less(V.logarithm(Q), V.logarithm(P)))
    assert less(one, V.times(gate, less(one, two))) == over(V.plus(A, B), V.plus(P, Q))


def test_maxima_go_away() -> None:
    power = V.exponential(less(x, y))
    total = V.times(V.exponential(V.scaled(y, -ONE)), P)
    assert over(power, total) == over(V.exponential(x), P)
    assert V.plus(y, V.logarithm(total)) == V.logarithm(P)


def test_what_may_be_zero_cancels_against_nothing() -> None:
    assert over(P, P) == number(ONE)
    assert over(n, n) != number(ONE)
    assert over(V.times(P, n), P) == n
    assert over(V.times(V.exponential(x), y), V.times(V.exponential(x), n)) == over(y, n)
    with pytest.raises(Unfollowable):
        V.logarithm(n)
    with pytest.raises(Unfollowable):
        V.inverse(number(Fraction(0)))


def test_a_mask_is_taken_case_by_case() -> None:
    infinite = Value({frozenset({(OMEGA, ONE)}): ONE}, {})
    shut = V.plus(V.times(mask, x), V.times(less(number(ONE), mask), infinite))
    assert V.exponential(less(shut, y)) == V.times(mask, V.exponential(less(x, y)))
    assert V.times(mask, mask) == mask
    with pytest.raises(Unfollowable):
        V.exponential(V.scaled(infinite, -ONE))
    with pytest.raises(Unfollowable):
        V.inverse(infinite)


def test_division_of_polynomials() -> None:
    total = V.plus(P, Q).above
    product = V.times(V.plus(x, y), V.plus(P, Q)).above
    assert divided(product, total) == (V.plus(x, y).above, {})
    found, rest = divided(V.plus(V.times(x, V.plus(P, Q)), n).above, total)
    assert (found, rest) == (x.above, n.above)
    assert divided(x.above, total)[0] == {}


def test_what_terms_share() -> None:
    p = V.plus(V.scaled(V.times(x, P), Fraction(4)), V.scaled(V.times(x, Q), Fraction(6))).above
    content, powers = shared(p)
    assert content == 2 and {a.name for a in powers if isinstance(a, Letter)} == {"x"}


def test_work_is_bounded() -> None:
    many = number(Fraction(0))
    for i in range(30):
        many = V.plus(many, letter(f"x{i}", (0,)))
    v = values()
    with pytest.raises(Unfollowable):
        v.times(v.times(many, many), many)


def test_texts_are_the_same_in_every_run() -> None:
    atom = next(iter(V.exponential(V.times(x, y)).above))
    assert [told(a) for a, _ in atom] == ["exp(x[0]^1 y[0]^1)"]


def test_random_rewritings_keep_their_number() -> None:
    """Sums, products and quotients of positive letters, as numbers."""
    rng = random.Random(0)
    at = {"P": Fraction(3, 7), "Q": Fraction(5, 2), "x": Fraction(-2, 3)}

    def number_of(v: Value) -> Fraction:
        def poly(p: object) -> Fraction:
            total = Fraction(0)
            for m, c in dict(p).items():  # type: ignore[call-overload]
                term = c
                for a, k in m:
                    term *= at[a.name] ** int(k)
                total += term
            return total

        out = poly(v.above)
        for f, k in v.below.items():
            out /= poly(f) ** k
        return out

    for _ in range(200):
        pool = [(P, at["P"]), (Q, at["Q"]), (x, at["x"]), (number(Fraction(2)), Fraction(2))]
        for _ in range(6):
            (a, u), (b, w) = rng.choice(pool), rng.choice(pool)
            kind = rng.choice("+-*/")
            if kind == "/":
                if not V.is_positive(b.above):
                    continue
                pool.append((over(a, b), u / w))
            elif kind == "*":
                pool.append((V.times(a, b), u * w))
            else:
                pool.append((V.plus(a, b) if kind == "+" else less(a, b), u + w if kind == "+" else u - w))
            V.begin()
            assert number_of(pool[-1][0]) == pool[-1][1]


def test_letters_are_asked_for_in_order() -> None:
    """Ghosts are written when one is asked for: in the order of a set two bundles of a plan would differ."""
    asked = list[str]()

    def same(x: Letter) -> Letter:
        asked.append(x.name)
        return x

    terms = {frozenset({(Letter(f"x{i}", ()), ONE)}): ONE for i in range(9, -1, -1)}
    value = Value(terms, {})
    assert value.renamed(same) == value and asked == [f"x{i}" for i in range(10)]


def test_a_quotient_that_is_no_polynomial_is_given_up_at_its_first_rest() -> None:
    """All sums that were written before are tried on each new one: few of them divide it."""
    total, other = V.plus(P, Q), V.plus(x, number(ONE))
    assert exactly(V.times(total, other).above, total.above) == other.above
    assert exactly(V.plus(V.times(total, other), n).above, total.above) is None
