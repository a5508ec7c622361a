"""Matrix products."""

from __future__ import annotations

from ..builder import Value
from .indexing import looked_up_rows
from .table import Context, lowers


def _product(c: Context, x: Value, y: Value) -> Value:
    found = looked_up_rows(c, x, y)
    return c.b.dot(x, y, contract=((1,), (0,))) if found is None else found


@lowers("aten.mm")
def _mm(c: Context, x: Value, y: Value) -> Value:
    return _product(c, x, y)


@lowers("aten.bmm")
def _bmm(c: Context, x: Value, y: Value) -> Value:
    found = None
    if x.shape[0] == 1:  # as torch.einsum has it
        found = looked_up_rows(c, c.b.reshape(x, x.shape[1:]), c.b.reshape(y, y.shape[1:]))
    if found is not None:
        return c.b.insert(found, 0, 1)
    return c.b.dot(x, y, contract=((2,), (1,)), batch=((0,), (0,)))


@lowers("aten.mv")
def _mv(c: Context, x: Value, y: Value) -> Value:
    return c.b.dot(x, y, contract=((1,), (0,)))


@lowers("aten.addmm")
def _addmm(c: Context, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    product = _product(c, x, y)
    product = product if alpha == 1 else c.b.scale(product, alpha)
    return c.b.binary("add", bias if beta == 1 else c.b.scale(bias, beta), product)
