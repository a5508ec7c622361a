"""Lookups, concatenations, padding, and writes at indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..builder import Literal, Value
from ..recorder import Node
from .infinities import with_numbers
from .places import Places, counted_axis, counted_from, distinct_axis, places
from .ranges import in_table
from .sameness import same
from .table import Context, axis_of, effects, lowers

#: Rows that are put in places apart from each other: each is a piece of a concatenation.
_PIECES = 64


@lowers("aten.embedding", ignores=("padding_idx", "scale_grad_by_freq", "sparse"))
def _embedding(c: Context, weight: Value, index: Value) -> Value:
    return c.b.gather(weight, in_table(c.b, index, weight.shape[0]), axis=0, batch_dims=0)


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
    """Look-up along one dimension, which comes last; of the others as many elements as the index has."""
    rank = len(x.shape)
    if not rank:
        return c.b.reshape(x, index.shape)
    dim = axis_of(dim, rank)
    found = None if dim else c.rows.read_along(x, index)
    if found is not None:
        return found
    sizes = [n if d == dim else m for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))]
    order = last(dim, rank)
    rows = c.b.transpose(c.b.slice(x, [0] * rank, sizes), order)
    return c.b.transpose(looked_up(c, rows, c.b.transpose(index, order)), back(order))


def looked_up(c: Context, x: Value, index: Value) -> Value:
    """Elements of each row of ``x``, of the last dimension.

    Where the row itself is chosen from (:mod:`.choosing`) it is a product with the mask of what is chosen, as
    its gradient is: so shares of a sum may be looked up before they are added.
    """
    axis = len(x.shape) - 1
    x = with_numbers(c.b, x, index)
    chosen = distinct_axis(c, index) == axis and counted_axis(c, index) is None
    if x.type.sort != "Real" or not chosen or _infinite(c, x):
        return c.b.gather(x, index, axis=axis, batch_dims=axis)
    wide = c.b.insert(index, axis + 1, x.shape[-1])
    hot = c.b.convert(c.b.compare("EQ", wide, c.b.iota(axis + 1, wide.shape, index.dtype)), x.dtype)
    rows = tuple(range(axis))
    return c.b.dot(hot, x, batch=(rows, rows), contract=((axis + 1,), (axis,)))


def looked_up_rows(c: Context, x: Value, table: Value) -> Value | None:
    """The product of one-hot rows of given integers with a table: the rows of the table that they name.

    A row without a 1 is zero in the product, as where ranks have parts of the table. ``None`` if the rows of
    ``x`` are not of this kind: those of a choice (:mod:`.choosing`) are a mask.
    """
    index = None if table.type.sort != "Real" or _infinite(c, table) else _hot_at(c, x)
    if index is None or index.type.sort != "Int" or not _given(c, index):
        return None
    zero, end = c.b.like(0, index), c.b.like(table.shape[0], index)
    inside = c.b.binary("and", c.b.compare("GE", index, zero), c.b.compare("LT", index, end))
    rows = c.b.gather(table, c.b.select(inside, index, zero), axis=0, batch_dims=0)
    return c.b.select(c.b.insert(inside, 1, table.shape[1]), rows, c.b.like(0, rows))


def _hot_at(c: Context, x: Value) -> Value | None:
    """Where the rows of a matrix have their 1, if they are ``index == arange(n)``, or that and a number."""
    count, width = x.shape
    while c.b.made_by(x, "reshape") or c.b.made_by(x, "convert"):
        x = c.b.operand(x)
        if x.shape[-1:] != (width,):
            return None
    made = c.b.made_by(x, "compare")
    if made is None or made.attr("direction") != "EQ":
        return None
    axis, sides = len(x.shape) - 1, [c.b.operand(x, i) for i in (0, 1)]
    for index, numbers in (sides, sides[::-1]):
        spread = c.b.made_by(index, "broadcast_in_dim")
        counted = counted_from(c, numbers)
        if spread is None or counted is None or counted[0] != axis:
            continue
        source, dims = c.b.operand(index), spread.attr("dims")
        assert isinstance(dims, tuple)
        if dict(zip(dims, source.shape, strict=True)).get(axis, 1) == 1 and source.type.size == count:
            index = c.b.reshape(source, (count,))
            return c.b.binary("subtract", index, c.b.like(counted[1], index)) if counted[1] else index
    return None


def _given(c: Context, index: Value) -> bool:
    """Integers that are an input's, moved, and less the first row of a rank."""
    while (draft := c.b.draft(index)) is not None:
        operands = [c.b.operand(index, i) for i in range(len(draft.ins))]
        if draft.name in ("add", "subtract"):
            operands = [v for v in operands if c.b.made_by(v, "constant") is None]
        elif draft.name not in ("reshape", "transpose", "slice", "convert", "broadcast_in_dim"):
            return False
        if len(operands) != 1:
            return False
        (index,) = operands
    return index.type.sort == "Int"


