"""What DistributedDataParallel's C++ Reducer keeps for itself: small integer tensors whose values it reads.

Shapes to compare, numbers of buckets and a map of used parameters stay real in a trace of fake tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_INTEGERS = (torch.int32, torch.int64, torch.uint8)
_FACTORIES = frozenset(
    ("aten.empty.memory_format", "aten.zeros.default", "aten.ones.default", "aten.full.default")
)


class Bookkeeping(TorchDispatchMode):  # type: ignore[misc]
    """Ops on the Reducer's own integers run for real, whatever other modes are on."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """A world without any model."""
        self.models = 0
        self._building = 0
        self._kept: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self.run(func, args, kwargs) if self.concerns(func, args, kwargs) else func(*args, **kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op that :meth:`concerns` the Reducer, for real."""
        with _disable_current_modes():
            result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._kept[storage._cdata] = storage
        return result

    def concerns(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Does the op make, or only touch, integers of the Reducer?"""
        if not self._building and not self._kept:
            return False
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if tensors:
            return self.keeps(tensors)
        return bool(self._building) and str(func) in _FACTORIES and kwargs.get("dtype") in _INTEGERS

    def keeps(self, tensors: list[torch.Tensor]) -> bool:
        """Are all of these integers of the Reducer?"""
        return bool(self._kept) and all(
            not isinstance(t, FakeTensor) and t.untyped_storage()._cdata in self._kept for t in tensors
        )

    @contextmanager
    def building(self) -> Iterator[None]:
        """The Reducer makes such integers here."""
        self._building += 1
        try:
            yield
        finally:
            self._building -= 1


#: That of the world of this process.
BOOK = Bookkeeping()
