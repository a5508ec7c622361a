"""Facts go into a slice and out of it again, or are of no use there."""

from __future__ import annotations

from certificates.plan.affine import Affine
from certificates.proof.facts import Fact, Reduced
from orchestrator.proving.slices import Slice

PLACE = Slice(("pp", "dp", "tp"), {"pp": (3, 4)}, ("c9", "c5", "r0", "r1"))
PP, DP, TP, Z = (Affine.symbol(s) for s in ("pp", "dp", "tp", "z0"))
HERE = (("pp", 3, 4), ("dp", 0, 2), ("tp", 0, 8), ("z0", 0, 5))


def test_coordinates_are_taken_out_and_put_in() -> None:
    fact = Fact("c5:x", "s:x", HERE, (PP, DP, TP, Z), (TP.scale(5) + Z,))
    inside = PLACE.inside(fact)
    assert inside == Fact("c5:x", "s:x", HERE[1:], (DP, TP, Z), (TP.scale(5) + Z,))
    assert PLACE.outside(inside) == fact


def test_members_of_a_sum_stand_in_the_order_of_their_plan() -> None:
    fact = Fact(Reduced("add", ("dp",), ("c9:g", "c5:g")), "s:g", (HERE[0], *HERE[2:]), (PP, TP, Z), (Z,))
    inside = PLACE.inside(fact)
    assert inside is not None and inside.lhs_index == (TP, Z)
    swapped = Fact(Reduced("add", ("dp",), ("c5:g", "c9:g")), "s:g", fact.symbols, fact.lhs_index, (Z,))
    assert PLACE.outside(swapped).lhs == fact.lhs


def test_what_is_said_of_the_slice_itself_is_of_no_use_inside() -> None:
    assert PLACE.inside(Fact("c5:x", "s:x", HERE, (PP, DP, TP, Z), (PP.scale(5) + Z,))) is None
    over = Reduced("add", ("pp",), ("c5:x",))
    assert PLACE.inside(Fact(over, "s:x", HERE[1:], (DP, TP, Z), (Z,))) is None


def test_facts_of_the_specification_have_no_coordinates() -> None:
    fact = Fact("s:y", "#f:0", (("z0", 0, 5),), (Z,), ())
    assert PLACE.inside(fact) == fact == PLACE.outside(fact)


def test_without_a_slice_nothing_changes() -> None:
    fact = Fact("c5:x", "s:x", HERE, (PP, DP, TP, Z), (PP.scale(5) + Z,))
    assert Slice(("pp", "dp", "tp"), {}, ()).inside(fact) == fact