def _infinite(c: Context, x: Value) -> bool:
    """Has the code put infinities in ``x``? Their product with 0 has no meaning."""
    draft = c.b.draft(x)
    if draft is None or draft.name not in ("constant", "select", "transpose", "reshape", "slice", "convert"):
        return False
    if draft.name == "constant":
        return draft.attr("value") in ("inf", "-inf")
    return any(_infinite(c, c.b.operand(x, i)) for i in range(len(draft.ins)))


def last(dim: int, rank: int) -> list[int]:
    """The order of dimensions in which ``dim`` comes last."""
    return [*(d for d in range(rank) if d != dim), dim]


def back(order: Sequence[int]) -> list[int]:
    """The order that undoes ``order``."""
    return [order.index(d) for d in range(len(order))]


def _only(indices: Sequence[Value | None]) -> Value | None:
    """The index, if it is one of the first dimension alone."""
    return indices[0] if indices and all(i is None for i in indices[1:]) else None


@lowers("aten.index", "aten._unsafe_index")
def _index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    found = c.rows.read(x, first) if (first := _only(indices)) is not None else None
    if found is not None:
        return found
    at = places(c, x.shape, indices)
    if not at.counted and at.looked_up == 1:
        return c.b.gather(x, at.index, axis=at.order[0], batch_dims=0)
    flat, lead = at.flattened(c, x), at.index.shape[: at.counted]
    if not at.rest:
        flat = with_numbers(c.b, flat, c.b.reshape(at.index, (*lead, prod(at.index.shape[at.counted :]))))
    found = c.b.gather(flat, at.index, axis=at.counted, batch_dims=at.counted)
    return at.gathered(c, found)


@lowers("aten.index_select")
def _index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    if not x.shape:
        return c.b.reshape(x, c.out[0].shape)
    axis = axis_of(dim, len(x.shape))
    found = None if axis else c.rows.read(x, index)
    return found or c.b.gather(x, index, axis=axis, batch_dims=0)


