"""Normal forms of terms: what they make equal, what they keep apart, and their caps."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Undecided
from checker.language.proof import Element, Tensor
from checker.rules import normalise
from checker.rules.normalise import Normaliser

sys.path.insert(0, str(Path(__file__).parents[1]))


def lit(value: str) -> Any:
    return ("lit", Fraction(value))


A, B = (Element(Tensor("s", v), ()) for v in "ab")


def test_normal_forms() -> None:
    normal = Normaliser({A: ("+", B, lit("1"))})
    assert normal.equal(("-", A, lit("1")), B) and normal.equal(("fexp", A), ("fexp", ("+", lit("1"), B)))
    assert normal.equal(("recip", lit("4")), lit("1/4")) and not normal.equal(("recip", lit("4")), lit("4"))
    assert not normal.equal(("recip", A), A) and not normal.equal(("recip", lit("0")), lit("0"))
    assert normal.equal(("mul", ("recip", ("+", lit("1"), lit("1"))), B), ("*", Fraction(1, 2), B))
    assert normal.equal(("max2", B, ("max2", B, B)), B) and not normal.equal(("max2", A, B), A)
    assert normal.equal(("max2", A, ("max2", B, A)), ("max2", ("+", lit("1"), B), B))
    assert not normal.equal(("max2", A, B), ("min2", A, B))
    assert normal.equal(("min2", ("max2", A, B), A), ("min2", A, ("max2", B, A)))


def test_caps_of_normal_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    three = ("+", A, B, lit("1"))
    for name, node, cap, reason in (
        ("MAX_MONOMIALS", three, 3, "a normal form is too large"),
        ("MAX_BITS", ("+", lit("7"), lit("8")), 4, "a normal form is too large"),
        ("MAX_BITS", lit("-1/15"), 4, "a normal form is too large"),
        ("MAX_DEGREE", ("mul", ("mul", A, B), A), 3, "a product is too large"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(normalise, name, cap)
            assert Normaliser({}).normal(node)
            patch.setattr(normalise, name, cap - 1)
            with pytest.raises(Undecided, match=reason):
                Normaliser({}).normal(node)
    cube, sum4 = ("mul", three, three), ("+", A, B, ("fexp", A), lit("1"))
    monkeypatch.setattr(normalise, "MAX_MONOMIALS", 4)
    assert Normaliser({}).normal(("mul", ("mul", sum4, lit("2")), lit("3")))
    with pytest.raises(Undecided, match="a normal form is too large"):
        Normaliser({}).normal(cube)
    monkeypatch.setattr(normalise, "MAX_MONOMIALS", 3)
    with pytest.raises(Undecided, match="a normal form is too large"):
        Normaliser({}).normal(sum4)
    monkeypatch.setattr(normalise, "MAX_MONOMIALS", 2)
    with pytest.raises(Undecided, match="too large"):
        Normaliser({Element(Tensor("s", "c"), ()): three}).normal(Element(Tensor("s", "c"), ()))


def test_products_are_capped_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    four = [Element(Tensor("s", v), ()) for v in "abcd"]
    monkeypatch.setattr(normalise, "MAX_MONOMIALS", 5)
    with pytest.raises(Undecided, match="a product is too large"):
        Normaliser({}).normal(("mul", ("+", *four, lit("1")), ("+", *four, lit("1"))))
    with pytest.raises(Undecided, match="a normal form is too large"):
        Normaliser({}).normal(("mul", ("+", *four, lit("1")), ("+", *four)))


def test_nothing_times_a_power_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalise, "MAX_DEGREE", 2)
    square = ("mul", A, B)
    assert Normaliser({}).equal(("mul", lit("0"), square), ("mul", square, lit("0")))
