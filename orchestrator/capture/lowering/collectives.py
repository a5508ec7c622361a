"""Collectives: functional ops, and calls that reached the process group. An average is a sum and a factor.

A plan file has four collectives. Those with a root are written with them: every member hands its piece over,
and takes the root's. Where PyTorch leaves a buffer undefined, reading it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from certificates.plan.types import TensorType

from ..builder import Value
from ..errors import GroupError
from ..geometry import Geometry, meet
from ..recorder import GroupRef, Node, ReduceRef, TensorRef
from .members import apart, gathered, handed_on, reduced
from .table import Context, effects, lowers

_KINDS = {"sum": "add", "avg": "add", "max": "max", "min": "min"}
_REDUCTIONS = (
    "ReduceOp.SUM, AVG, MAX or MIN (of truth values, MIN of 0 and 1 is AND and MAX is OR); or an "
    "all_gather and "
    "the product of its pieces"
)
_PACKED = "tensor.contiguous() before the call, and a copy back into the view after it"
_ELSEWHERE = (
    "another tensor for the result (torch.empty_like), and a copy_ back; in place, all_gather_into_tensor "
    "reads the rank's own chunk of the result, and reduce_scatter_tensor writes that of the operand"
)
_FROM_WHOM = (
    "dist.recv(tensor, src=rank): the rank that sends; from whom the first one comes differs from run to run"
)
_EQUAL = "pieces of one shape on all ranks, padded (torch.nn.functional.pad) where they differ"


def _kind(c: Context, reduction: ReduceRef | str) -> tuple[str, bool]:
    """The IR reduction, and whether it is an average."""
    name = (reduction.name if isinstance(reduction, ReduceRef) else reduction).lower()
    if name not in _KINDS:
        raise c.refuse(
            f"a reduction by {name.upper()} has no place in a plan file, which has sums, averages, "
            "maxima, minima",
            instead=_REDUCTIONS,
        )
    return _KINDS[name], name == "avg"


def _scaled(c: Context, x: Value, reduction: ReduceRef | str) -> tuple[Value, ReduceRef | str]:
    """``PREMUL_SUM`` is a factor before a sum."""
    if not isinstance(reduction, ReduceRef) or reduction.name != "PREMUL_SUM":
        return x, reduction
    if reduction.factor is None:
        raise c.refuse("a PREMUL_SUM of unknown factor")
    return (x if reduction.factor == 1 else c.b.scale(x, reduction.factor)), ReduceRef("SUM")


def _mean(c: Context, total: Value, group: GroupRef, average: bool) -> Value:
    if average and total.type.sort != "Real":
        raise c.refuse(
            f"an average of {total.type}: how whole numbers are rounded depends on the backend",
            instead="ReduceOp.SUM, and a division of the sum as a number: total.float() / size",
        )
    return c.b.scale(total, Fraction(1, len(group.ranks))) if average else total


def _rows(c: Context, x: Value, size: int) -> Value:
    """The operand with a first dimension that ``size`` ranks divide; memory order is what counts."""
    if x.shape and x.shape[0] % size == 0:
        return x
    if x.type.size % size:
        raise c.refuse(f"{x.type.size} elements for {size} ranks")
    return c.b.reshape(x, (size, x.type.size // size))


def _exchanged(c: Context, x: Value, group: GroupRef) -> Value:
    """Rows change hands: those of every member are taken together, so that no stage splits what it joins."""
    size = len(group.ranks)
    rows = c.b.reshape(x, (size, x.type.size // size))
    moved = c.collective("all_to_all", rows, group, (1, x.type.size), split_dim=0, concat_dim=1)
    return c.b.reshape(moved, x.shape)


# --- functional ops and what all forms share --------------------------------------------------------------


@lowers("_c10d_functional.all_reduce")
def all_reduce(c: Context, x: Value, reduction: ReduceRef | str, group: GroupRef) -> Value:
    x, reduction = _scaled(c, x, reduction)
    kind, average = _kind(c, reduction)
    if apart(c, group):
        return _mean(c, reduced(c, x, kind, group), group, average)
    return _mean(c, c.collective("all_reduce", x, group, x.shape, kind=kind), group, average)


@lowers("_c10d_functional.all_gather_into_tensor", "_c10d_functional.all_gather_into_tensor_out")
def all_gather(c: Context, x: Value, _size: int, group: GroupRef) -> Value:
    x = x if x.shape else c.b.reshape(x, (1,))
    if apart(c, group):
        return gathered(c, x, group)
    shape = (x.shape[0] * len(group.ranks), *x.shape[1:])
    return c.collective("all_gather", x, group, shape, dim=0)


@lowers("_c10d_functional.reduce_scatter_tensor", "_c10d_functional.reduce_scatter_tensor_out")
def reduce_scatter(c: Context, x: Value, reduction: ReduceRef | str, _size: int, group: GroupRef) -> Value:
    x, reduction = _scaled(c, x, reduction)
    kind, average = _kind(c, reduction)
    if kind != "add":
        raise c.refuse(
            f"a reduce_scatter by {kind} has no place in a plan file",
            "all_reduce by it, and the rank's own rows",
        )
    x = _rows(c, x, len(group.ranks))
    shape = (x.shape[0] // len(group.ranks), *x.shape[1:])
    return _mean(c, c.collective("reduce_scatter", x, group, shape, kind=kind, dim=0), group, average)


def all_to_all(
    c: Context, x: Value, out_sizes: Sequence[int], in_sizes: Sequence[int], group: GroupRef
) -> Value:
    if len({*out_sizes, *in_sizes}) > 1:
        raise c.refuse("all_to_all with unequal pieces", _EQUAL)
    return _exchanged(c, _rows(c, x, len(group.ranks)), group)


@lowers("_dtensor.shard_dim_alltoall")
def _shard_dim(c: Context, x: Value, gather_dim: int, shard_dim: int, group: GroupRef) -> Value:
    shape = list(x.shape)
    shape[gather_dim] *= len(group.ranks)
    shape[shard_dim] //= len(group.ranks)
    return c.collective("all_to_all", x, group, shape, split_dim=shard_dim, concat_dim=gather_dim)


@lowers("_c10d_functional.broadcast")
def broadcast(c: Context, x: Value, root: int, group: GroupRef) -> Value:
    """Every member's tensor is gathered, and the root's taken; the others may hand over anything."""
    if len(group.ranks) == 1:
        return x
    if apart(c, group):
        return handed_on(c, x, root, group)
    if c.b.tainted(x) and not c.is_member(group, root):
        x = c.b.constant(0, x.type)
    with c.rooted("broadcast", root):
        every = all_gather(c, c.b.reshape(x, (1, *x.shape)), 0, group)
    return c.b.reshape(c.b.narrow(every, 0, root, 1), x.shape)


@lowers("_c10d_functional.all_reduce_coalesced")
def _all_reduces(c: Context, xs: Sequence[Value], reduction: str, group: GroupRef) -> list[Value]:
    return [all_reduce(c, x, reduction, group) for x in xs]


@lowers("_c10d_functional.all_gather_into_tensor_coalesced")
def _all_gathers(c: Context, xs: Sequence[Value], size: int, group: GroupRef) -> list[Value]:
    return [all_gather(c, x, size, group) for x in xs]


@lowers("_c10d_functional.reduce_scatter_tensor_coalesced")
def _reduce_scatters(
    c: Context, xs: Sequence[Value], reduction: str, size: int, group: GroupRef
) -> list[Value]:
    return [reduce_scatter(c, x, reduction, size, group) for x in xs]


@effects("_c10d_functional.wait_tensor.default")
def _wait_tensor(driver: Any, node: Node) -> None:
    if node.outs.storage != node.args[0].storage:
        driver.write(node.outs, driver.read(node.args[0]))


# --- calls that reached the process group: (results, operands, communicator, ...) -------------------------


@effects("dist.wait", "dist.then", "dist.then_end")
def _order(driver: Any, node: Node) -> None:
    """Order only, see :mod:`..waits`."""


@effects("dist.barrier")
def _barrier(driver: Any, node: Node) -> None:
    """Nothing but a place in the order of a communicator: a rank that comes to none meets what comes next."""
    group, c = node.args[2], driver.context
    if len(group.ranks) > 1 and c.group_axes(group):
        c.next(group)


@effects("dist.new_group")
def _new_group(driver: Any, node: Node) -> None:
    raise GroupError(
        "the step makes a process group: every step would make another one",
        op=node.op,
        instead="make it once, in parallelize: model.group = dist.new_group(ranks), or that of an "
        "axis of the mesh, "
        'mesh["dp"].get_group()',
    )


@effects("dist.send")
def _send(driver: Any, node: Node) -> None:
    """The values of this moment; :mod:`..waits` tells who overwrites them too early."""
    _, sources, group, to, tag = node.args
    for source in sources:
        x = driver.read(contiguous(source))
        batch = node.kwargs.get("batch")
        driver.context.message("send", (x,), x.type, group, group.ranks[to], tag, batch)


@effects("dist.recv")
def _recv(driver: Any, node: Node) -> None:
    """A value of another rank's trace; which one is settled once all are traced (:mod:`..messages`)."""
    outs, _, group, source, tag = node.args
    if source is None:
        raise GroupError("a recv from any rank", op=node.op, instead=_FROM_WHOM)
    c = driver.context
    for out in outs:
        type_, batch = TensorType(out.dtype, out.geometry.size), node.kwargs.get("batch")
        driver.write(contiguous(out), c.message("recv", (), type_, group, group.ranks[source], tag, batch))