@lowers("aten.index_put", "aten._unsafe_index_put")
def _index_put(
    c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """A masked fill, or values at places: added there, or written if no two of them meet."""
    masks = [(d, i) for d, i in enumerate(indices) if i is not None and i.dtype == "i1"]
    if masks:
        if len(masks) < sum(i is not None for i in indices) or len(masks) > 1:
            raise c.refuse("a mask among several indices")
        return _filled(c, x, *masks[0], values, accumulate)
    if (first := _only(indices)) is not None:
        written = c.rows.write(x, first, c.b.expand(values, (*first.shape, *x.shape[1:])), add=accumulate)
        if written is not None:
            return written
    at = places(c, x.shape, indices)
    target = at.flattened(c, x)
    uniform = _same_everywhere(at, values)
    if accumulate:
        added = _added_at(c, at, at.spread(c, values))
        empty = c.b.made_by(x, "constant")
        zero = empty is not None and empty.attr("value") == "0"
        return at.restored(c, added) if zero else c.b.binary("add", x, at.restored(c, added))
    if not at.distinct and not uniform:
        raise c.refuse("values at indices of which two may be equal: which of them stays is not defined")
    change = None if uniform else _change(c, values, _index(c, x, indices))
    if change is not None:
        how, amount = change
        nothing = c.b.like(0, target)
        return c.b.binary(how, x, at.restored(c, _written(c, at, amount, nothing)))
    return at.restored(c, _written(c, at, values, target))


def _change(c: Context, values: Value, before: Value) -> tuple[str, Value] | None:
    """What is added to elements that are written back, or subtracted; ``None`` if they are no such sum.

    ``x[i] -= v`` changes what stands at ``i`` by ``v`` whatever that is.
    """
    draft = c.b.draft(values)
    if draft is None or draft.name not in ("add", "subtract"):
        return None
    x, y = c.b.operand(values, 0), c.b.operand(values, 1)
    if same(c.b, x, before):
        return draft.name, y
    return ("add", x) if draft.name == "add" and same(c.b, y, before) else None


def _written(c: Context, at: Places, values: Value, target: Value) -> Value:
    """A flattened tensor with values at places of which no two meet, or that are all the same."""
    uniform, rank, spread = _same_everywhere(at, values), len(at.shape), at.spread(c, values)
    axes = range(at.counted, rank)
    here = c.b.reduce(_one_hot(c, at), axes, "or") if axes else _one_hot(c, at)
    if uniform or all(at.shape[a] == 1 for a in at.axes[at.counted :]):
        one = [1 if d in axes else n for d, n in enumerate(spread.shape)]
        entry = c.b.reshape(c.b.slice(spread, [0] * len(one), one), (*spread.shape[: at.counted], *at.rest))
        entry = c.b.broadcast(entry, target.shape, [d for d in range(len(target.shape)) if d != at.counted])
    else:  # one entry at most is not zero
        entry = _added_at(c, at, spread)
    return c.b.select(c.b.broadcast(here, target.shape, range(at.counted + 1)), entry, target)


def _one_hot(c: Context, at: Places) -> Value:
    """[axes of the index, elements looked up]: is this the element?"""
    rank = len(at.shape)
    numbers = c.b.iota(rank, (*at.index.shape, at.size), at.index.dtype)
    return c.b.compare("EQ", numbers, c.b.insert(at.index, rank, at.size))


def _added_at(c: Context, at: Places, values: Value) -> Value:
    """The sum of the values at each place, as :meth:`Places.flattened`."""
    if not at.counted:
        return _added_to_rows(c, values, at.index, at.size)
    one_hot, axes = c.b.convert(_one_hot(c, at), values.dtype), tuple(range(at.counted, len(at.shape)))
    counted = tuple(range(at.counted))
    return c.b.dot(one_hot, values, batch=(counted, counted), contract=(axes, axes))


def _same_everywhere(at: Places, values: Value) -> bool:
    """Is what is written the same for every entry of the index tensors?"""
    shape = (1,) * (len(at.result) - len(values.shape)) + values.shape
    return all(n == 1 for n in shape[at.before : at.before + len(at.shape)])


def _filled(c: Context, x: Value, dim: int, mask: Value, values: Value, accumulate: bool) -> Value:
    if accumulate:
        raise c.refuse("values that are added in the order of the true elements of a mask")
    end = dim + len(mask.shape)
    after = len(x.shape) - end
    shape = (1,) * (dim + 1 + after - len(values.shape)) + values.shape
    if shape[dim] != 1:
        raise c.refuse("values in the order of the true elements of a mask")
    entry = c.b.reshape(values, (*shape[:dim], *(1 for _ in mask.shape), *shape[dim + 1 :]))
    return c.b.select(c.b.broadcast(mask, x.shape, range(dim, end)), entry, x)


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
    """Padding that is negative takes elements away."""
    rank = len(x.shape)
    low, high = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        dim, (before, after) = rank - 1 - i, pad[2 * i : 2 * i + 2]
        x = c.b.narrow(x, dim, max(-before, 0), x.shape[dim] + min(before, 0) + min(after, 0))
        low[dim], high[dim] = max(before, 0), max(after, 0)
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


@lowers("aten.select_scatter")
def _select_scatter(c: Context, x: Value, src: Value, dim: int, index: int) -> Value:
    wide = c.b.reshape(src, (*x.shape[: dim % len(x.shape)], 1, *src.shape[dim % len(x.shape) :]))
    return _slice_scatter(c, x, wide, dim, index % x.shape[dim], index % x.shape[dim] + 1)


@lowers("aten.slice_scatter")
def _slice_scatter(
    c: Context,
    x: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """The rows of ``src`` in their places, those of ``x`` between them."""
    dim, n = dim % len(x.shape), x.shape[dim]
    places = range(n)[slice(start, end, step)]
    if src.shape[dim] != len(places) or (step > 1 and len(places) > _PIECES):
        raise c.refuse(
            f"{src.shape[dim]} rows for {len(places)} places, of which at most {_PIECES} may lie apart"
        )
    own = c.value(src, x.dtype)
    runs = (
        [(places.start, own)]
        if step == 1
        else [(p, c.b.narrow(own, dim, i, 1)) for i, p in enumerate(places)]
    )
    parts, at = list[Value](), 0
    for place, rows in runs if places else ():
        parts += [c.b.narrow(x, dim, at, place - at)] if place > at else []
        parts.append(rows)
        at = place + rows.shape[dim]
    return c.b.concatenate([*parts, *([c.b.narrow(x, dim, at, n - at)] if at < n else [])], dim)


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
