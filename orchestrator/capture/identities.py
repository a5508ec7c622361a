"""Which object a name is bound to, before a step and after it, where none of its contents tells.

Two locks, two process groups or two generators look alike. Code that moves such objects on, one place in each
step, does something else when another one arrives. So an object is told by itself: where a name is bound to
one that was met before the step elsewhere, the step has moved it. One that is made anew is none of these.
"""

from __future__ import annotations

import types
import weakref
from collections import UserDict, UserList, deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from .frames import of_user
from .holding import kind
from .per_class import per_class

#: What they hold tells them apart, and many are made anew wherever somebody looks.
_BY_CONTENTS = (
    *(torch.Tensor, dict, list, tuple, set, frozenset, deque, UserDict, UserList, Iterator, weakref.ref),
    *(types.CellType, types.MethodType, types.MethodWrapperType, types.BuiltinFunctionType),
    *(types.MappingProxyType, types.SimpleNamespace, types.TracebackType, types.FrameType, BaseException),
)


@per_class
def told_by_itself(kind: type) -> bool:
    """Does it count which object of this class a name is bound to?"""
    return not issubclass(kind, _BY_CONTENTS)


@per_class
def _moves(kind: type) -> bool:
    return issubclass(kind, (dict, list, tuple, deque, types.CellType, torch.nn.Module)) or of_user(kind)


def may_move(holder: object) -> bool:
    """Does code of the user's move on tensors that this holds? A library's own objects have buffers."""
    return _moves(type(holder))


def states_among(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Tensors that are inputs and outputs of a step by name: whatever holds them after it is compared so."""
    for tensor in (*model.parameters(), *model.buffers()):
        yield from (t for t in (tensor, tensor.grad) if t is not None)
    yield from (t for t in tree_leaves(dict(optimizer.state)) if isinstance(t, torch.Tensor))
    yield from (
        t for group in optimizer.param_groups for t in tree_leaves(group) if isinstance(t, torch.Tensor)
    )


class Known:
    """Objects that were met in one look at all that a step can reach."""

    def __init__(self) -> None:
        self._by_identity: dict[int, Any] = {}

    def add(self, value: object) -> None:
        """It is kept alive only where nothing tells that it is gone, and another one has its identity."""
        try:
            self._by_identity[id(value)] = weakref.ref(value)
        except TypeError:
            self._by_identity[id(value)] = value

    def __contains__(self, value: object) -> bool:
        held = self._by_identity.get(id(value))
        return (held() if type(held) is weakref.ref else held) is value and value is not None


class Which:
    """The object that a name is bound to; two are other ones if the later one was ``known`` before."""

    def __init__(self, value: object, known: Known) -> None:
        self._known, self._identity = known, id(value)
        self._kind = "ProcessGroup" if isinstance(value, dist.ProcessGroup) else kind(value)
        known.add(value)
        try:
            self._held: Any = weakref.ref(value)
        except TypeError:
            self._held = value

    def _object(self) -> object:
        return self._held() if type(self._held) is weakref.ref else self._held

    def __ne__(self, later: object) -> bool:
        if not isinstance(later, Which):
            return True
        now = later._object()
        return self._identity != later._identity and now in self._known

    def __eq__(self, later: object) -> bool:
        return not self != later

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"one {self._kind}"
