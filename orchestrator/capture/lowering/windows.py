"""Convolutions, pooling and folding: contractions and reductions over windows.

A window along a dimension is a dimension of its own: ``x[…, h, …]`` becomes ``x[…, o, k, …]`` with
``h = stride * o + dilation * k - padding``. Windows that do not overlap are a reshape, others a look-up at
positions that
are counted out. The gradient goes back by the same positions: where windows begin beside each other, as a sum
of shifted parts, else as a contraction with the matrix of which ``h`` is which ``(o, k)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..builder import Literal, Value
from ..memory import MOST_SLICES
from .scattering import added_along
from .table import Context, lowers


@dataclass(frozen=True)
class Window:
    """``size`` elements in ``count`` windows of ``kernel``; the first begins ``low`` earlier."""

    size: int
    count: int
    kernel: int
    stride: int
    dilation: int = 1
    low: int = 0

    @property
    def span(self) -> int:
        """Elements from the first window's first to the last window's last, padding included."""
        return (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    @property
    def apart(self) -> bool:
        """Does every element lie in one window at most, none between two of them?"""
        return self.stride == self.kernel and (self.dilation == 1 or self.kernel == 1)

    def positions(self, c: Context) -> Value:
        """[count, kernel]: where in the padded dimension."""
        shape = (self.count, self.kernel)
        first, inside = (
            i if factor == 1 else c.b.scale(i, factor)
            for i, factor in ((c.b.iota(0, shape), self.stride), (c.b.iota(1, shape), self.dilation))
        )
        return c.b.binary("add", first, inside)


def unfolded(c: Context, x: Value, first: int, windows: Sequence[Window], fill: Literal = 0) -> Value:
    """Each dimension from ``first`` on becomes two: which window, and where in it."""
    for dim in reversed(range(first, first + len(windows))):
        w = windows[dim - first]
        x = fitted(c, x, dim, w.low, w.span, fill)
        if w.apart:
            x = c.b.reshape(x, (*x.shape[:dim], w.count, w.kernel, *x.shape[dim + 1 :]))
        else:
            x = c.b.gather(x, w.positions(c), axis=dim, batch_dims=0)
    return x


def folded(c: Context, x: Value, first: int, windows: Sequence[Window]) -> Value:
    """The gradient of :func:`unfolded`: each element is the sum of what the windows give it."""
    for dim, w in enumerate(windows, first):  # the dimensions before have been folded
        if w.apart:
            x = c.b.reshape(x, (*x.shape[:dim], w.span, *x.shape[dim + 2 :]))
        elif w.stride == 1 and w.kernel <= MOST_SLICES:
            x = _laid(c, x, dim, w)
        else:
            shape = (w.count, w.kernel, w.span)
            here = c.b.compare("EQ", c.b.insert(w.positions(c), 2, w.span), c.b.iota(2, shape))
            x = c.b.dot(x, c.b.convert(here, x.dtype), contract=((dim, dim + 1), (0, 1)))
            rank = len(x.shape)
            x = c.b.transpose(x, [*range(dim), rank - 1, *range(dim, rank - 1)])
        x = fitted(c, x, dim, -w.low, w.size, 0)
    return x


def _laid(c: Context, x: Value, dim: int, w: Window) -> Value:
    """The sum of what windows give by one place in them each: one shift of the other."""
    shape = (*x.shape[: dim + 1], *x.shape[dim + 2 :])
    parts = (c.b.reshape(c.b.narrow(x, dim + 1, k, 1), shape) for k in range(w.kernel))
    shifted = [fitted(c, part, dim, k * w.dilation, w.span, 0) for k, part in enumerate(parts)]
    return functools.reduce(lambda one, other: c.b.binary("add", one, other), shifted)


def fitted(c: Context, x: Value, dim: int, low: int, size: int, fill: Literal) -> Value:
    """``size`` elements along ``dim`` from ``low`` before its first on (after it, if negative)."""
    start, have = max(-low, 0), x.shape[dim]
    taken = min(have - start, size - max(low, 0))
    if taken <= 0:
        raise c.refuse("windows that see nothing but padding")
    x = c.b.narrow(x, dim, start, taken)
    low = max(low, 0)
    rank = len(x.shape)
    return c.b.pad(
        x,
        fill,
        [low if d == dim else 0 for d in range(rank)],
        [size - low - taken if d == dim else 0 for d in range(rank)],
    )


# --- convolutions ----------------------------------------------------------------------------------------


def _split(c: Context, x: Value, dim: int, groups: int) -> Value:
    return c.b.reshape(x, (*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :]))


def _joined(c: Context, x: Value) -> Value:
    """[groups, rows, …, channels of a group] as [rows, channels, …]."""
    rank = len(x.shape)
    x = c.b.transpose(x, [1, 0, rank - 1, *range(2, rank - 1)])
    return c.b.reshape(x, (x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]))


def _correlated(c: Context, x: Value, weight: Value, windows: Sequence[Window], groups: int) -> Value:
    """``out[n, o, p] = sum over channels and window of x[n, c, p, k] * weight[o, c, k]``."""
    n = len(windows)
    wide = _split(c, unfolded(c, x, 2, windows), 1, groups)
    kernels = _split(c, weight, 0, groups)
    inside = [4 + 2 * i for i in range(n)]
    contract = ((2, *inside), (2, *range(3, 3 + n)))
    return _joined(c, c.b.dot(wide, kernels, batch=((1,), (0,)), contract=contract))


def _spread(c: Context, y: Value, weight: Value, windows: Sequence[Window], groups: int) -> Value:
    """``x[n, c, h] = sum over channels, and windows that see h, of y[n, o, p] * weight[o, c, k]``."""
    n = len(windows)
    product = c.b.dot(
        _split(c, y, 1, groups), _split(c, weight, 0, groups), batch=((1,), (0,)), contract=((2,), (1,))
    )  # [groups, rows, places, channels, window]
    places = [d for i in range(n) for d in (2 + i, 3 + n + i)]
    product = c.b.transpose(product, [1, 0, 2 + n, *places])
    shape = product.shape
    return folded(c, c.b.reshape(product, (shape[0], shape[1] * shape[2], *shape[3:])), 2, windows)


def _weights(c: Context, y: Value, x: Value, windows: Sequence[Window], groups: int) -> Value:
    """``weight[o, c, k] = sum over rows and places of y[n, o, p] * x[n, c, p, k]``."""
    n = len(windows)
    wide = _split(c, unfolded(c, x, 2, windows), 1, groups)
    contract = ((0, *range(3, 3 + n)), (0, *(3 + 2 * i for i in range(n))))
    product = c.b.dot(_split(c, y, 1, groups), wide, batch=((1,), (1,)), contract=contract)
    return c.b.reshape(product, (y.shape[1], *product.shape[2:]))


def _each(values: Sequence[int], n: int) -> list[int]:
    return list(values) if len(values) == n else [values[0]] * n


def _windows(
    sizes: Sequence[int],
    counts: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Window]:
    n = len(sizes)
    stride, padding, dilation = (_each(v, n) for v in (stride, padding, dilation))
    return [Window(*w) for w in zip(sizes, counts, kernel, stride, dilation, padding, strict=True)]


@lowers("aten.convolution", ignores=("output_padding",))
def _convolution(
    c: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Value:
    """Where the output is padded the result's shape says."""
    sizes, counts = x.shape[2:], c.out[0].shape[2:]
    if transposed:
        windows = _windows(counts, sizes, weight.shape[2:], stride, padding, dilation)
        result = _spread(c, x, weight, windows, groups)
    else:
        windows = _windows(sizes, counts, weight.shape[2:], stride, padding, dilation)
        result = _correlated(c, x, weight, windows, groups)
    return result if bias is None else c.b.binary("add", result, c.b.broadcast(bias, result.shape, (1,)))


