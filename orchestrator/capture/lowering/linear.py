"""Matrix products."""

from __future__ import annotations

from ..builder import Value
from .table import Context, lowers


@lowers("aten.mm")
def _mm(c: Context, x: Value, y: Value) -> Value:
    return c.b.dot(x, y, contract=((1,), (0,)))


@lowers("aten.bmm")
def _bmm(c: Context, x: Value, y: Value) -> Value:
    return c.b.dot(x, y, contract=((2,), (1,)), batch=((0,), (0,)))


@lowers("aten.mv")
def _mv(c: Context, x: Value, y: Value) -> Value:
    return c.b.dot(x, y, contract=((1,), (0,)))


@lowers("aten.addmm")
def _addmm(c: Context, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    product = c.b.dot(x, y, contract=((1,), (0,)))
    product = product if alpha == 1 else c.b.scale(product, alpha)
    return c.b.binary("add", bias if beta == 1 else c.b.scale(bias, beta), product)
