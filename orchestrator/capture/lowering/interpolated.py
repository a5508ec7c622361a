"""Images of another size whose elements are weighted means of neighbours: linear and bilinear interpolation.

Where an element of the result lies among the operand's repeats with a period, at multiples of a step: with a
size twice as large at ``i - 1/4`` and ``i + 1/4``. Each place of a period is a mean of two slices; beyond its
ends an operand goes on as its last element. (PyTorch: ``area_pixel_compute_source_index``.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..builder import Value
from .table import Context, lowers
from .windows import fitted


@dataclass(frozen=True)
class Resized:
    """A dimension of ``size`` elements made one of ``wanted``."""

    size: int
    wanted: int
    corners: bool

    @property
    def ratio(self) -> Fraction:
        """The distance of two elements of the result, in elements of the operand."""
        if not self.corners:
            return Fraction(self.size, self.wanted)
        return Fraction(self.size - 1, self.wanted - 1) if self.wanted > 1 else Fraction(0)

    @property
    def step(self) -> int:
        """From one period to the next, in elements of the operand; of one period there is none."""
        return self.ratio.numerator or 1

    @property
    def periods(self) -> int:
        """How many there are; the last one may have too many elements."""
        return -(-self.wanted // self.ratio.denominator)

    @property
    def places(self) -> list[Fraction]:
        """Where the elements of the first period lie."""
        first = Fraction(0) if self.corners else (self.ratio - 1) / 2
        return [first + r * self.ratio for r in range(self.ratio.denominator)]

    @property
    def before(self) -> int:
        """How many elements are needed before the first one."""
        return max(0, -math.floor(self.places[0]))

    @property
    def behind(self) -> int:
        """How many are needed behind the last one."""
        last = max(start for mean in self.means for start, _ in mean)
        read = (self.periods - 1) * self.ratio.numerator + last + 1
        return max(0, read - self.before - self.size)

    @property
    def means(self) -> list[list[tuple[int, Fraction]]]:
        """Of each place of a period its two neighbours in the extended operand, and their weights."""
        out = []
        for place in self.places:
            low = math.floor(place)
            pairs = ((low, 1 - (place - low)), (low + 1, place - low))
            out.append([(self.before + i, weight) for i, weight in pairs if weight])
        return out


def _forward(c: Context, x: Value, dim: int, by: Resized) -> Value:
    n = by.size
    ends = [c.b.narrow(x, dim, 0, 1)] * by.before, [c.b.narrow(x, dim, n - 1, 1)] * by.behind
    x = c.b.concatenate([*ends[0], x, *ends[1]], dim)
    stride = [by.step if d == dim else 1 for d in range(len(x.shape))]
    sizes = [by.periods if d == dim else n for d, n in enumerate(x.shape)]

    def read(start: int) -> Value:
        return c.b.slice(x, [start if d == dim else 0 for d in range(len(sizes))], sizes, stride)

    means = [_sum(c, [_share(c, read(start), weight) for start, weight in mean]) for mean in by.means]
    places = [c.b.reshape(m, (*sizes[: dim + 1], 1, *sizes[dim + 1 :])) for m in means]
    wide = c.b.concatenate(places, dim + 1)
    flat = c.b.reshape(wide, (*sizes[:dim], by.periods * len(places), *sizes[dim + 1 :]))
    return c.b.narrow(flat, dim, 0, by.wanted)


def _backward(c: Context, grad: Value, dim: int, by: Resized) -> Value:
    """Each neighbour's share is put back where it was read; beyond the ends it is the last element's."""
    count, period = by.periods, by.ratio.denominator
    whole = by.before + by.size + by.behind
    grad = fitted(c, grad, dim, 0, count * period, 0)
    rows = c.b.reshape(grad, (*grad.shape[:dim], count, period, *grad.shape[dim + 1 :]))
    parts = []
    for place, mean in enumerate(by.means):
        apart = fitted(c, c.b.narrow(rows, dim + 1, place, 1), dim + 1, 0, by.step, 0)
        spread = c.b.reshape(apart, (*grad.shape[:dim], count * by.step, *grad.shape[dim + 1 :]))
        spread = c.b.narrow(spread, dim, 0, (count - 1) * by.step + 1)
        parts += [_share(c, fitted(c, spread, dim, start, whole, 0), weight) for start, weight in mean]
    total = _sum(c, parts)
    inner = c.b.narrow(total, dim, by.before, by.size)
    for first, size, at in ((0, by.before, 0), (by.before + by.size, by.behind, by.size - 1)):
        if size:
            beyond = c.b.reduce(c.b.narrow(total, dim, first, size), (dim,), "add", keepdim=True)
            inner = c.b.binary("add", inner, fitted(c, beyond, dim, at, by.size, 0))
    return inner


def _share(c: Context, x: Value, weight: Fraction) -> Value:
    return c.b.scale(x, weight) if weight != 1 else x


def _sum(c: Context, parts: Sequence[Value]) -> Value:
    return functools.reduce(lambda one, other: c.b.binary("add", one, other), parts)


def _along(
    c: Context,
    x: Value,
    sizes: Sequence[int],
    wanted: Sequence[int],
    corners: bool,
    scales: Sequence[float | None],
    way: Callable[[Context, Value, int, Resized], Value],
) -> Value:
    """One of both ways, along one of the last dimensions after the other."""
    first = len(x.shape) - len(scales)
    sizes, wanted = sizes[-len(scales) :], wanted[-len(scales) :]
    for n, m, scale in zip(sizes, wanted, scales, strict=True):
        if scale is not None and scale != m / n and not corners:
            raise c.refuse(f"an image of {list(sizes)} by {scale}, which is not {m} / {n}")
    for dim, (n, m) in enumerate(zip(sizes, wanted, strict=True), first):
        if n != m:  # one element goes on as itself, whatever is aligned
            x = way(c, x, dim, Resized(n, m, corners and n > 1))
    return x


@lowers("aten.upsample_linear1d")
def _linear(c: Context, x: Value, size: Sequence[int], corners: bool, scale: float | None = None) -> Value:
    return _along(c, x, x.shape, size, corners, [scale], _forward)


@lowers("aten.upsample_bilinear2d")
def _bilinear(
    c: Context,
    x: Value,
    size: Sequence[int],
    corners: bool,
    high: float | None = None,
    wide: float | None = None,
) -> Value:
    return _along(c, x, x.shape, size, corners, [high, wide], _forward)


@lowers("aten.upsample_linear1d_backward", ignores=("output_size",))
def _linear_backward(
    c: Context, grad: Value, sizes: Sequence[int], corners: bool, scale: float | None = None
) -> Value:
    return _along(c, grad, sizes, grad.shape, corners, [scale], _backward)


@lowers("aten.upsample_bilinear2d_backward", ignores=("output_size",))
def _bilinear_backward(
    c: Context,
    grad: Value,
    sizes: Sequence[int],
    corners: bool,
    high: float | None = None,
    wide: float | None = None,
) -> Value:
    return _along(c, grad, sizes, grad.shape, corners, [high, wide], _backward)
