"""Functional and in-place collectives of c10d. An average is a sum and an exact factor."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from torch.distributed.distributed_c10d import _resolve_process_group, get_process_group_ranks

from ..builder import Value
from ..recorder import GroupRef, Node, ReduceRef
from .table import Context, effects, lowers

_KINDS = {"sum": "add", "avg": "add", "max": "max", "min": "min"}


def _group(group: GroupRef | str) -> GroupRef:
    """Functional collectives name their group, in-place ones pass it."""
    if isinstance(group, GroupRef):
        return group
    return GroupRef(tuple(get_process_group_ranks(_resolve_process_group(group))))


def _kind(c: Context, reduction: ReduceRef | str) -> tuple[str, bool]:
    """The IR reduction, and whether it is an average."""
    name = (reduction.name if isinstance(reduction, ReduceRef) else reduction).lower()
    if name not in _KINDS:
        raise c.refuse(f"reduction {name}")
    return _KINDS[name], name == "avg"


def _scaled(c: Context, x: Value, reduction: ReduceRef | str) -> tuple[Value, ReduceRef | str]:
    """``PREMUL_SUM`` is a factor before a sum."""
    if not isinstance(reduction, ReduceRef) or reduction.name != "PREMUL_SUM":
        return x, reduction
    if reduction.factor is None:
        raise c.refuse("a PREMUL_SUM of unknown factor")
    return (x if reduction.factor == 1 else c.b.scale(x, reduction.factor)), ReduceRef("SUM")


def _mean(c: Context, total: Value, group: GroupRef, average: bool) -> Value:
    return c.b.scale(total, Fraction(1, len(group.ranks))) if average else total


@lowers("_c10d_functional.wait_tensor")
def _wait(c: Context, x: Value) -> Value:
    return x


@lowers("_c10d_functional.all_reduce")
def all_reduce(c: Context, x: Value, reduction: ReduceRef | str, group: GroupRef | str) -> Value:
    x, reduction = _scaled(c, x, reduction)
    kind, average = _kind(c, reduction)
    ranks = _group(group)
    return _mean(c, c.collective("all_reduce", x, ranks, x.shape, kind=kind), ranks, average)


@lowers("_c10d_functional.all_gather_into_tensor")
def all_gather(c: Context, x: Value, _size: int, group: GroupRef | str) -> Value:
    ranks = _group(group)
    return c.collective("all_gather", x, ranks, (x.shape[0] * len(ranks.ranks), *x.shape[1:]), dim=0)


@lowers("_c10d_functional.reduce_scatter_tensor")
def reduce_scatter(
    c: Context, x: Value, reduction: ReduceRef | str, _size: int, group: GroupRef | str
) -> Value:
    x, reduction = _scaled(c, x, reduction)
    kind, average = _kind(c, reduction)
    if kind != "add":
        raise c.refuse(f"reduce_scatter of {kind}")
    ranks = _group(group)
    shape = (x.shape[0] // len(ranks.ranks), *x.shape[1:])
    return _mean(c, c.collective("reduce_scatter", x, ranks, shape, kind=kind, dim=0), ranks, average)


@lowers("_c10d_functional.all_to_all_single")
def _all_to_all(c: Context, x: Value, out_sizes: Any, in_sizes: Any, group: GroupRef | str) -> Value:
    if len({*out_sizes, *in_sizes}) != 1:
        raise c.refuse("all_to_all with unequal pieces")
    return c.collective("all_to_all", x, _group(group), x.shape, split_dim=0, concat_dim=0)


@effects("c10d.allreduce_.default")
def _all_reduce_in_place(driver: Any, node: Node) -> None:
    tensors, group, reduction = node.args[:3]
    for tensor in tensors:
        driver.write(tensor, all_reduce(driver.context, driver.read(tensor), reduction, group))


@effects("c10d._allgather_base_.default")
def _all_gather_base(driver: Any, node: Node) -> None:
    target, source, group = node.args[:3]
    gathered = all_gather(driver.context, driver.read(source), 0, group)
    driver.write(target, driver.context.b.reshape(gathered, target.geometry.size))


@effects("c10d._reduce_scatter_base_.default")
def _reduce_scatter_base(driver: Any, node: Node) -> None:
    target, source, group, reduction = node.args[:4]
    pieces = reduce_scatter(driver.context, driver.read(source), reduction, 0, group)
    driver.write(target, driver.context.b.reshape(pieces, target.geometry.size))
