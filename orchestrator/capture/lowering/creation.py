"""Tensors made from nothing: constants, ranges and uninitialised memory."""

from __future__ import annotations

from typing import Any

from ..builder import Literal, Value
from ..recorder import Node
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
    return lambda c, *args, **kwargs: c.b.constant(value, c.out[0])


lowers("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.zero")(_filled(0))
lowers("aten.ones", "aten.ones_like", "aten.new_ones")(_filled(1))


@lowers("aten.full", "aten.full_like", "aten.new_full")
def _full(c: Context, _shape: object, value: Literal, **_kwargs: Any) -> Value:
    return c.b.constant(value, c.out[0])


@lowers("aten.fill")
def _fill(c: Context, _x: Value, value: Value | Literal) -> Value:
    return c.b.expand(c.value(value, c.out[0].dtype), c.out[0].shape)


@lowers("aten.scalar_tensor")
def _scalar_tensor(c: Context, value: Literal, **_kwargs: Any) -> Value:
    return c.b.constant(value, c.out[0])


@lowers("aten.arange")
def _arange(c: Context, *bounds: int, **_kwargs: Any) -> Value:
    """``arange(end)``, ``(start, end)`` or ``(start, end, step)``: start + step * iota."""
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    out = c.b.emit("iota", (), c.out[0], dim=0)
    if step != 1:
        out = c.b.scale(out, step)
    return out if start == 0 else c.b.binary("add", out, c.b.like(start, out))
