"""Writes and sums at places that an index tensor names along one dimension: scatter, index_add and their kin.

An element of the result is reached by some entries of the index, those that are equal to its own position: a
one-hot matrix says which. Sums are contractions with it. A value that is *written* where two entries may
meet is not defined by PyTorch, and refused unless both would write the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..builder import Literal, Value
from .indexing import back, last
from .places import counted_axis, distinct_axis
from .ranges import wrapped
from .table import Context, OneHotRows, Operand, axis_of, lowers


def _one_hot(c: Context, index: Value, size: int) -> Value:
    """[…, entries, positions]: does the entry name the position?"""
    rank = len(index.shape)
    wide = c.b.insert(index, rank, size)
    return c.b.compare("EQ", wide, c.b.iota(rank, wide.shape, index.dtype))


def _moved(c: Context, x: Value, dim: int, sizes: Sequence[int] | None = None) -> Value:
    """``x`` with ``dim`` last, of the other dimensions only the first ``sizes`` elements."""
    rank = len(x.shape)
    order = last(dim, rank)
    return c.b.transpose(x if sizes is None else c.b.slice(x, [0] * rank, sizes), order)


def _whole(c: Context, x: Value, like: Value, value: Literal) -> Value:
    """``x`` of the leading part of ``like``, filled up to its shape."""
    high = [n - m for n, m in zip(like.shape, x.shape, strict=True)]
    if not any(high):
        return x
    if x.dtype == "i1":
        return c.b.convert(c.b.pad(c.b.convert(x, "i64"), int(value), [0] * len(high), high), "i1")
    return c.b.pad(x, value, [0] * len(high), high)


def _scattered(c: Context, x: Value, dim: int, index: Value, source: Operand, kind: str) -> Value:
    """``kind`` is what becomes of a position that entries name: ``set``, ``add``, ``max`` or ``min``."""
    if not x.shape:
        flat = c.b.reshape(source, (1,)) if isinstance(source, Value) else source
        result = _scattered(c, c.b.reshape(x, (1,)), 0, c.b.reshape(index, (1,)), flat, kind)
        return c.b.reshape(result, ())
    dim, rank = axis_of(dim, len(x.shape)), len(x.shape)
    if not dim and kind in ("set", "add") and isinstance(source, Value):
        packed = c.rows.write_along(x, index, source, add=kind == "add")
        if packed is not None:
            return packed
    target, at = _moved(c, x, dim), _moved(c, index, dim)
    one_hot = _one_hot(c, at, x.shape[dim])
    if isinstance(source, Value) and c.b.made_by(source, "constant"):
        source = c.b.broadcast(source, at.shape, range(rank))
    elif isinstance(source, Value) and source.shape:
        source = _moved(c, source, dim, index.shape)
    else:
        source = c.b.expand(c.value(source, x.dtype), at.shape)
    if kind == "add":
        added = added_along(c, source, at, x.shape[dim])
        result = c.b.binary("add", target, _whole(c, added, target, 0))
    elif kind == "set" and x.type.sort == "Real" and _is_zero(c, target) and _each_once(c, at):
        result = _whole(c, added_along(c, source, at, x.shape[dim]), target, 0)
    elif kind == "set":
        named = (*at.shape[:-1], x.shape[dim])  # by one entry: that is easier to relate than by any of one
        here = c.b.reshape(one_hot, named) if at.shape[-1] == 1 else c.b.reduce(one_hot, (rank - 1,), "or")
        result = c.b.select(_whole(c, here, target, False), _written(c, at, source, one_hot, target), target)
    else:
        nothing = -math.inf if kind == "max" else math.inf
        if x.type.sort != "Real":
            raise c.refuse(f"the {kind} of integers at places of which some may be named by nobody")
        wide = c.b.insert(source, rank, x.shape[dim])
        found = c.b.reduce(c.b.select(one_hot, wide, c.b.like(nothing, wide)), (rank - 1,), kind)
        result = c.b.binary(
            {"max": "maximum", "min": "minimum"}[kind], target, _whole(c, found, target, nothing)
        )
    moved = c.b.transpose(result, back(last(dim, rank)))
    if at.shape[-1] == 1 and kind != "max" and kind != "min" and _is_zero(c, target):
        total = c.b.transpose(_whole(c, source, c.b.narrow(target, rank - 1, 0, 1), 0), back(last(dim, rank)))
        c.one_hot_rows[moved.name] = OneHotRows(dim, total)
    return moved


def _written(c: Context, at: Value, source: Value, one_hot: Value, target: Value) -> Value:
    """What stands at each position that an entry names, of the shape of ``target``."""
    rank, constant = len(at.shape), c.b.made_by(source, "constant")
    if constant is not None:
        return c.b.broadcast(source, target.shape, range(rank))
    if at.shape[-1] == 1:
        wide = (*source.shape[:-1], target.shape[-1])
        return _whole(c, c.b.broadcast(source, wide, range(rank)), target, 0)
    if counted_axis(c, at) == rank - 1:
        return _whole(c, source, target, 0)
    if _each_once(c, at):  # one entry at most is not zero
        return _whole(c, added_along(c, source, at, target.shape[-1]), target, 0)
    raise c.refuse("values at indices of which two may be equal: which of them stays is not defined")


def _is_zero(c: Context, x: Value) -> bool:
    literal = c.b.made_by(x, "constant")
    return literal is not None and literal.attr("value") == "0"


def _each_once(c: Context, at: Value) -> bool:
    """Does no row of ``at`` name a position twice?"""
    return distinct_axis(c, at) == len(at.shape) - 1


def added_along(c: Context, values: Value, index: Value, size: int) -> Value:
    """Zeros, the values added at places that ``index`` names along the last dimension, of ``size``."""
    batch, entries = tuple(range(len(index.shape) - 1)), (len(index.shape) - 1,)
    hot = c.b.convert(_one_hot(c, index, size), values.dtype)
    if index.shape[-1] == 1:  # nothing is summed, and what only scales and moves is easier to relate
        shape = (*index.shape[:-1], size)
        return c.b.binary(
            "multiply", c.b.broadcast(values, shape, range(len(shape))), c.b.reshape(hot, shape)
        )
    return c.b.dot(values, hot, batch=(batch, batch), contract=(entries, entries))


@lowers("aten.scatter")
def _scatter(c: Context, x: Value, dim: int, index: Value, src: Operand, reduce: str | None = None) -> Value:
    if reduce not in (None, "add"):
        raise c.refuse(f"scatter with reduce={reduce!r}")
    return _scattered(c, x, dim, index, src, "set" if reduce is None else "add")


@lowers("aten.scatter_add")
def _scatter_add(c: Context, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scattered(c, x, dim, index, src, "add")


_KINDS = {"sum": "add", "amax": "max", "amin": "min"}


@lowers("aten.scatter_reduce")
def _scatter_reduce(
    c: Context, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if reduce not in _KINDS or not include_self:
        raise c.refuse(f"scatter_reduce with reduce={reduce!r}, include_self={include_self}")
    return _scattered(c, x, dim, index, src, _KINDS[reduce])


def _rows(c: Context, x: Value, dim: int, index: Value) -> tuple[Value, int, list[int]]:
    """``x`` with ``dim`` first, how many rows it has, and the order that undoes this."""
    rank = len(x.shape)
    dim = axis_of(dim, rank)
    order = [dim, *(d for d in range(rank) if d != dim)] if rank else [0]
    moved = c.b.transpose(x if rank else c.b.reshape(x, (1,)), order)
    return moved, moved.shape[0], back(order)


@lowers("aten.index_add")
def _index_add(c: Context, x: Value, dim: int, index: Value, source: Value, *, alpha: float = 1) -> Value:
    if x.shape and not axis_of(dim, len(x.shape)):
        scaled = source if alpha == 1 else c.b.scale(source, alpha)
        found = c.rows.write(x, index, scaled, add=True)
        if found is not None:
            return found
    rows, size, order = _rows(c, x, dim, index)
    given, _, _ = _rows(c, source, dim, index)
    index = c.b.flat(index)
    hot = c.b.convert(_one_hot(c, index, size), x.dtype)
    added = c.b.dot(hot, given, contract=((0,), (0,)))
    added = added if alpha == 1 else c.b.scale(added, alpha)
    return c.b.reshape(c.b.transpose(c.b.binary("add", rows, added), order), x.shape)


@lowers("aten.index_fill")
def _index_fill(c: Context, x: Value, dim: int, index: Value, value: Operand) -> Value:
    rows, size, order = _rows(c, x, dim, index)
    here = c.b.reduce(_one_hot(c, wrapped(c, c.b.flat(index), size), size), (0,), "or")
    entry = c.value(value, x.dtype)
    result = c.b.select(c.b.broadcast(here, rows.shape, (0,)), entry, rows)
    return c.b.reshape(c.b.transpose(result, order), x.shape)