@effects("dist.all_reduce")
def _all_reduce_event(driver: Any, node: Node) -> None:
    tensors, _, group, reduction = node.args
    for ref in map(_image, tensors):
        driver.write(ref, all_reduce(driver.context, driver.read(ref), reduction, group))


@effects("dist.broadcast")
def _broadcast_event(driver: Any, node: Node) -> None:
    tensors, _, group, root = node.args
    for ref in map(_image, tensors):
        driver.write(ref, broadcast(driver.context, driver.read(ref), root, group))


@effects("dist.reduce")
def _reduce_event(driver: Any, node: Node) -> None:
    """The root has the sum; what the others are left with is undefined."""
    tensors, _, group, reduction, root = node.args
    c = driver.context
    x, reduction = _scaled(c, driver.read(_image(tensors[0])), reduction)
    kind, average = _kind(c, reduction)
    with c.rooted("reduce", root):
        total = _mean(c, c.collective("all_reduce", x, group, x.shape, kind=kind), group, average)
    for ref in map(_image, tensors):
        driver.write(ref, total if c.is_member(group, root) else driver.undefined(ref))


@effects("dist.all_gather_single")
def _all_gather_single_event(driver: Any, node: Node) -> None:
    outs, ins, group = node.args
    apart_in_memory(driver.context, outs, ins, group, chunk=lambda out, source: (out, source))
    for out, source in zip(outs, ins, strict=True):
        every = all_gather(driver.context, driver.read(contiguous(source)), 0, group)
        driver.write(contiguous(out), driver.context.b.reshape(every, out.geometry.size))


