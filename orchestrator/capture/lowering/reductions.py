"""Sums, means, maxima and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.types import TensorType

from ..builder import Value
from .choosing import masked_extreme
from .positive import magnitude
from .table import Context, Lower, axis_of, dims_of, lowers


@lowers("aten.sum")
def _sum(c: Context, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    x = c.value(x, c.out[0].dtype)
    kind, dims = "or" if x.dtype == "i1" else "add", dims_of(dim, len(x.shape))
    total = row_sums(c, x, *dims) if len(dims) == 1 and kind == "add" else None
    if total is not None:
        return total if keepdim else c.b.reshape(total, [n for d, n in enumerate(x.shape) if d not in dims])
    return c.b.reduce(x, dims, kind, keepdim=keepdim)


def row_sums(c: Context, x: Value, axis: int) -> Value | None:
    """Sums along an axis, which keeps size 1, of what has one place in each row that is not 0, and of others
    that are alike along it; ``None`` where it is anything else.

    The gradient of a look-up along an axis is one such: the place exists, or the look-up had failed.
    """
    draft = c.b.draft(x)
    if x.name in c.one_hot_rows:
        rows = c.one_hot_rows[x.name]
        return rows.total if rows.axis == axis else None
    if draft is None or draft.name not in ("add", "negate"):
        return None
    parts = [c.b.operand(x, i) for i in range(len(draft.ins))]
    found = [row_sums(c, part, axis) for part in parts]
    if all(total is None for total in found):
        return None
    if draft.name == "negate":
        return None if found[0] is None else c.b.unary("negate", found[0])
    a, b = (
        c.b.scale(c.b.narrow(part, axis, 0, 1), part.shape[axis])
        if total is None and c.b.alike(part.name, axis)
        else total
        for part, total in zip(parts, found, strict=True)
    )
    return None if a is None or b is None else c.b.binary("add", a, b)


@lowers("aten.mean")
def _mean(c: Context, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """The sum divided by the exact number of summands."""
    x = c.value(x, c.out[0].dtype)
    dims = dims_of(dim, len(x.shape))
    total = c.b.reduce(x, dims, "add", keepdim=keepdim)
    return c.b.binary("divide", total, c.b.like(math.prod(x.shape[d] for d in dims), total))


@lowers("aten.linalg_vector_norm")
def _norm(
    c: Context,
    x: Value,
    order: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
) -> Value:
    """``(sum of |x|^p)^(1/p)``; the limits for infinite orders, and the count of non-zeros for order 0."""
    x = c.value(x, c.out[0].dtype)
    dims = dims_of(dim, len(x.shape))
    if order == 2:
        return c.b.unary("sqrt", c.b.reduce(c.b.binary("multiply", x, x), dims, "add", keepdim=keepdim))
    if order == 0:
        counted = c.b.convert(c.b.compare("NE", x, c.b.like(0, x)), x.dtype)
        return c.b.reduce(counted, dims, "add", keepdim=keepdim)
    size = magnitude(c.b, x)
    if math.isinf(order):
        return c.b.reduce(size, dims, "max" if order > 0 else "min", keepdim=keepdim)
    if order == 1:
        return c.b.reduce(size, dims, "add", keepdim=keepdim)
    total = c.b.reduce(c.b.binary("power", size, c.b.like(order, size)), dims, "add", keepdim=keepdim)
    return c.b.binary("power", total, c.b.like(1 / Fraction(repr(float(order))), total))


def _extreme(kind: str, of_booleans: str) -> Lower:
    def lower(c: Context, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
        chosen = of_booleans if x.dtype == "i1" else kind
        return c.b.reduce(x, dims_of(dim, len(x.shape)), chosen, keepdim=keepdim)

    return lower


lowers("aten.amax", "aten.max.default")(_extreme("max", "or"))
lowers("aten.amin", "aten.min.default")(_extreme("min", "and"))


def _first(c: Context, x: Value, dim: int, kind: str, keepdim: bool) -> tuple[Value, Value]:
    """The extreme element along a dimension, and the first place of it."""
    if x.dtype == "i1":
        x = c.b.convert(x, "i64")
    known = masked_extreme(c, x, dim, largest=kind == "max")
    if known is not None:
        shape = known.shape if keepdim else (*known.shape[:dim], *known.shape[dim + 1 :])
        return c.b.reduce(x, (dim,), kind, keepdim=keepdim), c.b.reshape(known, shape)
    top = c.b.reduce(x, (dim,), kind, keepdim=True)
    size = x.shape[dim] if x.shape else 1
    place = c.b.iota(dim, x.shape) if x.shape else c.b.constant(0, TensorType("i64", ()))
    # One element is the extreme one: the others may have any number up to the last, which shows the range.
    here = c.b.select(c.b.compare("EQ", x, top), place, c.b.like(max(size - 1, 0), place))
    return c.b.reduce(x, (dim,), kind, keepdim=keepdim), c.b.reduce(here, (dim,), "min", keepdim=keepdim)


def _by_number(kind: str, values: bool) -> Lower:
    def argument(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None:
            place = _first(c, c.b.flat(x), 0, kind, False)[1]
            return c.b.reshape(place, c.out[0].shape)
        return _first(c, x, axis_of(dim, len(x.shape)), kind, keepdim)[1]

    def extreme(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        top, place = _first(c, x, axis_of(dim, len(x.shape)), kind, keepdim)
        return c.b.convert(top, c.out[0].dtype), place

    return extreme if values else argument


for _kind in ("max", "min"):
    lowers(f"aten.arg{_kind}")(_by_number(_kind, False))
    lowers(f"aten.{_kind}.dim")(_by_number(_kind, True))


def _truth(kind: str) -> Lower:
    def lower(c: Context, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
        found = _joined(c, c.value(x, "i1"), dims_of(dim, len(x.shape)), kind)
        return c.b.convert(c.b.reshape(found, c.out[0].shape) if keepdim else found, c.out[0].dtype)

    return lower


def _joined(c: Context, x: Value, dims: Sequence[int], kind: str) -> Value:
    """``any`` or ``all`` of elements; of what is spread along other dimensions before it is spread.

    So a mask of positions stays one, whatever it is spread over (heads that ranks share, say).
    """
    spread = c.b.made_by(x, "broadcast_in_dim")
    if spread is None or 0 in x.shape:  # of no copy of it, the operand says nothing
        return c.b.reduce(x, dims, kind)
    places = [int(str(p)) for p in spread.attr("dims")]  # type: ignore[union-attr]
    inner = c.b.reduce(c.b.operand(x), [i for i, p in enumerate(places) if p in dims], kind)
    kept = [d for d in range(len(x.shape)) if d not in dims]
    return c.b.broadcast(inner, [x.shape[d] for d in kept], [kept.index(p) for p in places if p in kept])


lowers("aten.any")(_truth("or"))
lowers("aten.all")(_truth("and"))


@dataclass(frozen=True)
class Shifted:
    """The parts of a softmax along one (kept) dimension; it is ``powers / total``."""

    top: Value
    shifted: Value
    powers: Value
    total: Value


def shifted_exponentials(c: Context, x: Value, *dims: int) -> Shifted:
    """Maximum, ``x - maximum``, its exponential, and the sum of that."""
    top = c.b.reduce(x, dims, "max", keepdim=True)
    shifted = c.b.binary("subtract", x, top)
    powers = c.b.unary("exponential", shifted)
    return Shifted(top, shifted, powers, c.b.reduce(powers, dims, "add", keepdim=True))


@lowers("aten.logsumexp", ignores=("keepdim",))
def _logsumexp(c: Context, x: Value, dim: int | Sequence[int]) -> Value:
    """As it is defined; PyTorch has a case of its own for rows that are masked as a whole, which none is."""
    x = c.value(x, c.out[0].dtype)
    parts = shifted_exponentials(c, x, *dims_of(dim, len(x.shape)))
    found = c.b.binary("add", parts.top, c.b.unary("log", parts.total))
    return c.b.reshape(found, c.out[0].shape)


@lowers("aten._softmax", ignores=("half_to_float",))
def _softmax(c: Context, x: Value, dim: int) -> Value:
    x = c.value(x, c.out[0].dtype)
    parts = shifted_exponentials(c, x, axis_of(dim, len(x.shape)))
    return c.b.binary("divide", parts.powers, parts.total)


@lowers("aten._softmax_backward_data")
def _softmax_backward(c: Context, grad: Value, out: Value, dim: int) -> Value:
    weighted = c.b.binary("multiply", grad, out)
    total = c.b.reduce(weighted, (axis_of(dim, len(out.shape)),), "add", keepdim=True)
    return c.value(c.b.binary("subtract", weighted, c.b.binary("multiply", out, total)), c.out[0].dtype)
