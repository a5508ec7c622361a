"""A proof as data: when two facts are one, and what an element's pieces are."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from checker.language.affine import Affine
from checker.language.proof import Element, Fact, Reduced, Tensor

Z0 = Affine.symbol("z0")
FACT = Fact(Tensor("c0", "x"), Tensor("s", "x"), Fraction(1), (("z0", 0, 4),), (Z0,), (Z0,))


def test_facts_are_one_only_if_all_they_say_is_equal() -> None:
    """Claims are looked up among proved facts: the hash leaves parts out, equality does not."""
    twice, longer = replace(FACT, coef=Fraction(2)), replace(FACT, symbols=(("z0", 0, 5),))
    assert hash(twice) == hash(longer) == hash(FACT)
    assert len({FACT, twice, longer, replace(FACT)}) == 3
    assert FACT.ranges() == {"z0": (0, 4)} and longer.ranges() == {"z0": (0, 5)}


def test_pieces_of_an_element_lead_its_coordinates() -> None:
    assert Element(Tensor("s", "x"), ((2, 0, 1), (0,))).pieces() == (2, 0)
    assert Element(Tensor("s", "x"), ()).pieces() == ()


def test_tensors_are_told_by_program_and_name() -> None:
    """A message that names the wrong tensor sends its reader to the wrong rank."""
    both = Reduced("max", ("dp", "tp"), (Tensor("c0", "%1"), Tensor("c1", "%2")))
    assert str(both) == "max over dp tp of (c0:%1; c1:%2)"
