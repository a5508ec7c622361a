"""Lookups, concatenations, padding, and writes at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..builder import Literal, Value, broadcast_shape
from ..recorder import Node
from .ranges import wrapped
from .table import Context, axis_of, effects, lowers


@lowers("aten.embedding", ignores=("padding_idx", "scale_grad_by_freq", "sparse"))
def _embedding(c: Context, weight: Value, index: Value) -> Value:
    return c.b.gather(weight, index, axis=0, batch_dims=0)


@lowers("aten.embedding_dense_backward")
def _embedding_backward(
    c: Context, grad: Value, index: Value, rows: int, padding_idx: int, scale_grad: bool
) -> Value:
    if scale_grad:
        raise c.refuse("an embedding whose gradient is scaled by frequency")
    if padding_idx >= 0:
        kept = c.b.convert(c.b.compare("NE", index, c.b.like(padding_idx, index)), grad.dtype)
        grad = c.b.binary("multiply", grad, c.b.insert(kept, len(index.shape), grad.shape[-1]))
    return _added_to_rows(c, grad, index, rows)


def _added_to_rows(c: Context, grad: Value, index: Value, rows: int) -> Value:
    """The one-hot matrix of the indices, contracted with the gradient over all positions.

    Where the gradient is zero outside a mask of positions, the matrix is instead: the product is the same,
    and a masked one-hot row has a meaning of its own.
    """
    rank = len(index.shape)
    wide = c.b.insert(index, rank, rows)
    one_hot = c.b.convert(c.b.compare("EQ", wide, c.b.iota(rank, wide.shape, index.dtype)), grad.dtype)
    while (masked := _row_mask(c, grad, rank)) is not None:
        mask, grad = masked
        one_hot = c.b.binary("multiply", one_hot, c.b.insert(mask, rank, rows))
    positions = tuple(range(rank))
    return c.b.dot(one_hot, grad, contract=(positions, positions))


def _row_mask(c: Context, grad: Value, rank: int) -> tuple[Value, Value] | None:
    """A mask of positions, and what it lets through; ``None`` if ``grad`` is nothing of the kind."""
    if c.b.made_by(grad, "multiply"):
        for i in (0, 1):
            mask = _of_positions(c, c.b.operand(grad, i), rank)
            if mask is not None and c.b.made_by(mask, "convert") and c.b.operand(mask).dtype == "i1":
                return c.b.reshape(mask, grad.shape[:rank]), c.b.operand(grad, 1 - i)
    if c.b.made_by(grad, "select"):
        inside = _of_positions(c, c.b.operand(grad), rank)
        for i in (1, 2):
            nothing = c.b.made_by(c.b.operand(grad, i), "constant")
            if inside is not None and nothing is not None and nothing.attr("value") == "0":
                mask = inside if i == 2 else c.b.unary("not", inside)
                return c.b.reshape(c.b.convert(mask, grad.dtype), grad.shape[:rank]), c.b.operand(grad, 3 - i)
    return None


def _of_positions(c: Context, x: Value, rank: int) -> Value | None:
    """What is spread over all dimensions but the first ``rank`` gives ``x``."""
    spread = c.b.made_by(x, "broadcast_in_dim")
    if spread is None:
        return x if all(n == 1 for n in x.shape[rank:]) else None
    source, dims = c.b.operand(x), spread.attr("dims")
    assert isinstance(dims, tuple)
    rest = {d: n for d, n in zip(dims, source.shape, strict=True) if not (isinstance(d, int) and d < rank)}
    whole = source.shape[: len(source.shape) - len(rest)] == x.shape[:rank]
    return source if whole and all(n == 1 for n in rest.values()) else None


@lowers("aten.gather", ignores=("sparse_grad",))
def _gather(c: Context, x: Value, dim: int, index: Value) -> Value:
    """Lookup along the last dimension; the dimensions before it must be taken whole."""
    dim = axis_of(dim, len(x.shape))
    if dim != len(x.shape) - 1 or index.shape[:dim] != x.shape[:dim]:
        raise c.refuse(f"gather of {list(index.shape)} along dimension {dim} of {list(x.shape)}")
    return c.b.gather(x, index, axis=dim, batch_dims=dim)


@lowers("aten.index")
def _index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    """Rows of ``x`` by number."""
    first = indices[0]
    if first is None or len(indices) > 1 or first.type.sort != "Int":
        raise c.refuse("an index that is no tensor of row numbers")
    return c.b.gather(x, wrapped(c, first, x.shape[0]), axis=0, batch_dims=0)


@lowers("aten.index_select")
def _index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    return c.b.gather(x, index, axis=axis_of(dim, len(x.shape)), batch_dims=0)


@lowers("aten.index_put")
def _index_put(
    c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """A masked fill, one entry per row of a matrix (``x[arange(n), columns] = values``), or added rows."""
    first = indices[0]
    if first is None or any(i is None for i in indices):
        raise c.refuse("index_put that skips dimensions")
    if accumulate:
        return _rows_added(c, x, indices, values)
    if len(indices) == 1 and first.dtype == "i1":
        rest = x.shape[len(first.shape) :]
        if values.shape[: len(values.shape) - len(rest)] not in ((), (1,)):
            raise c.refuse("values in the order of the true elements of a mask")
        row = c.b.reshape(values, values.shape[-len(rest) :] if rest else ())
        mask = c.b.broadcast(first, x.shape, tuple(range(len(first.shape))))
        return c.b.select(mask, row, x)
    columns, rows = indices[-1], c.b.made_by(first, "iota")
    if len(indices) != 2 or len(x.shape) != 2 or rows is None or first.shape != x.shape[:1]:
        raise c.refuse("index_put whose first index is not arange over all rows of a matrix")
    if columns is None or columns.type.sort != "Int" or columns.shape not in ((), (1,), first.shape):
        raise c.refuse("index_put whose second index is not one column for each row")
    columns = c.b.expand(wrapped(c, columns, x.shape[1]), first.shape)
    here = c.b.compare("EQ", c.b.iota(1, x.shape, columns.dtype), c.b.insert(columns, 1, x.shape[1]))
    column = c.b.insert(c.b.expand(values, first.shape), 1, x.shape[1]) if values.shape else values
    return c.b.select(here, column, x)


def _rows_added(c: Context, x: Value, indices: Sequence[Value | None], values: Value) -> Value:
    first = indices[0]
    if first is None or len(indices) > 1 or first.type.sort != "Int":
        raise c.refuse("index_put that accumulates other than whole rows")
    whole = first.shape + x.shape[1:]
    if broadcast_shape(values.shape, whole) != whole:
        raise c.refuse("index_put that accumulates other than whole rows")
    added = _added_to_rows(c, c.b.expand(values, whole), wrapped(c, first, x.shape[0]), x.shape[0])
    empty = c.b.made_by(x, "constant")
    return added if empty is not None and empty.attr("value") == "0" else c.b.binary("add", x, added)


@lowers("aten.cat")
def _cat(c: Context, parts: Sequence[Value], dim: int = 0) -> Value:
    return c.b.concatenate([c.value(p, c.out[0].dtype) for p in parts], dim % len(parts[0].shape))


@lowers("aten.stack")
def _stack(c: Context, parts: Sequence[Value], dim: int = 0) -> Value:
    dim %= len(parts[0].shape) + 1
    parts = [c.value(p, c.out[0].dtype) for p in parts]
    wide = [c.b.reshape(p, (*p.shape[:dim], 1, *p.shape[dim:])) for p in parts]
    return c.b.concatenate(wide, dim)


@lowers("aten.constant_pad_nd")
def _pad(c: Context, x: Value, pad: Sequence[int], value: Literal = 0) -> Value:
    if min(pad, default=0) < 0:
        raise c.refuse("negative padding")
    rank = len(x.shape)
    low, high = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    whole = x.type.sort == "Int" and isinstance(value, float) and value.is_integer()
    return c.b.pad(x, int(value) if whole else value, low, high)


@lowers("aten.slice_backward", ignores=("end",))
def _slice_backward(c: Context, grad: Value, sizes: Sequence[int], dim: int, start: int, step: int) -> Value:
    """Zeros between the elements of a strided slice make it one of consecutive elements."""
    dim %= len(sizes)
    total = sizes[dim]
    start = min(max(start + total if start < 0 else start, 0), total)
    if step > 1:
        count, zeros = grad.shape[dim], [0] * (len(sizes) + 1)
        wide = c.b.reshape(grad, (*grad.shape[: dim + 1], 1, *grad.shape[dim + 1 :]))
        wide = c.b.pad(wide, 0, zeros, [step - 1 if d == dim + 1 else 0 for d in range(len(zeros))])
        wide = c.b.reshape(wide, (*grad.shape[:dim], count * step, *grad.shape[dim + 1 :]))
        grad = c.b.narrow(wide, dim, 0, min(count * step, total - start))
    low = [start if d == dim else 0 for d in range(len(sizes))]
    high = [n - m - a for n, m, a in zip(sizes, grad.shape, low, strict=True)]
    return c.b.pad(grad, 0, low, high)


@lowers("aten.select_backward")
def _select_backward(c: Context, grad: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    dim, index = dim % len(sizes), index % sizes[dim]
    low = [index if d == dim else 0 for d in range(len(sizes))]
    high = [n - 1 - index if d == dim else 0 for d, n in enumerate(sizes)]
    return c.b.pad(c.b.reshape(grad, (*grad.shape[:dim], 1, *grad.shape[dim:])), 0, low, high)


@lowers("aten.split_with_sizes_copy", "fsdp.split_with_sizes_copy")
def _split_copy(c: Context, x: Value, sizes: Sequence[int], dim: int = 0) -> list[Value]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [c.b.narrow(x, dim % len(x.shape), a, n) for a, n in zip(starts, sizes, strict=True)]


@lowers("aten._chunk_cat", "fsdp.chunk_cat")
def _chunk_cat(c: Context, parts: Sequence[Value], dim: int, chunks: int) -> Value:
    """Each tensor is padded to a multiple of ``chunks`` rows and cut; chunk ``i`` of all is row ``i``."""
    if dim != 0:
        raise c.refuse("chunk_cat along a dimension other than 0")
    rows = []
    for part in parts:
        zeros = [0] * len(part.shape)
        padded = c.b.pad(part, 0, zeros, [-part.shape[0] % chunks, *zeros[1:]])
        rows.append(c.b.reshape(padded, (chunks, padded.type.size // chunks)))
    return c.b.convert(c.b.concatenate(rows, 1), c.out[0].dtype)


@effects("fsdp.all_gather_copy_in.default")
def _all_gather_copy_in(driver: Any, node: Node) -> None:
    """Copies the flat inputs one after the other into this rank's part of the gather's output."""
    place = node.outs[0]
    parts = [driver.context.value(driver.context.b.flat(driver.read(p)), place.dtype) for p in node.args[0]]
    driver.write(place, driver.context.b.concatenate(parts, 0))


@effects("aten._foreach_copy_.default")
def _foreach_copy(driver: Any, node: Node) -> None:
    for target, source in zip(node.args[0], node.args[1], strict=True):
        value = driver.context.value(driver.read(source), target.dtype)
        driver.write(target, driver.context.b.expand(value, target.geometry.size))
