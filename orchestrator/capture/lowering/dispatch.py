"""Rows of tokens on their way to experts and back: counts, splits, exchanges and grouped products.

What is an order of rows, and what of a routing's integers are its counts, :mod:`.row_orders` knows.
"""

from __future__ import annotations

from typing import Any

from ..amounts import Amount
from ..builder import Value
from ..errors import GroupError
from ..recorder import Node
from .collectives import all_to_all, apart_in_memory, contiguous
from .sizes import has_amount
from .table import Context, effects, lowers

_SPLITS = (
    "an all_to_all of packed rows by splits that are not the counts of the rows that go to each member and "
    "come from it, or of rows that are not in the order in which they go"
)
_BY_COUNTS = (
    "rows sorted by expert; counts by expert exchanged with all_to_all_single; then sums of both by rank, "
    "with tolist(), as input and output splits; and the way back with both exchanged"
)
_PRODUCT = "torch._grouped_mm(rows, weights, offs=counts.cumsum(0)) of rows that lie by expert, and no bias"


@effects("aten._local_scalar_dense.default")
def _read_element(driver: Any, node: Node) -> None:
    """An element becomes a number in Python: what it is decides what sizes and splits made of it are."""
    found = driver.context.routing.of(driver.read(node.args[0]))
    if found is not None and isinstance(node.outs, Amount):
        driver.sizes.read(node.outs, found)


@effects("dist.all_to_all_single", "_c10d_functional.all_to_all_single.default")
def _all_to_all_single(driver: Any, node: Node) -> None:
    """Equal pieces, or rows that go where counts say; counts themselves are noted as what they are."""
    if node.op.startswith("dist."):
        (out,), (source,), group, out_sizes, in_sizes = node.args
        out, source = contiguous(out), contiguous(source)
        apart_in_memory(driver.context, [out], [source], group)
    else:
        source, out_sizes, in_sizes, group = node.args
        out = node.outs
    c: Context = driver.context
    x = driver.read(source)

    def send(name: str, x: Value, order: Value | None, slots: int, **attrs: Any) -> Value:
        return c.collective(name, x, group, (slots, *x.shape[1:]), order, **attrs)

    if has_amount([out_sizes, in_sizes]) or c.rows.of(x) is not None:
        splits = driver.sizes.drawn(in_sizes), driver.sizes.drawn(out_sizes)
        rows = c.rows.exchange(x, *splits, group, send)
        if rows is None:
            raise GroupError(_SPLITS, op=node.op, instead=_BY_COUNTS)
        driver.write(out, rows)
        return
    came = c.rows.counts(x, group, send)
    driver.write(out, c.b.reshape(all_to_all(c, x, out_sizes, in_sizes, group), out.geometry.size))
    if came is not None:
        c.routing.note(driver.read(out), came)


@lowers("aten._grouped_mm")
def _grouped_mm(
    c: Context,
    x: Value,
    y: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: str | None = None,
) -> Value:
    """Rows times the weights of their group, or by group the sum of products of rows."""
    if offs is None or bias is not None or len(x.shape) != 2 or len(y.shape) not in (2, 3):
        raise c.refuse("a grouped product of other than rows, or with a bias", _PRODUCT)
    return c.b.convert(c.rows.product(x, y, offs), out_dtype or x.dtype)


@lowers("aten.bincount")
def _bincount(c: Context, x: Value, weights: Value | None = None, minlength: int = 0) -> Value:
    """How often each key stands there."""
    count = c.routing.keys(x)
    if weights is not None or count is None or count > minlength:
        raise c.refuse("counts of numbers that are not known to be below their number")
    shape = (x.type.size, minlength)
    hot = c.b.compare("EQ", c.b.insert(c.b.flat(x), 1, minlength), c.b.iota(1, shape, x.dtype))
    return c.b.reduce(c.b.convert(hot, "i64"), (0,), "add")


@lowers("aten.histc")
def _histc(c: Context, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    """How often each key stands there, if there is one bin for each: the last one may end at its key."""
    keys = c.b.operand(x) if c.b.made_by(x, "convert") else x
    count = c.routing.keys(keys)
    whole = min == 0 and max in (bins - 1, bins)
    if keys.type.sort != "Int" or count is None or count > bins or not whole:
        raise c.refuse("a histogram other than of keys, a bin for each")
    return c.b.convert(_bincount(c, keys, minlength=bins), x.dtype)
