"""Tensors that are made once of numbers alone, and kept: masks in a cache, tables of rotations.

A recorded step that reads one finds it made already: by `build`, or by one of the steps before. The ops
that made it are followed here, and a program that reads it runs them anew. So what is kept is what the trace
says it is, on the single device and on each rank; a model's own tensors, an optimizer's and batches are no
constants, nor is what was made of them, by chance, by a collective, or changed by a later step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .amounts import unwraps_itself
from .frames import frames
from .group import Traced
from .layouts import local_tensor
from .raising import refuse_handled
from .recorder import DTYPES, WRITTEN_OUT, Node, TensorRef, reference
from .signatures import Signature, signature
from .substituting import replaced

#: Ops of these give the same for the same operands, unless they draw.
_PURE = ("aten", "prims")
#: Ops that ask their first operand for its shape and type only.
SHAPED = frozenset(
    f"aten.{name}.default"
    for name in (
        *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full"),
        *("new_empty", "new_empty_strided"),
    )
)


class Constants(TorchDispatchMode):  # type: ignore[misc]  # torch's own types
    """Follows what is made of numbers alone, through `build`, `parallelize` and all steps of one trace.

    A storage is followed while only one stage (`build` and what precedes the first step, or one step) writes
    to it, each time by an op whose operands are followed. All of them are kept alive: no other one gets
    the identity of one that is followed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[Node] = []
        #: Of what is made now; a step begins a new one.
        self.stage = 0
        #: The stage that made a storage.
        self._made: dict[int, int] = {}
        self._alive: dict[int, object] = {}
        #: Storages that later stages, other ranks or chance may have written.
        self._spoiled: set[int] = set()
        #: Those among them of which, whenever it was, nothing is a constant that was made of them.
        self._foreign: set[int] = set()

    def foreign(self, tensors: Iterable[torch.Tensor]) -> None:
        """States, batches, what a collective was given: nobody knows what they hold, or will."""
        for tensor in tensors:
            self._keep(tensor.untyped_storage())
            self._foreign.add(tensor.untyped_storage()._cdata)
        self._spoiled |= self._foreign

    @contextmanager
    def following(self) -> Iterator[None]:
        """What the user's code runs inside is followed, and also writes and losses that are no ops."""

        def resized(original: Any) -> Any:
            def method(storage: torch.UntypedStorage, *arguments: Any) -> Any:
                self._spoiled.add(self._keep(storage))
                return original(storage, *arguments)

            return method

        def met(original: Any) -> Any:
            def method(group: Any, name: str, outs: Any, ins: Any, *arguments: Any) -> Any:
                self.foreign(t for t in tree_leaves((outs, ins)) if isinstance(t, FakeTensor))
                return original(group, name, outs, ins, *arguments)

            return method

        with (
            replaced(torch.UntypedStorage, "resize_", resized),
            replaced(Traced, "_event", met),
            self,
        ):
            yield

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(map(unwraps_itself, types)):
            return NotImplemented
        kwargs = kwargs or {}
        said = signature(func)
        if said.silent:
            return func(*args, **kwargs)
        result = self._run(func, said, args, kwargs)
        if not said.view:  # which runs no kernel
            refuse_handled()
        return result

    def _run(self, func: Any, said: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        written = _tensors(said.written(args, kwargs))
        if not self._followed(func, said, args, kwargs) or any(
            self._made.get(t.untyped_storage()._cdata) != self.stage for t in written
        ):
            self._spoil(written if func.namespace in _PURE else tree_leaves((args, kwargs)))
            return func(*args, **kwargs)
        # Operands are described before the op runs, which may change what they are.
        described = _described((args, dict(kwargs)))
        result = func(*args, **kwargs)
        made = _described(result) if all(map(_is_fake, tree_leaves(result))) else None
        if described is None or made is None:
            self._spoil(written)
            return result
        if not said.view or _storages(made) - _storages(described):  # what a view names is known
            for tensor in tree_leaves(result):
                self._made.setdefault(self._keep(tensor.untyped_storage()), self.stage)
            refs = [ref for ref in tree_leaves((described, made)) if isinstance(ref, TensorRef)]
            name = f"complex.{said.name}" if any(ref.complex for ref in refs) else said.name
            writes = tuple(ref for ref in tree_leaves(_described(written)) if isinstance(ref, TensorRef))
            frame, caller = frames(engine=False)
            operands, named = described
            self._nodes.append(Node(name, operands, named, made, writes, frame, caller=caller))
        return result

    def read(self, nodes: Sequence[Node], results: Iterable[TensorRef], stage: int) -> set[int]:
        """The constants that a step of ``stage`` finds made."""
        lost = {*self._foreign}
        for node in self._nodes:
            if lost & _storages(_operands(node)):
                lost |= _storages((node.outs, node.writes))
        lost |= self._spoiled
        early = {s for s, made in self._made.items() if made < stage} - lost
        return early & (_storages([(n.args, n.kwargs) for n in nodes]) | _storages(list(results)))

    def making(self, storages: Iterable[int]) -> list[Node]:
        """The ops that made these, in their order."""
        waiting, found = {*storages}, list[Node]()
        for node in reversed(self._nodes) if waiting else ():
            if waiting & _storages((node.outs, node.writes)):
                found.append(node)
                waiting |= _storages(_operands(node))
        return found[::-1]

    def among(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorRef]:
        """Those of named tensors that are followed: which one, and what of it."""
        local = {name: local_tensor(tensor) for name, tensor in tensors.items()}
        found = {name: _described(t) for name, t in local.items() if _is_fake(t) and self._known(t)}
        return {name: ref for name, ref in found.items() if ref is not None}

    def _followed(self, func: Any, said: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Is what the op makes known by its name and its operands?"""
        first = next((x for x in args if isinstance(x, torch.Tensor)), None)
        if first is not None and said.name not in SHAPED and not self._known(first):
            return False  # most ops of a step, at little cost
        leaves = tree_leaves((args, kwargs))
        if func.namespace not in _PURE or torch.Tag.nondeterministic_seeded in func.tags:
            return False
        if any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in leaves):
            return False  # a routing decides it
        given = _tensors(leaves)
        if said.name in SHAPED:
            return all(map(_is_fake, given))
        return all(self._known(tensor) for tensor in given)

    def _known(self, tensor: torch.Tensor) -> bool:
        if not _is_fake(tensor):
            return bool(tensor.numel() <= WRITTEN_OUT)
        storage = tensor.untyped_storage()._cdata
        return storage in self._made and storage not in self._spoiled

    def _keep(self, storage: torch.UntypedStorage) -> int:
        self._alive[storage._cdata] = storage
        return int(storage._cdata)

    def _spoil(self, items: Iterable[Any]) -> None:
        for tensor in _tensors(items):
            storage = tensor.untyped_storage()._cdata
            if storage in self._made:
                self._spoiled.add(storage)


def _is_fake(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _described(tree: Any) -> Any:
    """The tree with each tensor described; ``None`` if one has no place in a plan."""

    def leaf(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return reference(item)
        return DTYPES.get(item, str(item)) if isinstance(item, torch.dtype) else item

    return tree_map(leaf, tree) if all(map(_has_a_place, _tensors(tree))) else None


def _has_a_place(tensor: torch.Tensor) -> bool:
    """Asked beforehand: what is raised while the user's code runs is told, wherever it is caught."""
    if tensor.is_neg() or tensor.dtype not in (*DTYPES, torch.complex64, torch.complex128):
        return False
    return _is_fake(tensor) or (0 < tensor.numel() <= WRITTEN_OUT and not tensor.is_complex())


def _operands(node: Node) -> Any:
    return () if node.op in SHAPED else (node.args, dict(node.kwargs))


def _storages(tree: Any) -> set[int]:
    return {ref.storage for ref in tree_leaves(tree) if isinstance(ref, TensorRef)}
