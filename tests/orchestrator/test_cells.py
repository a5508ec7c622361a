"""Splitting of boxes: the parts cover the whole once, and the code's answer on a part is right everywhere."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.plan.affine import Affine, Range
from orchestrator.cells import (
    MAX_CELLS,
    Cell,
    Cut,
    Digits,
    Unfollowable,
    explore,
    quotient,
    undivided,
    unlinear,
    upwards,
    within,
)  # fmt: skip

T = TypeVar("T")
BOXES = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.integers(-3, 4), st.integers(1, 7)), min_size=1, max_size=3
).map(lambda d: {s: (lo, lo + n) for s, (lo, n) in d.items()})
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def forms(box: dict[str, Range]) -> st.SearchStrategy[Affine]:
    coefs = st.fixed_dictionaries({s: st.sampled_from([0, 1, 1, 2, 3, 4, 6, 12]) for s in box})
    return st.builds(Affine.of, st.integers(-6, 12), coefs)


def points(ranges: dict[str, Range] | Cell) -> list[dict[str, int]]:
    given_ranges = ranges.ranges if isinstance(ranges, Cell) else ranges
    spaces = [range(lo, hi) for lo, hi in given_ranges.values()]
    return [dict(zip(given_ranges, p, strict=True)) for p in itertools.product(*spaces)]


def covered(
    box: dict[str, Range], compute: Callable[[Cell], T], holds: Callable[[T, Cell, dict[str, int]], bool]
) -> int:
    """Explore a box, check the answer at every point, and that every point of the box is in one part."""
    seen: list[tuple[tuple[str, int], ...]] = []
    parts = explore(Cell.whole(box), compute)
    for cell, answer in parts:
        for at in points(cell):
            assert holds(answer, cell, at), f"{answer} at {at} of {cell}"
            seen.append(tuple(sorted((s, f.evaluate(at)) for s, f in cell.at.items())))
    assert sorted(seen) == sorted(tuple(sorted(p.items())) for p in points(box))
    return len(parts)


@settings(max_examples=300)
@given(st.data())
def test_division_is_exact_on_every_part(data: st.DataObject) -> None:
    box = data.draw(BOXES)
    form, n = data.draw(forms(box)), data.draw(st.integers(1, 12))

    def compute(cell: Cell) -> tuple[Affine, Affine]:
        return quotient(form.substitute(cell.at), n, cell.ranges)

    def holds(answer: tuple[Affine, Affine], cell: Cell, at: dict[str, int]) -> bool:
        value = form.substitute(cell.at).evaluate(at)
        return (answer[0].evaluate(at), answer[1].evaluate(at)) == divmod(value, n)

    # Unfollowable is no guess; test_nested_digits_are_always_followed says where there must be one.
    with contextlib.suppress(Unfollowable):
        covered(box, compute, holds)


@settings(max_examples=200)
@given(SIZES, st.data())
def test_nested_digits_are_always_followed(sizes: tuple[int, ...], data: st.DataObject) -> None:
    """Row-major positions, cut out anywhere and regrouped at will, are what views and buckets consist of."""
    whole = math.prod(sizes)
    lo = data.draw(st.integers(0, whole - 1))
    box = {"i": (lo, data.draw(st.integers(lo + 1, whole)))}

    def compute(cell: Cell) -> list[Affine]:
        return unlinear(cell.at["i"], sizes, cell.ranges)

    def holds(answer: list[Affine], cell: Cell, at: dict[str, int]) -> bool:
        position = 0
        for size, form in zip(sizes, answer, strict=True):
            digit = form.evaluate(at)
            position = position * size + digit
            if not 0 <= digit < size:
                return False
        return position == cell.at["i"].evaluate(at)

    covered(box, compute, holds)


@settings(max_examples=200)
@given(st.data())
def test_a_range_is_decided_on_every_part(data: st.DataObject) -> None:
    box = data.draw(BOXES)
    form, lo = data.draw(forms(box)), data.draw(st.integers(-5, 20))
    hi = lo + data.draw(st.integers(0, 15))

    def compute(cell: Cell) -> bool:
        return within(form.substitute(cell.at), lo, hi, cell.ranges)

    def holds(answer: bool, cell: Cell, at: dict[str, int]) -> bool:
        return answer == (lo <= form.substitute(cell.at).evaluate(at) < hi)

    try:
        covered(box, compute, holds)
    except Unfollowable:
        assert len(form.terms) > 1, "one symbol can always be cut"


def test_parts_come_in_order_and_equal_code_gives_equal_names() -> None:
    def compute(cell: Cell) -> int:
        if within(cell.at["i"], 0, 3, cell.ranges):
            return 0
        return 1 if within(cell.at["i"], 3, 5, cell.ranges) else 2

    first = explore(Cell.whole({"i": (0, 8)}), compute)
    assert [answer for _, answer in first] == [0, 1, 2]
    assert [list(c.ranges.values()) for c, _ in first] == [[(0, 3)], [(3, 5)], [(5, 8)]]
    assert explore(Cell.whole({"i": (0, 8)}), compute) == first


def test_an_impossible_split_is_no_success() -> None:
    cell = Cell.whole({"i": (0, 6)})
    with pytest.raises(Unfollowable, match="outside"):
        cell.cut("i", 6)
    with pytest.raises(Unfollowable, match="not aligned"):
        cell.digits("i", 4, 0)

    def never(current: Cell) -> None:
        (symbol, (lo, hi)) = next(iter(current.ranges.items()))
        if hi - lo > 1:
            raise Cut(symbol, lo + 1)

    with pytest.raises(Unfollowable, match=f"more than {MAX_CELLS}"):
        explore(Cell.whole({"i": (0, MAX_CELLS + 1)}), never)


def test_digits_carry_a_shift() -> None:
    (cell,) = Cell.whole({"i": (2, 10)}).digits("i", 4, 2)
    values = sorted(cell.at["i"].evaluate(p) for p in points(cell))
    assert values == list(range(2, 10))
    with pytest.raises(Digits):
        quotient(Affine.symbol("i"), 4, {"i": (0, 8)})


@pytest.mark.parametrize("form", [Affine.symbol("a") + 1, Affine.of(0, {"a": 5})])
def test_a_box_that_must_stay_whole_is_followed_as_it_is_or_not_at_all(form: Affine) -> None:
    with undivided():
        assert quotient(form, 10, {"a": (0, 2)})[1] == form
    with pytest.raises(Unfollowable, match="a is not uniform"), undivided():
        quotient(form, 10, {"a": (0, 20)})


def test_a_box_is_cut_at_each_rank_along_which_a_place_runs_downwards() -> None:
    r, z = Affine.symbol("r"), Affine.symbol("z")
    down = r.scale(-2) + z

    def look(cell: Cell) -> Affine:
        form = down.substitute(cell.at)
        upwards([form], cell)
        return form

    found = explore(Cell.whole({"r": (0, 3), "z": (0, 2)}), look)
    assert [cell.ranges[cell.at["r"].symbols[0]] for cell, _ in found] == [(0, 1), (1, 2), (2, 3)]
    upwards([r.scale(2) + z], Cell.whole({"r": (0, 3), "z": (0, 2)}))


def test_a_split_of_the_box_around_is_the_one_arounds() -> None:
    """What is explored inside may depend on the outer box's symbols: these are split out there."""

    def inside(outer: Cell) -> list[tuple[Cell, bool]]:
        def compute(inner: Cell) -> bool:
            return within(outer.at["o"] + inner.at["i"] - 3, 0, 9, {**outer.ranges, **inner.ranges})

        return explore(Cell.whole({"i": (0, 2)}), compute)

    found = explore(Cell.whole({"o": (0, 6)}), inside)
    counted = [
        (
            outer.at["o"].evaluate({s: lo for s, (lo, _) in outer.ranges.items()}),
            [known for _, known in parts],
        )
        for outer, parts in found
    ]
    assert len(found) > 1 and counted[0][1] == [False] and counted[-1][1] == [True]


def test_a_coordinate_of_one_rank_is_a_number_where_digits_are_told() -> None:
    """Row by row, the last shard of a vocabulary fell into as many pieces as it has rows."""
    form = Affine.of(-63 * 4100, {"rank": 4100, "o": 1})
    with pytest.raises(Digits) as split:
        quotient(form, 16, {"rank": (63, 64), "o": (0, 64)})
    assert (split.value.symbol, split.value.base, split.value.shift) == ("o", 16, 0)
