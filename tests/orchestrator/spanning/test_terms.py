"""Terms of sums: their keys, and what is no key."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.plan.affine import Affine
from orchestrator.cells import Unfollowable
from orchestrator.spanning.terms import Call, Leaf, Term, amounts, applied, collected, multiplied
from tests.orchestrator.spanning.test_refining import ALL, ROW, read


def test_bound_symbols_have_no_names_and_products_no_order() -> None:
    def both(a: str, b: str) -> Term:
        left, right = read(Affine.symbol(a), {a: (0, 24)}), read(Affine.symbol(b).scale(2), {b: (0, 12)})
        return multiplied([right], [left])[0]

    assert collected([both("a", "b")]) == collected([both("b", "a")])
    diagonal = Term(Fraction(1), both("a", "a").factors, {"a": (0, 12)})
    assert collected([both("a", "b")]) != collected([diagonal])


def test_what_cancels_or_is_not_read_is_no_key() -> None:
    unread = Term(Fraction(2), (), {"k": (0, 5)})
    assert collected([unread]) == {((), ()): Fraction(10)}
    assert collected([read(ROW, {"k": (0, 5)}), read(ALL, {"i": (0, 5)}, -1)]) == {}


def test_functions_take_sums_that_bind_nothing() -> None:
    x, y = read(Affine(1), {}), read(Affine(2), {})
    (left,), (right,) = applied("max2", [[x], [y]]), applied("max2", [[y], [x]])
    assert left.factors == right.factors and isinstance(left.factors[0], Call)
    assert applied("power", [[x], [y]])[0].factors != applied("power", [[y], [x]])[0].factors
    assert applied("recip", [[Term(Fraction(4))]])[0].coef == Fraction(1, 4)
    with pytest.raises(Unfollowable, match="exponential of a sum"):
        applied("exponential", [[read(ROW, {"k": (0, 5)})]])
    with pytest.raises(Unfollowable, match="reciprocal of zero"):
        applied("recip", [[Term(Fraction(0))]])


def test_nested_calls_are_equal_hash_and_read_as_what_they_are_made_of() -> None:
    calls = []
    for name in ("x", "x", "y"):
        call = Call("tanh", ((((Leaf(name, ()),), Fraction(1)),),))
        for _ in range(3):
            call = Call("sine", ((((call,), Fraction(1)),),))
        calls.append(call)
    first, again, other = calls
    assert first == again and hash(first) == hash(again) and repr(first) == repr(again)
    assert first != other and repr(first) != repr(other) and len({first, again, other}) == 2
    assert repr(Call("f", ((),))) == "Call(function='f', arguments=((),))"


def test_amounts_are_the_same_however_a_sum_is_cut() -> None:
    """What differs in amount is no multiple, whatever the boxes: no need to cut them."""
    whole = read(Affine.symbol("i"), {"i": (0, 12)})
    parts = [read(Affine.symbol("i"), {"i": (0, 5)}), read(Affine.symbol("k") + 5, {"k": (0, 7)})]
    assert amounts([whole]) == amounts(parts) != amounts(parts[:1])
    assert list(amounts([whole]).values()) == [12] and amounts([whole, whole.scaled(Fraction(-1))]) == {}
    (called,) = applied("max2", [[read(Affine(1), {})], [read(Affine(2), {})]])
    assert amounts([called]).keys() != amounts([whole]).keys()