@effects("dist.all_gather")
def _all_gather_event(driver: Any, node: Node) -> None:
    outs, ins, group = node.args
    for line, source in zip(outs, ins, strict=True):
        _write_pieces(driver, line, _gathered(driver, source, line, group))


@effects("dist.gather")
def _gather_event(driver: Any, node: Node) -> None:
    outs, ins, group, root = node.args
    for line, source in zip(outs, ins, strict=False):
        apart_in_memory(
            driver.context, [p for j, p in enumerate(line) if j != root or p != source], [source], group
        )
    for i, source in enumerate(ins):
        with driver.context.rooted("gather", root):
            every = _gathered(driver, source, outs[i] if outs else [], group)
        if outs:
            _write_pieces(driver, outs[i], every)


@effects("dist.scatter")
def _scatter_event(driver: Any, node: Node) -> None:
    """All members send their lists, those that have none zeros, and keep what the root sent."""
    (out,), ins, group, root = node.args
    c, size = driver.context, len(node.args[2].ranks)
    pieces_of = ins[0] if ins else []
    apart_in_memory(c, [out], [p for i, p in enumerate(pieces_of) if i != root or p != out], group)
    shape = out.geometry.size
    pieces = _joined(driver, ins[0], shape) if ins else c.b.constant(0, TensorType(out.dtype, (size, *shape)))
    if size > 1:
        with c.rooted("scatter", root):
            pieces = _exchanged(c, pieces, group)
    driver.write(contiguous(out), c.b.reshape(c.b.narrow(pieces, 0, root, 1), shape))


@effects("dist.reduce_scatter_single")
def _reduce_scatter_single_event(driver: Any, node: Node) -> None:
    outs, ins, group, reduction = node.args
    apart_in_memory(driver.context, outs, ins, group, chunk=lambda out, source: (source, out))
    for out, source in zip(outs, ins, strict=True):
        piece = reduce_scatter(driver.context, driver.read(contiguous(source)), reduction, 0, group)
        driver.write(contiguous(out), driver.context.b.reshape(piece, out.geometry.size))


