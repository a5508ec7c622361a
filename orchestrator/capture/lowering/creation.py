"""Tensors made from nothing: constants, ranges and uninitialised memory."""

from __future__ import annotations

from typing import Any

from ..builder import Literal, Value
from ..recorder import WRITTEN_OUT, Node
from .table import Context, Lower, effects, lowers


@effects(
    "aten.empty.memory_format",
    "aten.empty_strided.default",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def _empty(driver: Any, node: Node) -> None:
    driver.memory.allocate(node.outs.storage, node.outs.dtype, node.outs.geometry)


def _filled(value: Literal) -> Lower:
    return lambda c: c.b.constant(value, c.out[0])


_SHAPE = ("self", "size")
lowers("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.zero", ignores=_SHAPE)(_filled(0))
lowers("aten.ones", "aten.ones_like", "aten.new_ones", ignores=_SHAPE)(_filled(1))


@lowers(*("aten.full", "aten.full_like", "aten.new_full", "aten.fill", "aten.scalar_tensor"), ignores=_SHAPE)
def _full(c: Context, value: Value | Literal) -> Value:
    return c.b.expand(c.value(value, c.out[0].dtype), c.out[0].shape)


@lowers("aten.arange", ignores=("end",))
def _arange(c: Context, start: float = 0, step: float = 1) -> Value:
    """``start + step * iota``."""
    out = c.b.emit("iota", (), c.out[0], dim=0)
    if step != 1:
        out = c.b.scale(out, step)
    return out if start == 0 else c.b.binary("add", out, c.b.like(start, out))


@lowers("aten.tril_indices", "aten.triu_indices")
def _triangle(c: Context, row: int, col: int, offset: int = 0) -> Value:
    """Rows and columns of the elements on and below, or above, a diagonal, row by row."""
    lower = c.op.startswith("aten.tril")
    places = [
        (i, j) for i in range(row) for j in range(col) if (j - i <= offset if lower else j - i >= offset)
    ]
    if not 0 < len(places) <= WRITTEN_OUT:
        raise c.refuse(f"a list of {len(places)} places: it is written out, if it has 1 to {WRITTEN_OUT}")
    return c.b.elements([i for i, _ in places] + [j for _, j in places], c.out[0])
