"""Quotients of exponential polynomials, as the emitter compares them; tests/fuzz/fields.py asks far more."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orchestrator.cells import Unfollowable
from orchestrator.relating.quotients import Quotient, Quotients


def quotients() -> Quotients:
    """Letters with a large first letter are positive, `n` is not negative."""
    return Quotients(
        lambda x: isinstance(x, str) and x.isupper(),
        lambda x: isinstance(x, str) and (x.isupper() or x == "n"),
    )


def test_a_softmax_is_the_exponential_of_its_logarithm() -> None:
    q = quotients()
    x, s = q.letter("x"), q.letter("S")
    one = q.times(q.apply("exponential", x), q.apply("recip", s))
    other = q.apply("exponential", q.plus(x, q.scaled(q.apply("log", s), Fraction(-1))))
    assert q.ratio(one, other) == 1
    assert q.ratio(q.scaled(one, Fraction(2, 3)), other) == Fraction(2, 3)
    assert q.ratio(one, q.apply("exponential", x)) is None


@pytest.mark.parametrize(("name", "cancels"), [("S", True), ("n", False), ("x", False)])
def test_only_what_is_positive_is_divided_out(name: str, cancels: bool) -> None:
    q = quotients()
    p = q.letter(name)
    assert (q.ratio(q.times(p, q.apply("recip", p)), q.number(Fraction(1))) == 1) is cancels
    more = q.plus(p, q.number(Fraction(1, 1000)))
    assert (q.ratio(q.times(more, q.apply("recip", more)), q.number(Fraction(1))) == 1) is (name != "x")


def test_zero_is_a_multiple_of_nothing() -> None:
    q = quotients()
    assert q.ratio(q.number(Fraction(0)), q.letter("x")) is None
    assert q.ratio(q.letter("x"), q.number(Fraction(0))) is None


def test_functions_without_laws_are_named_by_their_normal_forms() -> None:
    q = quotients()
    x = q.letter("x")
    same = q.apply("log", q.apply("exponential", x))
    assert q.ratio(q.apply("tanh", same), q.apply("tanh", x)) == 1
    assert q.ratio(q.apply("tanh", same), q.apply("sine", x)) is None


def test_work_is_bounded() -> None:
    q = quotients()
    many: Quotient = q.letter("a")
    for name in "bcdef":
        many = q.plus(many, q.letter(name))
    with pytest.raises(Unfollowable, match="products of quotients"):
        for _ in range(16):
            many = q.times(many, many)