@lowers("aten.convolution_backward", ignores=("bias_sizes", "output_padding"))
def _convolution_backward(
    c: Context,
    grad: Value,
    x: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    large, small = (grad, x) if transposed else (x, grad)
    windows = _windows(large.shape[2:], small.shape[2:], weight.shape[2:], stride, padding, dilation)
    back = _correlated if transposed else _spread
    return (
        back(c, grad, weight, windows, groups) if mask[0] else None,
        _weights(c, small, large, windows, groups) if mask[1] else None,
        c.b.reduce(grad, [0, *range(2, len(grad.shape))], "add") if mask[2] else None,
    )


# --- pooling ---------------------------------------------------------------------------------------------


def _pool_windows(
    sizes: Sequence[int],
    counts: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> list[Window]:
    kernel = _each(kernel, len(sizes))
    return _windows(sizes, counts, kernel, stride or kernel, padding, dilation)


def _inside(windows: Sequence[Window], first: int) -> list[int]:
    """Dimensions that say where in a window, of what :func:`unfolded` gives."""
    return [first + 2 * i + 1 for i in range(len(windows))]


def _averaged(
    c: Context,
    total: Value,
    windows: Sequence[Window],
    padding: Sequence[int],
    counted: bool,
    divisor: int | None,
) -> Value:
    """Divided by how many elements a window has: with padding if that is ``counted``, never beyond it."""
    n, first = len(windows), len(total.shape) - len(windows)
    whole = math.prod(w.kernel for w in windows)
    padding = _each(padding, n) if counted else [0] * n
    ends = [w.size + p + w.low for w, p in zip(windows, padding, strict=True)]
    starts = [w.low - p for w, p in zip(windows, padding, strict=True)]
    full = all(s <= 0 and w.span <= e for w, s, e in zip(windows, starts, ends, strict=True))
    if divisor is not None or full:
        return c.b.binary("divide", total, c.b.like(divisor or whole, total))
    counts = c.b.like(1, total)
    for i, (w, start, end) in enumerate(zip(windows, starts, ends, strict=True)):
        at = w.positions(c)
        seen = c.b.binary(
            "and", c.b.compare("GE", at, c.b.like(start, at)), c.b.compare("LT", at, c.b.like(end, at))
        )
        along = c.b.reduce(c.b.convert(seen, total.dtype), (1,), "add")
        counts = c.b.binary("multiply", counts, c.b.broadcast(along, total.shape, (first + i,)))
    return c.b.binary("divide", total, counts)


@lowers("aten.avg_pool2d", "aten.avg_pool3d", ignores=("ceil_mode",))
def _avg_pool(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    """How many windows there are the result's shape says."""
    n = 3 if "3d" in c.op else 2
    first = len(x.shape) - n
    windows = _pool_windows(x.shape[first:], c.out[0].shape[first:], kernel, stride, padding)
    total = c.b.reduce(unfolded(c, x, first, windows), _inside(windows, first), "add")
    return _averaged(c, total, windows, padding, count_include_pad, divisor)


@lowers("aten.avg_pool2d_backward", "aten.avg_pool3d_backward", ignores=("ceil_mode",))
def _avg_pool_backward(
    c: Context,
    grad: Value,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_include_pad: bool,
    divisor: int | None,
) -> Value:
    n = 3 if "3d" in c.op else 2
    first = len(x.shape) - n
    windows = _pool_windows(x.shape[first:], grad.shape[first:], kernel, stride, padding)
    share = _averaged(c, grad, windows, padding, count_include_pad, divisor)
    for dim, w in zip(_inside(windows, first), windows, strict=True):
        share = c.b.insert(share, dim, w.kernel)
    return folded(c, share, first, windows)


@lowers("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", ignores=("ceil_mode",))
def _max_pool(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> tuple[Value, Value]:
    """The largest element, and the first place of it, counted through the whole plane."""
    n = 3 if "3d" in c.op else 2
    first = len(x.shape) - n
    windows = _pool_windows(x.shape[first:], c.out[0].shape[first:], kernel, stride, padding, dilation)
    inside = _inside(windows, first)
    seen = unfolded(c, x, first, windows, -math.inf)
    top = c.b.reduce(seen, inside, "max")
    wide = top
    for dim, w in zip(inside, windows, strict=True):
        wide = c.b.insert(wide, dim, w.kernel)
    here, place = c.b.compare("EQ", seen, wide), None
    for i, w in enumerate(windows):
        at = w.positions(c)
        dims = (first + 2 * i, first + 2 * i + 1)
        real = c.b.binary(
            "and",
            c.b.compare("GE", at, c.b.like(w.low, at)),
            c.b.compare("LT", at, c.b.like(w.low + w.size, at)),
        )
        here = c.b.binary("and", here, c.b.broadcast(real, here.shape, dims))
        at = c.b.broadcast(c.b.binary("subtract", at, c.b.like(w.low, at)), here.shape, dims)
        place = at if place is None else c.b.binary("add", c.b.scale(place, w.size), at)
    assert place is not None
    none = c.b.like(math.prod(w.size for w in windows), place)
    return top, c.b.reduce(c.b.select(here, place, none), inside, "min")


@lowers(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    ignores=("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
)
def _max_pool_backward(c: Context, grad: Value, x: Value, indices: Value) -> Value:
    n = 3 if "3d" in c.op else 2
    lead = x.shape[: len(x.shape) - n]
    values, places = (c.b.reshape(v, (*lead, math.prod(v.shape[len(lead) :]))) for v in (grad, indices))
    return c.b.reshape(added_along(c, values, places, math.prod(x.shape[len(lead) :])), x.shape)


def _spans(size: int, count: int) -> list[tuple[int, int]]:
    """Start and length of the windows of an adaptive pool."""
    return [(i * size // count, -(-(i + 1) * size // count) - i * size // count) for i in range(count)]


@lowers("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", ignores=("output_size",))
def _adaptive(c: Context, x: Value) -> Value:
    n = 3 if "3d" in c.op else 2
    for dim in range(len(x.shape) - n, len(x.shape)):
        parts = []
        for start, length in _spans(x.shape[dim], c.out[0].shape[dim]):
            total = c.b.reduce(c.b.narrow(x, dim, start, length), (dim,), "add", keepdim=True)
            parts.append(c.b.binary("divide", total, c.b.like(length, total)))
        x = c.b.concatenate(parts, dim)
    return x


@lowers("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward")
def _adaptive_backward(c: Context, grad: Value, x: Value) -> Value:
    n = 3 if "3d" in c.op else 2
    for dim in range(len(x.shape) - n, len(x.shape)):
        size, total = x.shape[dim], None
        for i, (start, length) in enumerate(_spans(size, grad.shape[dim])):
            share = c.b.narrow(grad, dim, i, 1)
            share = c.b.binary("divide", share, c.b.like(length, share))
            wide = c.b.expand(share, [length if d == dim else m for d, m in enumerate(share.shape)])
            part = fitted(c, wide, dim, start, size, 0)
            total = part if total is None else c.b.binary("add", total, part)
        assert total is not None
        grad = total
    return grad


# --- folding ---------------------------------------------------------------------------------------------


def _columns(
    c: Context,
    sizes: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> list[Window]:
    kernel, dilation, padding, stride = (_each(v, 2) for v in (kernel, dilation, padding, stride))
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(sizes, kernel, dilation, padding, stride, strict=True)
    ]
    return _windows(sizes, counts, kernel, stride, padding, dilation)


@lowers("aten.im2col")
def _im2col(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    first = len(x.shape) - 2
    wide = unfolded(c, x, first, _columns(c, x.shape[first:], kernel, dilation, padding, stride))
    order = [first + 1, first + 3, first, first + 2]
    return c.b.reshape(c.b.transpose(wide, [*range(first), *order]), c.out[0].shape)


@lowers("aten.col2im")
def _col2im(
    c: Context,
    x: Value,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    windows = _columns(c, size, kernel, dilation, padding, stride)
    lead = c.out[0].shape[:-2]
    (a, b) = windows
    wide = c.b.reshape(x, (*lead, a.kernel, b.kernel, a.count, b.count))
    first = len(lead)
    wide = c.b.transpose(wide, [*range(first), first + 2, first, first + 3, first + 1])
    return folded(c, wide, first, windows)


@lowers("aten.unfold_backward")
def _unfold_backward(c: Context, grad: Value, sizes: Sequence[int], dim: int, size: int, step: int) -> Value:
    dim, rank = dim % len(sizes), len(grad.shape)
    window = Window(sizes[dim], grad.shape[dim], size, step)
    moved = c.b.transpose(grad, [*range(dim + 1), rank - 1, *range(dim + 1, rank - 1)])
    return folded(c, moved, dim, [window])
