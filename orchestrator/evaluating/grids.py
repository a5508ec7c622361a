"""Block-constant tensors: one number per cell of a grid of cuts, with numpy.

A :class:`Grid` gives a value for every position of some box variables. Arithmetic aligns the cuts of its
operands; sums weight every cell with its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import EvaluationError
from .arrays import BINARY, COMPARE, FOLD
from .forms import MAX_CUTS, Form, TooFine, combine, threshold

Array = NDArray[Any]
#: Block boundaries ``(0, …, size)``.
Cuts = tuple[int, ...]

MAX_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Grid:
    """Value on every cell: ``data[cell] + sum(coefficient * variable)`` (``slope``, integers only).

    ``axes`` are the variables that matter, ascending, each with its cuts ``(0, …, size)``.
    """

    axes: tuple[tuple[int, Cuts], ...]
    data: Array
    slope: tuple[tuple[int, int], ...] = ()


@lru_cache(maxsize=1 << 14)
def _positions(cuts: Cuts, finer: Cuts) -> Array:
    """For every cell of ``finer`` the cell of ``cuts`` that holds it."""
    return np.searchsorted(np.asarray(cuts), np.asarray(finer[:-1]), side="right") - 1


@lru_cache(maxsize=1 << 14)
def _union(first: Cuts, second: Cuts) -> Cuts:
    return tuple(sorted({*first, *second}))


@lru_cache(maxsize=1 << 14)
def _lengths(cuts: Cuts) -> Array:
    return np.diff(np.asarray(cuts))


def common_axes(grids: Iterable[Grid]) -> tuple[tuple[int, Cuts], ...]:
    """The coarsest axes that refine all grids."""
    axes: dict[int, Cuts] = {}
    for grid in grids:
        for var, cuts in grid.axes:
            known = axes.get(var)
            if known is None:
                axes[var] = cuts
            elif known is not cuts and known != cuts:
                axes[var] = _union(known, cuts)
    if math.prod(len(c) - 1 for c in axes.values()) > MAX_CELLS:
        raise TooFine(f"a value varies on more than {MAX_CELLS} boxes")
    return tuple(sorted(axes.items()))


def refined(grid: Grid, axes: tuple[tuple[int, Cuts], ...], *, broadcast: bool = True) -> Array:
    """The data on finer axes; with ``broadcast``, variables the grid does not mention get length 1."""
    own = dict(grid.axes)
    data, at = grid.data, 0
    for var, cuts in axes:
        mine = own.get(var)
        if mine is None:
            if broadcast:
                data = np.expand_dims(data, at)
                at += 1
            continue
        if mine is not cuts and mine != cuts:
            data = data.take(_positions(mine, cuts), axis=at)
        at += 1
    return data


def pointwise(function: Callable[..., Any], *grids: Grid) -> Grid:
    """Apply a numpy function cell by cell; the grids have no slope."""
    if len(grids) == 1:
        return Grid(grids[0].axes, np.asarray(function(grids[0].data)))
    axes = common_axes(grids)
    return Grid(axes, np.asarray(function(*(refined(g, axes) for g in grids))))


def flattened(grid: Grid, sizes: Sequence[int]) -> Grid:
    """The same integers without slope: every variable of the slope falls into single positions."""
    if not grid.slope:
        return grid
    if any(sizes[v] > MAX_CUTS for v, _ in grid.slope):
        raise TooFine("an index along a long dimension is used as a number")
    singles = tuple((v, tuple(range(sizes[v] + 1))) for v, _ in grid.slope)
    axes = common_axes([grid, Grid(singles, np.zeros([len(c) - 1 for _, c in singles]))])
    data = refined(grid, axes)
    for var, coef in grid.slope:
        at = [v for v, _ in axes].index(var)
        data = data + (coef * np.arange(sizes[var])).reshape([-1 if d == at else 1 for d in range(len(axes))])
    return Grid(axes, data)


def coalesced(grid: Grid) -> Grid:
    """Drop cuts between cells of equal value."""
    data, axes = grid.data, []
    at = 0
    for var, cuts in grid.axes:
        moved = np.moveaxis(data, at, 0)
        change = (moved[1:] != moved[:-1]).any(axis=tuple(range(1, moved.ndim)))
        if change.size and change.all():
            axes.append((var, cuts))
            at += 1
            continue
        keep = [0, *(int(i) + 1 for i in np.flatnonzero(change))]
        if len(keep) == 1:
            data = moved[0]
            continue
        data = data.take(keep, axis=at)
        axes.append((var, (*tuple(cuts[i] for i in keep), cuts[-1])))
        at += 1
    return Grid(tuple(axes), data, grid.slope)


def assembled(answers: list[tuple[dict[int, tuple[int, int]], Grid]], sizes: Sequence[int]) -> Grid:
    """One grid out of grids on the parts of a box; a part's variables count from its own start."""
    marks: dict[int, set[int]] = {}
    for box, grid in answers:
        for var, (lo, hi) in box.items():
            marks.setdefault(var, {0, sizes[var]}).update((lo, hi))
        for var, cuts in grid.axes:
            first = box.get(var, (0, 0))[0]
            marks.setdefault(var, {0, sizes[var]}).update(first + c for c in cuts)
    axes = tuple((v, tuple(sorted(c))) for v, c in sorted(marks.items()))
    shape = [len(c) - 1 for _, c in axes]
    if math.prod(shape) > MAX_CELLS:
        raise TooFine(f"a value varies on more than {MAX_CELLS} boxes")
    data = np.empty(shape, dtype=answers[0][1].data.dtype)
    for box, grid in answers:
        where, local = [], []
        for var, cuts in axes:
            lo, hi = box.get(var, (0, sizes[var]))
            first, last = cuts.index(lo), cuts.index(hi)
            where.append(slice(first, last))
            local.append((var, tuple(c - lo for c in cuts[first : last + 1])))
        data[tuple(where)] = refined(grid, tuple(local))
    return coalesced(Grid(axes, data))


