"""Elements in another order, repeated, or summed up from the first on: flip, roll, repeat, cumsum."""

from __future__ import annotations

from collections.abc import Sequence

from ..builder import Value
from .indexing import back, last
from .table import Context, axis_of, lowers


@lowers("aten.flip", "prims.rev")
def _flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """A look-up of the last element first."""
    for dim in {axis_of(d, len(x.shape)) for d in dims if x.shape}:
        size = x.shape[dim]
        count = c.b.iota(0, (size,))
        x = c.b.gather(x, c.b.binary("subtract", c.b.like(size - 1, count), count), axis=dim, batch_dims=0)
    return x


@lowers("aten.roll")
def _roll(c: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Two pieces change places; without ``dims`` those of the row-major elements."""
    if not x.shape:
        return x
    if not dims:
        flat = c.b.flat(x)
        return c.b.reshape(_rolled(c, flat, sum(shifts), 0), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(c, x, shift, axis_of(dim, len(x.shape)))
    return x


def _rolled(c: Context, x: Value, shift: int, dim: int) -> Value:
    size = x.shape[dim]
    cut = -shift % size
    if not cut:
        return x
    return c.b.concatenate([c.b.narrow(x, dim, cut, size - cut), c.b.narrow(x, dim, 0, cut)], dim)


@lowers("aten.repeat")
def _repeat(c: Context, x: Value, repeats: Sequence[int]) -> Value:
    x = c.b.reshape(x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    for dim, times in enumerate(repeats):
        if times > 1:
            wide = c.b.insert(x, dim, times)
            x = c.b.reshape(wide, (*x.shape[:dim], times * x.shape[dim], *x.shape[dim + 1 :]))
    return x


@lowers("aten.cumsum")
def _cumsum(c: Context, x: Value, dim: int) -> Value:
    """A contraction with the matrix of which element comes before which."""
    x = c.value(x, c.out[0].dtype)
    if not x.shape:
        return x
    dim, rank = axis_of(dim, len(x.shape)), len(x.shape)
    square = (x.shape[dim], x.shape[dim])
    before = c.b.convert(c.b.compare("LE", c.b.iota(0, square), c.b.iota(1, square)), x.dtype)
    return c.b.transpose(c.b.dot(x, before, contract=((dim,), (0,))), back(last(dim, rank)))


def _nearest(sizes: Sequence[int], wanted: Sequence[int], scales: Sequence[float | None]) -> list[int] | None:
    """How often each element is repeated; ``None`` if that is no whole number, the same for all."""
    times = [m // n for n, m in zip(sizes, wanted, strict=True)]
    whole = all(n * t == m for n, m, t in zip(sizes, wanted, times, strict=True))
    given = zip(scales, times, strict=True)
    return times if whole and all(s is None or s == t for s, t in given) else None


def _repeated(
    c: Context, sizes: Sequence[int], wanted: Sequence[int], scales: Sequence[float | None]
) -> list[int]:
    times = _nearest(sizes, wanted, scales)
    if times is None:
        raise c.refuse(f"an image of {list(sizes)} made one of {list(wanted)}, which is no multiple of it")
    return times


def _upsampled(c: Context, x: Value, wanted: Sequence[int], scales: Sequence[float | None]) -> Value:
    first = len(x.shape) - len(wanted)
    for dim, times in enumerate(_repeated(c, x.shape[first:], wanted, scales), first):
        wide = c.b.insert(x, dim + 1, times)
        x = c.b.reshape(wide, (*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]))
    return x


def _summed(c: Context, grad: Value, sizes: Sequence[int], scales: Sequence[float | None]) -> Value:
    first = len(grad.shape) - len(scales)
    for dim, times in enumerate(_repeated(c, sizes[first:], grad.shape[first:], scales), first):
        shape = (*grad.shape[:dim], sizes[dim], times, *grad.shape[dim + 1 :])
        grad = c.b.reduce(c.b.reshape(grad, shape), (dim + 1,), "add")
    return grad


@lowers("aten.upsample_nearest1d", "aten._upsample_nearest_exact1d")
def _upsample1(c: Context, x: Value, size: Sequence[int], scale: float | None = None) -> Value:
    return _upsampled(c, x, size, [scale])


@lowers("aten.upsample_nearest2d", "aten._upsample_nearest_exact2d")
def _upsample2(
    c: Context, x: Value, size: Sequence[int], high: float | None = None, wide: float | None = None
) -> Value:
    return _upsampled(c, x, size, [high, wide])


@lowers(
    "aten.upsample_nearest1d_backward", "aten._upsample_nearest_exact1d_backward", ignores=("output_size",)
)
def _upsample1_backward(c: Context, grad: Value, sizes: Sequence[int], scale: float | None = None) -> Value:
    return _summed(c, grad, sizes, [scale])


@lowers(
    "aten.upsample_nearest2d_backward", "aten._upsample_nearest_exact2d_backward", ignores=("output_size",)
)
def _upsample2_backward(
    c: Context, grad: Value, sizes: Sequence[int], high: float | None = None, wide: float | None = None
) -> Value:
    return _summed(c, grad, sizes, [high, wide])
