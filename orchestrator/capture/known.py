"""In which range the integers of a buffer lie, where ``build`` makes them of plain numbers.

`build` runs over fake tensors. What it makes of numbers alone (`arange`, `tensor([...])` and all that follows
from them) is small where it holds positions or rows of a table, and is computed beside it. A look-up by such
a buffer has a meaning only inside of the table, so the range becomes a declared one of the plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .names import buffers

#: More elements are not computed.
MOST = 1 << 22
_UNDEFINED = ("empty", "new_empty", "resize")
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)

Bounds = tuple[int, int]


@dataclass(frozen=True)
class _Entry:
    """A tensor's place when its values were known, and those."""

    tensor: weakref.ref[torch.Tensor]
    place: tuple[object, ...]
    values: torch.Tensor


class Known(TorchDispatchMode):  # type: ignore[misc]  # torch's own types
    """Follows ``build`` inside a fake mode, and afterwards, inside the same, what is written to its buffers.

    What is random, undefined, made of a fake tensor that is not known, or written through an alias that is
    not followed is not known.
    """

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[int, _Entry] = {}
        #: Storages with a write that was not followed; kept, so that no other one has their identity.
        self._spoiled: dict[int, object] = {}
        self._kept: dict[int, object] = {}
        self._built: Mapping[str, torch.Tensor] = {}
        #: Names of the buffers that ``build`` makes of zeros alone.
        self.zeros: frozenset[str] = frozenset()
        self._building = True

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not (self._building and self._follow(func, args, kwargs, out)):
            self._spoil(func, args, kwargs)
        return out

    def built(self, model: nn.Module) -> bool:
        """``build`` is over: from now on values are no longer followed. Is that of any buffer known?"""
        known = {n: (b, values) for n, b in buffers(model) if (values := self._values(b)) is not None}
        with _disable_current_modes():
            self.zeros = frozenset(f"buffers.{n}" for n, (_, values) in known.items() if not values.any())
        self._built = {n: b for n, (b, _) in known.items() if b.dtype in _INTEGERS}
        self._building = False
        return bool(self._built)

    def ranges(self, model: nn.Module | None = None) -> dict[str, Bounds]:
        """The half-open ranges of integer buffers that nothing has changed since the model was built.

        Those that ``model`` has still, if it is given: a rank may hold parts of them, or copies.
        """
        held = self._built if model is None else dict(buffers(model))
        found = {}
        for name, buffer in self._built.items():
            values = self._values(buffer) if held.get(name) is buffer else None
            if values is not None and values.numel():
                with _disable_current_modes():
                    found[f"buffers.{name}"] = int(values.min()), int(values.max()) + 1
        return found

    def _follow(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> bool:
        """Compute the same op on known values, if all of them are; whether it was."""
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        results = tree_leaves(out)
        real = func is torch.ops.aten.lift_fresh.default  # torch.tensor([...])
        if (
            torch.Tag.nondeterministic_seeded in func.tags
            or func._schema.name.removeprefix("aten::").startswith(_UNDEFINED)
            or not (real or all(self._values(x) is not None for x in leaves))
            or not all(isinstance(x, torch.Tensor) and x.numel() <= MOST for x in results)
        ):
            return False
        try:
            with _disable_current_modes(), torch.no_grad():
                made = func(*tree_map(self._real, args), **tree_map(self._real, kwargs))
        except Exception:  # what cannot be computed here is not known
            return False
        for fake, values in zip(results, tree_leaves(made), strict=True):
            if values.device.type == "cpu" and (values.dtype, values.shape) == (fake.dtype, fake.shape):
                self._kept[fake.untyped_storage()._cdata] = fake.untyped_storage()
                self._entries[id(fake)] = _Entry(weakref.ref(fake), _place(fake), values)
        return True

    def _spoil(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        if not func._schema.is_mutable:
            return
        names = [a.name for a in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for x in tree_leaves(given.get(argument.name)):
                    if isinstance(x, torch.Tensor):
                        self._spoiled[x.untyped_storage()._cdata] = x.untyped_storage()

    def _real(self, item: Any) -> Any:
        known = self._values(item) if isinstance(item, torch.Tensor) else None
        return item if known is None else known

    def _values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        entry = self._entries.get(id(tensor))
        if entry is None or entry.tensor() is not tensor or entry.place != _place(tensor):
            return None
        return None if entry.place[0] in self._spoiled else entry.values


def _place(tensor: Any) -> tuple[object, ...]:
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