@effects("dist.reduce_scatter")
def _reduce_scatter_event(driver: Any, node: Node) -> None:
    outs, ins, group, reduction = node.args
    for out, line in zip(outs, ins, strict=True):
        joined = _joined(driver, line, out.geometry.size)
        piece = reduce_scatter(driver.context, joined, reduction, 0, group)
        driver.write(contiguous(out), driver.context.b.reshape(piece, out.geometry.size))


@effects("dist.all_to_all")
def _all_to_all_event(driver: Any, node: Node) -> None:
    outs, ins, group = node.args
    apart_in_memory(driver.context, outs, ins, group)
    _write_pieces(
        driver, outs, all_to_all(driver.context, _joined(driver, ins, ins[0].geometry.size), (), (), group)
    )


def apart_in_memory(
    c: Context,
    outs: Sequence[TensorRef],
    ins: Sequence[TensorRef],
    group: GroupRef,
    chunk: Callable[[TensorRef, TensorRef], tuple[TensorRef, TensorRef]] | None = None,
) -> None:
    """A :class:`GroupError` for results in memory of operands: what was there may be gone before it is read.

    In place works what only touches the rank's own ``chunk``: of a pair (result, operand) gives it the whole
    and the part, and the part lies where the rank's chunk of the whole is.
    """
    for i, out in enumerate(outs):
        for j, source in enumerate(ins):
            if (
                out.storage != source.storage
                or not meet(out.geometry, source.geometry)
                or len(group.ranks) == 1
            ):
                continue
            whole, part = chunk(out, source) if chunk is not None and i == j else (out, source)
            size = math.prod(part.geometry.size)
            start = whole.geometry.offset + group.ranks.index(c.rank or 0) * size
            if chunk is None or i != j or part.geometry.offset != start:
                raise GroupError(
                    "it writes results into memory that it reads: which is first differs from rank to rank",
                    instead=_ELSEWHERE,
                )


def _image(ref: TensorRef) -> TensorRef:
    """The tensor as it lies in memory, which is what a collective combines."""
    geometry = ref.geometry
    if not geometry.dense:
        raise GroupError("a collective on a tensor with gaps or overlaps", instead=_PACKED)
    order = [*(d for d in range(len(geometry.size)) if d not in geometry.moving), *geometry.moving]
    size, stride = ([of[d] for d in order] for of in (geometry.size, geometry.stride))
    return TensorRef(
        ref.storage, ref.dtype, Geometry.of(size, stride, geometry.offset), ref.literal, ref.conjugate
    )


def contiguous(ref: TensorRef) -> TensorRef:
    """A tensor that is contiguous, as its rows are handed to ranks."""
    if ref.geometry != Geometry.contiguous(ref.geometry.size, ref.geometry.offset):
        raise GroupError("a collective that moves rows of a tensor that is not contiguous", instead=_PACKED)
    return ref


def _gathered(driver: Any, source: TensorRef, line: Sequence[TensorRef], group: GroupRef) -> Value:
    """The pieces of all members along a first dimension."""
    shape = source.geometry.size
    if any(ref.geometry.size != shape for ref in line):
        raise GroupError(
            f"pieces of different shapes: {sorted({(*r.geometry.size,) for r in (source, *line)})}",
            instead=_EQUAL,
        )
    x = driver.read(contiguous(source))
    return all_gather(driver.context, driver.context.b.reshape(x, (1, *shape)), 0, group)


def _joined(driver: Any, line: Sequence[TensorRef], shape: tuple[int, ...]) -> Value:
    """A list of equal pieces along a first dimension."""
    if any(ref.geometry.size != shape for ref in line):
        raise GroupError(
            f"pieces of different shapes: {sorted({(*r.geometry.size,) for r in line})}", instead=_EQUAL
        )
    b = driver.context.b
    return b.concatenate([b.reshape(driver.read(contiguous(ref)), (1, *shape)) for ref in line], 0)  # type: ignore[no-any-return]


def _write_pieces(driver: Any, line: Sequence[TensorRef], pieces: Value) -> None:
    b = driver.context.b
    for i, ref in enumerate(line):
        if ref.geometry.size != pieces.shape[1:]:
            raise GroupError(
                f"a piece of shape {list(pieces.shape[1:])} for {list(ref.geometry.size)}", instead=_EQUAL
            )
        driver.write(contiguous(ref), b.reshape(b.narrow(pieces, 0, i, 1), ref.geometry.size))
