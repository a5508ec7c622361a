"""Which statement made a view: its ops are emitted where it is first read, which may be far from there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from .builder import Builder, Frame


class Place(Protocol):
    """Where a tensor lies in its storage."""

    @property
    def elements(self) -> tuple[int, ...]: ...


class Ref(Protocol):
    """A tensor by its storage and place there."""

    @property
    def storage(self) -> int: ...
    @property
    def geometry(self) -> Place: ...


_Line = tuple[Frame | None, Frame | None]


@dataclass(frozen=True, slots=True)
class _Made:
    """The line that took these elements out of others, if one did, and the one that laid them as they are."""

    taken: _Line | None
    laid: _Line


class ViewLines:
    """The lines of views, by storage and geometry: a trace knows no tensors.

    A view that is made again before it is read is the latest one: the earlier was made on the way to another.
    Of a view of a view two lines count: ``mine = flat[a:b]`` takes the elements, ``mine.t()``, which may be
    PyTorch's own in ``F.linear(x, mine)``, lays them in another order.
    """

    def __init__(self, builder: Builder) -> None:
        self._b = builder
        self._made: dict[tuple[int, Place], _Made] = {}

    def noted(self, views: Sequence[Ref], operands: Sequence[Ref]) -> bool:
        """The op that runs now makes these of operands; false if one of them is no view of any."""
        of = {operand.storage: operand.geometry for operand in reversed(operands)}
        if not views or any(view.storage not in of for view in views):
            return False
        here = self._b.frame, self._b.caller
        for view in views if self._b.frame is not None else ():
            key, source = (view.storage, view.geometry), of[view.storage]
            if source != view.geometry:
                parent = self._made.get((view.storage, source))
                before = None if parent is None else parent.taken
                self._made[key] = _Made(before if source.elements == view.geometry.elements else here, here)
        return True

    def taking(self, storage: int, place: Place) -> AbstractContextManager[None]:
        """What is emitted inside takes the elements of a tensor out of a storage."""
        made = self._made.get((storage, place))
        return nullcontext() if made is None else self._b.at(*(made.taken or made.laid))

    def laying(self, storage: int, place: Place) -> AbstractContextManager[None]:
        """What is emitted inside brings these elements into the tensor's order and shape."""
        made = self._made.get((storage, place))
        return nullcontext() if made is None else self._b.at(*made.laid)
