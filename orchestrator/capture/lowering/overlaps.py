"""Ops that write memory that they have yet to read: what PyTorch makes of them depends on its kernels.

An op that goes element by element may write where it reads; one that sums, sorts or picks may not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_leaves

from ..errors import AliasingError
from ..geometry import meet
from ..recorder import Node, TensorRef
from .arguments import schema

#: Ops that go element by element, though PyTorch has no such tag for them.
_BY_ELEMENT = ("aten.copy_.", "aten.masked_fill_.", "aten.fill_.")


def check_overlaps(node: Node) -> None:
    """Raise an :class:`AliasingError` for a tensor that is read after a part of it was written."""
    if not node.writes or not node.op.startswith("aten."):
        return
    read = list(_read(node))
    if any(_torn(source, target) for target in node.writes for _, source in read):
        raise AliasingError(
            "the op writes memory that it also reads elsewhere: the result depends on PyTorch's order",
            instead="clone() what is read: x.add_(x[0].clone())",
        )
    kept = _kept(node.op)
    if kept is not None:
        for argument, source in read:
            if argument != kept and any(_same_place(source, target) for target in node.writes):
                raise AliasingError(
                    f"the op writes {argument} while it reads it, and each element is made of several",
                    instead="clone() what is read, or another tensor for the result: x.addmm_(a, x.clone())",
                )


@functools.cache
def _kept(op: str) -> str | None:
    """The argument in whose place the result of an op may be that does not go element by element; empty if
    there is none, and ``None`` for an op that does."""
    known = schema(op)
    name, overload = op.split(".")[1:3]
    packet = getattr(torch.ops.aten, name, None)
    if known is None or torch.Tag.pointwise in getattr(packet, overload).tags or op.startswith(_BY_ELEMENT):
        return None
    first = known.arguments[0].name
    # The same op in place writes its first argument, which it has read then.
    return first if name.endswith("_") or hasattr(torch.ops.aten, f"{name}_") else ""


def _read(node: Node) -> Iterator[tuple[str, TensorRef]]:
    """The tensors that an op reads, by the names of its arguments."""
    known = schema(node.op)
    for i, argument in enumerate(known.arguments if known is not None else ()):
        value = node.args[i] if i < len(node.args) else dict(node.kwargs).get(argument.name)
        if not argument.is_out:
            yield from ((argument.name, t) for t in tree_leaves(value) if isinstance(t, TensorRef))


def _same_place(source: TensorRef, target: TensorRef) -> bool:
    return source.storage == target.storage and source.geometry == target.geometry


def _torn(source: TensorRef, target: TensorRef) -> bool:
    """Does an op that writes ``target`` element by element change what it has yet to read of ``source``?"""
    return (
        source.storage == target.storage
        and source.geometry != target.geometry
        and meet(source.geometry, target.geometry)
    )
