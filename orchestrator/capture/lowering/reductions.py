"""Sums, means, maxima and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..builder import Value
from .table import Context, Lower, axis_of, dims_of, lowers


@lowers("aten.sum")
def _sum(c: Context, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    x = c.value(x, c.out[0].dtype)
    kind = "or" if x.dtype == "i1" else "add"
    return c.b.reduce(x, dims_of(dim, len(x.shape)), kind, keepdim=keepdim)


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
    x = c.value(x, c.out[0].dtype)
    if order != 2:
        raise c.refuse(f"norm of order {order}")
    squares = c.b.binary("multiply", x, x)
    return c.b.unary("sqrt", c.b.reduce(squares, dims_of(dim, len(x.shape)), "add", keepdim=keepdim))


def _extreme(kind: str, of_booleans: str) -> Lower:
    def lower(c: Context, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
        chosen = of_booleans if x.dtype == "i1" else kind
        return c.b.reduce(x, dims_of(dim, len(x.shape)), chosen, keepdim=keepdim)

    return lower


lowers("aten.amax", "aten.max.default")(_extreme("max", "or"))
lowers("aten.amin", "aten.min.default")(_extreme("min", "and"))


@dataclass(frozen=True)
class Shifted:
    """The parts of a softmax along one (kept) dimension; it is ``powers / total``."""

    top: Value
    shifted: Value
    powers: Value
    total: Value


def shifted_exponentials(c: Context, x: Value, dim: int) -> Shifted:
    """Maximum, ``x - maximum``, its exponential, and the sum of that."""
    top = c.b.reduce(x, (dim,), "max", keepdim=True)
    shifted = c.b.binary("subtract", x, top)
    powers = c.b.unary("exponential", shifted)
    return Shifted(top, shifted, powers, c.b.reduce(powers, (dim,), "add", keepdim=True))


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
