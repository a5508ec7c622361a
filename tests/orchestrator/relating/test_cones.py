"""Where two cones read the same elements."""

from __future__ import annotations

from collections.abc import Container
from fractions import Fraction
from functools import partial

import pytest

from certificates.plan.affine import Affine
from certificates.proof.facts import Ref
from orchestrator.cells import Cut, Unfollowable
from orchestrator.relating.cones import MAX_OFFSETS, Cone, Loose, down_to_common, match, matches, positions

ROW, COL, Y, TP = (Affine.symbol(name) for name in ("i", "j", "y", "tp"))
RANGES = {"i": (0, 4), "j": (0, 3), "tp": (0, 2)}


def cone(*reads: tuple[str, Loose], offsets: tuple[Affine, ...] = ()) -> Cone:
    return Cone(reads=list(reads), offsets=set(offsets))


def test_reads_of_one_tensor_give_the_index() -> None:
    splits: list[Cut] = []
    found = match(cone(("s:x", (Y + 1, Affine(0)))).reads, cone(("s:x", (ROW, Affine(0)))), RANGES, splits)
    assert found == {"y": ROW - 1} and not splits


def test_digits_of_a_place_give_the_index() -> None:
    """Rows of a flattened tensor are read by two numbers on either side; where one side's are no digits of
    the other's, nothing is said of them."""
    flat, row, col = Y.scale(3) + Affine.symbol("w"), ROW.scale(3), COL
    there = cone(("s:x", (row + col,)))
    assert match(cone(("s:x", (flat,))).reads, there, RANGES, []) == {"y": ROW, "w": COL}
    assert match(cone(("s:x", (Y.scale(3),))).reads, cone(("s:x", (row,))), RANGES, []) == {"y": ROW}
    assert match(cone(("s:x", (Y.scale(3),))).reads, there, RANGES, []) == {}
    assert match(cone(("s:x", (flat,))).reads, cone(("s:x", (ROW.scale(2) + COL,))), RANGES, []) == {}
    twice = cone(("s:x", (flat,)), ("s:z", (Y,)))
    assert match(twice.reads, cone(("s:x", (row + col,)), ("s:z", (COL,))), RANGES, []) is None


def test_what_the_other_cone_does_not_read_is_no_match() -> None:
    assert match(cone(("s:x", (Y,))).reads, cone(("s:z", (ROW,))), RANGES, []) is None
    both = cone(("s:x", (Y, Y)))
    assert match(both.reads, cone(("s:x", (ROW, ROW))), RANGES, []) == {"y": ROW}
    assert match(both.reads, cone(("s:x", (ROW, COL))), RANGES, []) is None


def test_a_number_that_a_coordinate_becomes_on_one_rank_says_where_to_split() -> None:
    splits: list[Cut] = []
    assert match(cone(("s:x", (Affine(1),))).reads, cone(("s:x", (TP,))), RANGES, splits) is None
    assert [(c.symbol, c.position) for c in splits] == [("tp", 1)]


def test_an_element_at_an_integer_index_is_any_element() -> None:
    assert match(cone(("s:x", (None, Y))).reads, cone(("s:x", (ROW, COL))), RANGES, []) == {"y": COL}


def test_a_symbol_that_no_read_says_is_a_coordinate_with_an_offset_of_the_cone() -> None:
    """What is known already is not taken twice, and of two unknown symbols nothing is said."""
    offsets = tuple(Affine(n) for n in range(1, MAX_OFFSETS + 3))
    found = positions({"y": ROW}, ["z"], cone(offsets=offsets), [ROW, COL, Affine(0)])
    assert found[0] == {"y": ROW, "z": ROW + 1} and {"y": ROW, "z": COL} in found
    assert len(found) == 2 * (1 + MAX_OFFSETS) - 1
    assert positions({"y": ROW}, [], cone(), [COL]) == [{"y": ROW}]
    assert positions({}, ["y", "z"], cone(), [ROW]) == []


def test_a_cone_scales_by_nothing_at_first() -> None:
    assert Cone().scale == Fraction(1)


def test_a_rank_may_count_from_another_number() -> None:
    """Then what is counted does not say which column it is, only which row."""
    mine, theirs = (
        cone(("s:x", (Y,)), ("s:numbers", (Affine.symbol("z"),))),
        cone(("s:x", (ROW,)), ("s:numbers", (COL,))),
    )
    assert list(matches(mine, theirs, RANGES, [])) == [{"y": ROW, "z": COL}]
    mine.counted.add("s:numbers")
    assert list(matches(mine, theirs, RANGES, [])) == [{"y": ROW, "z": COL}, {"y": ROW}]


#: What each tensor is made of: a logarithm of a sum beside a logarithm of a softmax; ``given`` are none.
MADE = {
    "s:shifted": ("s:x", "s:most"),
    "s:log_softmax": ("s:shifted", "s:log"),
    "s:logsumexp": ("s:log", "s:most"),
    "s:other": ("s:shifted", "s:y"),
    "c0:loss": ("s:logsumexp", "s:x"),
    "c0:plain": ("s:log", "s:shifted"),
}
ORDER = {name: i for i, name in enumerate(("s:log", "s:most", *(n for n in MADE if n[0] == "s")))}


def below(tensor: str, ends: Container[Ref]) -> Cone:
    """The cone of a tensor, through those at which it does not end."""
    found, work = Cone(opened={tensor}), list(MADE[tensor])
    while work:
        name = work.pop()
        if name in ends or name not in MADE:
            found.reads.append((name, ()))
        else:
            found.opened.add(name)
            work += MADE[name]
    return found


def test_cones_end_at_what_both_sides_are_made_of() -> None:
    mine, theirs = down_to_common(partial(below, "s:log_softmax"), partial(below, "c0:loss"), ORDER)
    assert {t for t, _ in mine.reads} == {t for t, _ in theirs.reads} == {"s:x", "s:most", "s:log"}
    assert mine.opened == {"s:log_softmax", "s:shifted"} and theirs.opened == {"c0:loss", "s:logsumexp"}


def test_cones_that_end_alike_or_never_are_not_compared_again() -> None:
    """The first were compared as they are; of the others one reads what the other is not made of."""
    for spec, rank in (("s:log_softmax", "c0:plain"), ("s:other", "c0:loss")):
        with pytest.raises(Unfollowable):
            down_to_common(partial(below, spec), partial(below, rank), ORDER)
