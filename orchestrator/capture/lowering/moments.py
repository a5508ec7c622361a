"""Variances and what normalises by them over rows, groups and batches, by their defining formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..builder import Value
from .table import Context, dims_of, lowers


def _moments(
    c: Context, x: Value, dim: int | Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[Value, Value]:
    """Variance and mean. ``correction`` is taken from the number of elements, 1 if not given."""
    x = c.value(x, c.out[0].dtype)
    dims = dims_of(dim, len(x.shape))
    count = math.prod(x.shape[d] for d in dims)
    less = 1 if correction is None else correction
    if count - less <= 0:
        raise c.refuse(f"the variance of {count} elements with correction {less}")
    mean = c.b.reduce(x, dims, "add", keepdim=True)
    mean = c.b.binary("divide", mean, c.b.like(count, mean))
    centred = c.b.binary("subtract", x, mean)
    total = c.b.reduce(c.b.binary("multiply", centred, centred), dims, "add", keepdim=keepdim)
    kept = mean.shape if keepdim else [n for d, n in enumerate(x.shape) if d not in dims]
    return c.b.binary("divide", total, c.b.like(count - less, total)), c.b.reshape(mean, kept)


@lowers("aten.var.correction", "prims.var", ignores=("output_dtype",))
def _var(
    c: Context,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    return _moments(c, x, dim, correction, keepdim)[0]


@lowers("aten.std.correction")
def _std(
    c: Context,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    return c.b.unary("sqrt", _moments(c, x, dim, correction, keepdim)[0])


@lowers("aten.var_mean.correction")
def _var_mean(
    c: Context,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    return _moments(c, x, dim, correction, keepdim)


@lowers("aten.std_mean.correction")
def _std_mean(
    c: Context,
    x: Value,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    var, mean = _moments(c, x, dim, correction, keepdim)
    return c.b.unary("sqrt", var), mean
