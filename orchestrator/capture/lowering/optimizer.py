"""The fused pointwise ops of optimizers."""

from __future__ import annotations

from ..builder import Value
from .table import Context, Operand, lowers


@lowers("aten.lerp")
def _lerp(c: Context, start: Value, end: Value, weight: Operand) -> Value:
    """``start + weight * (end - start)``."""
    start = c.value(start, c.out[0].dtype)
    difference = c.b.binary("subtract", c.value(end, start.dtype), start)
    return c.b.binary("add", start, c.b.binary("multiply", c.value(weight, start.dtype), difference))


def _scaled(c: Context, x: Value, value: float) -> Value:
    return x if value == 1 else c.b.scale(x, value)


@lowers("aten.addcmul")
def _addcmul(c: Context, x: Value, y: Value, z: Value, *, value: float = 1) -> Value:
    dtype = c.out[0].dtype
    product = c.b.binary("multiply", c.value(y, dtype), c.value(z, dtype))
    return c.b.binary("add", c.value(x, dtype), _scaled(c, product, value))


@lowers("aten.addcdiv")
def _addcdiv(c: Context, x: Value, y: Value, z: Value, *, value: float = 1) -> Value:
    dtype = c.out[0].dtype
    quotient = c.b.binary("divide", c.value(y, dtype), c.value(z, dtype))
    return c.b.binary("add", c.value(x, dtype), _scaled(c, quotient, value))