def corner(form: Form, axes: tuple[tuple[int, Cuts], ...]) -> Array:
    """Value of a form at the first position of every cell."""
    coefs = dict(form[1])
    total: Array = np.full([1] * len(axes), form[0])
    for d, (var, cuts) in enumerate(axes):
        if coefs.get(var):
            line = np.asarray(cuts[:-1]) * coefs[var]
            total = total + line.reshape([-1 if k == d else 1 for k in range(len(axes))])
    return total


def linear(op: str, grids: list[Grid]) -> Grid | None:
    """Integer arithmetic that keeps positions symbolic, if the op allows it."""
    x = grids[0]
    if op == "negate":
        return Grid(x.axes, -x.data, tuple((v, -c) for v, c in x.slope))
    if op in ("add", "subtract"):
        y, sign = grids[1], 1 if op == "add" else -1
        plain = pointwise(BINARY[op], Grid(x.axes, x.data), Grid(y.axes, y.data))
        return Grid(plain.axes, plain.data, combine((0, x.slope), (0, y.slope), sign)[1])
    if op == "multiply":
        for a, b in (grids, grids[::-1]):
            if not b.axes and not b.slope:
                factor = int(b.data)
                slope = tuple((v, c * factor) for v, c in a.slope) if factor else ()
                return Grid(a.axes, a.data * factor, slope)
    return None


def compare_positions(direction: str, x: Grid, y: Grid, sizes: Sequence[int]) -> Grid:
    """Compare integers that grow along variables: cut where the answer changes."""
    difference = linear("subtract", [x, y])
    if difference is None:
        raise EvaluationError("integers cannot be subtracted")
    slope: Form = (0, difference.slope)
    cuts: dict[int, set[int]] = {}
    for value in np.unique(difference.data).tolist():
        for at in {"EQ": (0, 1), "NE": (0, 1), "LT": (0,), "GE": (0,), "LE": (1,), "GT": (1,)}[direction]:
            threshold(slope, sizes, at - value, cuts)
    marks = tuple((v, (0, *sorted(c), sizes[v])) for v, c in sorted(cuts.items()) if c)
    axes = common_axes([difference, Grid(marks, np.zeros([len(c) - 1 for _, c in marks]))])
    numbers = refined(difference, axes) + corner(slope, axes)
    return Grid(axes, np.asarray(COMPARE[direction](numbers, np.asarray(0))))


def contract(kind: str, grids: list[Grid], sizes: Sequence[int], outer: int) -> Grid:
    """Reduce the variables from ``outer`` on out of a product of one or two grids."""
    axes = common_axes(grids)
    if kind != "add":
        data = refined(grids[0], axes)
        summed = tuple(d for d, (v, _) in enumerate(axes) if v >= outer)
        kept = tuple(a for a in axes if a[0] < outer)
        return Grid(kept, np.asarray(FOLD[kind].reduce(data, axis=summed)))
    present = {v for v, _ in axes}
    factor = math.prod(n for v, n in enumerate(sizes) if v >= outer and v not in present)
    terms: list[Any] = []
    letters = {v: i for i, (v, _) in enumerate(axes)}
    if len(letters) > 50:
        raise TooFine("a sum over more than 50 variables")
    weighted: set[int] = set()
    work = 1
    for grid in sorted(grids, key=lambda g: g.data.size):
        data = refined(grid, axes, broadcast=False)
        own = [v for v, _ in axes if v in {u for u, _ in grid.axes}]
        for at, var in enumerate(own):
            if var >= outer and var not in weighted:
                weighted.add(var)
                lengths = _lengths(dict(axes)[var])
                data = data * lengths.reshape([-1 if k == at else 1 for k in range(len(own))])
        terms += [data, [letters[v] for v in own]]
    for _, cuts in axes:
        work *= len(cuts) - 1
    kept = tuple(a for a in axes if a[0] < outer)
    out = np.einsum(*terms, [letters[v] for v, _ in kept], optimize=work > 1 << 16 and len(grids) > 1)
    return Grid(kept, np.asarray(out * factor if factor != 1 else out))
