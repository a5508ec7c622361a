"""The fused pointwise ops of optimizers, and gradients that these may have written to."""

from __future__ import annotations

from typing import Any

from certificates.plan.types import TensorType

from ..builder import Value
from ..errors import LoweringError
from ..recorder import Node
from ..spoilt import SPOILS
from .table import Context, Operand, effects, lowers


@effects(SPOILS)
def _spoilt(driver: Any, node: Node) -> None:
    for ref in node.args:
        error = LoweringError(
            "a gradient is read after an optimizer's step that may have written to it: PyTorch's formula for "
            "many parameters at once (foreach) does, the one for each does not",
            op="optimizer.step",
            instead="read it before the step, or make the optimizer with foreach=False",
        )
        driver.write(ref, driver.refused(error, TensorType(ref.dtype, ref.geometry.size)))


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
