"""Block-constant tensors against the same arithmetic at every position."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evaluating.arrays import COMPARE, FOLD
from orchestrator.evaluating.forms import TooFine
from orchestrator.evaluating.grids import (
    Grid,
    assembled,
    coalesced,
    common_axes,
    compare_positions,
    contract,
    flattened,
    linear,
    pointwise,
)

SIZES = (6, 5)
Array = np.ndarray[Any, Any]


def dense(grid: Grid, sizes: tuple[int, ...] = SIZES) -> Array:
    """The value at every position."""
    out = np.zeros(sizes, dtype=np.float64 if grid.data.dtype.kind == "f" else np.int64)
    cuts = dict(grid.axes)
    for p in np.ndindex(*sizes):
        cell = tuple(int(np.searchsorted(cuts[v], p[v], side="right")) - 1 for v, _ in grid.axes)
        out[p] = grid.data[cell] + sum(c * p[v] for v, c in grid.slope)
    return out


@st.composite
def grids(draw: st.DrawFn, slope: bool = False) -> Grid:
    axes = []
    for var, size in enumerate(SIZES):
        if draw(st.booleans()):
            inner = draw(st.sets(st.integers(1, size - 1), max_size=3))
            axes.append((var, (0, *sorted(inner), size)))
    shape = [len(c) - 1 for _, c in axes]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    slopes = {v: draw(st.integers(-2, 2)) for v in range(2)} if slope else {}
    data = rng.integers(-3, 4, shape)
    return Grid(tuple(axes), data, tuple((v, c) for v, c in slopes.items() if c))


@given(grids(), grids())
def test_cells_of_operands_are_aligned(x: Grid, y: Grid) -> None:
    np.testing.assert_array_equal(dense(pointwise(np.subtract, x, y)), dense(x) - dense(y))


@given(grids(slope=True), grids(slope=True), st.sampled_from(["add", "subtract"]))
def test_positions_are_added_without_looking_at_each(x: Grid, y: Grid, op: str) -> None:
    found = linear(op, [x, y])
    assert found is not None
    np.testing.assert_array_equal(dense(found), getattr(operator, op[:3])(dense(x), dense(y)))


@given(grids(slope=True), st.integers(-3, 3))
def test_positions_are_scaled_by_a_number_and_by_nothing_else(x: Grid, factor: int) -> None:
    number = Grid((), np.asarray(factor))
    for pair in ([x, number], [number, x]):
        found = linear("multiply", pair)
        assert found is not None
        np.testing.assert_array_equal(dense(found), factor * dense(x))
    assert linear("maximum", [x, number]) is None


@given(grids(slope=True), grids(slope=True), st.sampled_from(sorted(COMPARE)))
def test_comparisons_of_positions_are_cut_where_they_change(x: Grid, y: Grid, direction: str) -> None:
    """A causal mask: true on one side of the diagonal."""
    found = compare_positions(direction, x, y, SIZES)
    np.testing.assert_array_equal(dense(found).astype(bool), COMPARE[direction](dense(x), dense(y)))


@given(grids(slope=True))
def test_positions_written_out_are_the_same_numbers(x: Grid) -> None:
    found = flattened(x, SIZES)
    assert not found.slope
    np.testing.assert_array_equal(dense(found), dense(x))


@given(grids())
def test_cuts_between_equal_cells_go(x: Grid) -> None:
    found = coalesced(x)
    np.testing.assert_array_equal(dense(found), dense(x))
    assert coalesced(found) == found or found.data.shape == coalesced(found).data.shape
    assert sum(len(c) for _, c in found.axes) <= sum(len(c) for _, c in x.axes)


@given(grids(), grids())
def test_a_sum_of_products_weights_cells_with_their_lengths(x: Grid, y: Grid) -> None:
    found = contract("add", [x, y], SIZES, 1)
    np.testing.assert_array_equal(dense(found, SIZES[:1]), (dense(x) * dense(y)).sum(1))


@pytest.mark.parametrize("kind", ["max", "min"])
@given(x=grids())
def test_extremes_need_no_lengths(kind: str, x: Grid) -> None:
    found = contract(kind, [x], SIZES, 1)
    fold: Callable[..., Any] = FOLD[kind].reduce
    np.testing.assert_array_equal(dense(found, SIZES[:1]), fold(dense(x), axis=1))


def test_parts_of_a_box_are_put_together() -> None:
    left, right = Grid(((0, (0, 1, 2)),), np.asarray([1, 2])), Grid((), np.asarray(7))
    whole = assembled([({0: (0, 2)}, left), ({0: (2, 6)}, right)], SIZES)
    assert dense(whole)[:, 0].tolist() == [1, 2, 7, 7, 7, 7]


def test_a_value_that_varies_everywhere_is_given_up() -> None:
    """Before it takes the memory of the machine."""
    fine = [Grid(((v, tuple(range(2001))),), np.zeros(2000)) for v in range(3)]
    with pytest.raises(TooFine, match="varies on more than"):
        common_axes(fine)
    with pytest.raises(TooFine, match="a long dimension is used as a number"):
        flattened(Grid((), np.asarray(0), ((0, 1),)), (1 << 18,))
