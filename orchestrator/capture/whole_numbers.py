"""Whole numbers that a step makes of numbers alone, by ops that round: buckets of distances, rows of a table.

An op that rounds has no exact meaning in a plan. Where all that it rests on is made of numbers, neither of a
state nor of the batch, of another rank or of chance, its result is the same in every step: it is computed
here, by PyTorch's own ops in their own types, and stands in the program as a tensor that is written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .constants import SHAPED
from .geometry import Geometry
from .recorder import DTYPES, WRITTEN_OUT, Literal, Node, TensorRef

#: An op on a tensor with more elements is not computed.
MOST = 1 << 20
_CONVERTS = ("aten._to_copy.default", "prims.convert_element_type.default")
_ROUNDS = frozenset(
    (
        *("aten.floor.default", "aten.ceil.default", "aten.trunc.default", "aten.round.default"),
        *("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default"),
        *("aten.remainder.Scalar", "aten.remainder.Tensor", "aten.fmod.Scalar", "aten.fmod.Tensor"),
    )
)
_INTEGERS = frozenset(("i8", "i16", "i32", "i64", "u8"))
#: From here on a whole number is rather what a processor makes of none.
_LARGE = 1 << 53
_TYPES = {name: dtype for dtype, name in DTYPES.items()}


def with_whole_numbers(nodes: Sequence[Node]) -> list[Node]:
    """The ops of a program; those that round numbers, and what follows from them alone, give what they give.

    As they are: those with a result that is no finite whole number, that has more than ``WRITTEN_OUT``
    elements, that this process cannot compute, or that rests on the whole number of what is no number.
    """
    found = list(nodes)
    rounded = _of_numbers(nodes)
    memories = [_Memory(high) for high in (False, True)]
    for i in _needed(nodes, rounded):
        node = nodes[i]
        values = [_whole(memory.run(node)) for memory in memories]
        if i in rounded and values[0] is not None and values[0] == values[1]:
            out = node.outs
            ref = TensorRef(-1, out.dtype, Geometry.contiguous(out.geometry.size), values[0])
            if node.writes:
                found[i] = replace(node, op="aten.copy_.default", args=(out, ref), kwargs={})
            else:
                found[i] = replace(node, op="aten.clone.default", args=(ref,), kwargs={})
    return found


def _of_numbers(nodes: Sequence[Node]) -> set[int]:
    """Places of the ops of numbers alone that round them, or read what was rounded; views are none."""
    numbers, rounded, found = set[int](), set[int](), set[int]()
    for i, node in enumerate(nodes):
        if node.op == "storage.resize":
            numbers -= {*node.args}
            continue
        touched = {ref.storage for ref in (*_refs(node.outs), *node.writes)}
        read = {ref.storage for ref in _read(node) if ref.literal is None}
        if _computable(node) and read <= numbers:
            numbers |= touched
            if _rounds(node) or read & rounded:
                rounded |= touched
                if isinstance(node.outs, TensorRef) and not node.view and node.writes in ((), (node.outs,)):
                    found.add(i)
        else:
            own = node.op.startswith(("aten.", "prims."))
            refs = () if own else _refs((node.args, dict(node.kwargs)))
            numbers -= touched | {ref.storage for ref in refs}
    return found


def _read(node: Node) -> Sequence[TensorRef]:
    """What of memory decides the result."""
    return node.writes if node.op in SHAPED else _refs((node.args, dict(node.kwargs)))


def _computable(node: Node) -> bool:
    """Does the op give the same for the same operands, on any device, and to its end?"""
    space, _, rest = node.op.partition(".")
    if (
        space not in ("aten", "prims")
        or node.sized
        or rest.startswith(("empty", "new_empty", "resize", "set_"))
    ):
        return False
    refs = _refs((node.args, dict(node.kwargs), node.outs))
    if any(ref.complex or ref.conjugate for ref in refs) or not _refs(node.outs):
        return False
    overload = _overload(node.op)
    return overload is not None and torch.Tag.nondeterministic_seeded not in overload.tags


def _rounds(node: Node) -> bool:
    """Does the op make whole numbers of floats?"""
    floats = any(map(_is_float, _refs((node.args, dict(node.kwargs)))))
    return floats and (node.op in _ROUNDS or _converts(node))


def _converts(node: Node) -> bool:
    """Does it make integers of its first operand?"""
    return node.op in _CONVERTS and node.outs.dtype in _INTEGERS


def _is_float(ref: TensorRef) -> bool:
    return bool(_TYPES[ref.dtype].is_floating_point)


def _needed(nodes: Sequence[Node], wanted: set[int]) -> list[int]:
    """The ops that these rest on, and they themselves, in order."""
    waiting, found = set[int](), list[int]()
    for i in range(max(wanted, default=-1), -1, -1):
        node = nodes[i]
        if i in wanted or waiting & {ref.storage for ref in (*_refs(node.outs), *node.writes)}:
            found.append(i)
            waiting |= {ref.storage for ref in _read(node)}
    return found[::-1]


class _Memory:
    """The storages of a trace, for real.

    What is no finite number has no whole one: PyTorch gives what the processor gives. Two memories have
    ``high`` and low ones there, so that what rests on them differs.
    """

    def __init__(self, high: bool) -> None:
        self._high = high
        self._storages: dict[int, torch.Tensor] = {}

    def run(self, node: Node) -> torch.Tensor | None:
        """The op on what is there; ``None`` where it, or what it reads, cannot be computed."""
        overload = _overload(node.op)
        refs = _refs((node.args, dict(node.kwargs), node.outs))
        if overload is None or any(_elements(ref) > MOST for ref in refs):
            self._lost(node)
            return None
        shaped = node.op in SHAPED
        try:
            args, kwargs = (tree_map(lambda x: self._real(x, shaped), tree) for tree in _arguments(node))
            made = overload(*args, **kwargs)
            if _converts(node):
                filler = torch.iinfo(made.dtype).max if self._high else 0
                made = made.masked_fill(~args[0].isfinite(), filler)
            for ref, tensor in zip(_refs(node.outs), _tensors(made), strict=True):
                self._keep(ref, tensor)
        except Exception:  # it is refused, as it was, when it is lowered
            self._lost(node)
            return None
        return made if isinstance(made, torch.Tensor) else None

    def _keep(self, ref: TensorRef, made: torch.Tensor) -> None:
        """A result is what the trace says of it, and its memory the trace's."""
        place = Geometry.of(tuple(made.shape), made.stride(), made.storage_offset())
        if made.dtype != _TYPES[ref.dtype] or place.size != ref.geometry.size:
            raise TypeError("a result of another shape or type")
        if ref.storage not in self._storages:
            if place != ref.geometry:
                raise TypeError("a result that lies otherwise in memory")
            whole = torch.empty(0, dtype=made.dtype)
            self._storages[ref.storage] = whole.set_(made.untyped_storage())

    def _lost(self, node: Node) -> None:
        for ref in (*_refs(node.outs), *node.writes):
            self._storages.pop(ref.storage, None)

    def _real(self, item: Any, shaped: bool) -> Any:
        if not isinstance(item, TensorRef):
            return item
        dtype, place = _TYPES[item.dtype], item.geometry
        if item.storage in self._storages:
            stored = self._storages[item.storage]
            if stored.dtype != dtype:
                raise TypeError("a view as another type")
            return stored.as_strided(place.size, place.stride, place.offset)
        if item.literal is not None:
            values = torch.tensor(item.literal, dtype=dtype)
            return (
                values.reshape(place.size) if isinstance(item.literal, tuple) else values.expand(place.size)
            )
        if shaped:
            return torch.empty_strided(place.size, place.stride, dtype=dtype)
        raise KeyError(item.storage)


def _arguments(node: Node) -> Iterator[Any]:
    """Positional and named ones; types of elements are those of PyTorch again, devices the processor."""
    named: Mapping[str, Any] = {**node.kwargs}
    if isinstance(named.get("dtype"), str):
        named = {**named, "dtype": _TYPES[named["dtype"]]}
    args = node.args
    if node.op == _CONVERTS[1]:
        args = (args[0], _TYPES[args[1]])
    yield args
    yield named


def _overload(op: str) -> Any:
    space, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, space), name, None)
    return getattr(packet, overload, None)


def _whole(made: torch.Tensor | None) -> Literal | None:
    """The elements, row-major, if they are few and whole numbers."""
    if made is None or not 0 < made.numel() <= WRITTEN_OUT:
        return None
    exact = made.double()  # what is too large for it is too large here
    if not bool(((exact.abs() < _LARGE) & (exact == exact.trunc())).all()):
        return None
    values = tuple(made.flatten().tolist())
    return values if len(set(values)) > 1 else values[0]


def _elements(ref: TensorRef) -> int:
    return max(0, ref.geometry.end)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _refs(tree: Any) -> list[TensorRef]:
    return [x for x in tree_leaves(tree) if isinstance(x, TensorRef)]
