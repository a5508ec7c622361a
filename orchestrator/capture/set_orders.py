"""The order in which a set is gone through: of texts and of objects it is another one in each process.

A set of texts is in the order of their hashes, which each process draws, one of objects in that of where they
lie in memory. So a second process goes through the sets of the user's code in another order on purpose. The
slot of the class ``set`` that all iteration begins with (``for``, ``list``, ``next(iter(…))``, unpacking,
``join``) is Python's own: it is written to in processes that do nothing but trace, and end then.
"""

from __future__ import annotations

import _weakrefset
import ctypes
import functools
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from .answers import hashed_alike, users_own
from .frames import PROJECT, runs_in

#: How the order is changed; as it is where ``None``.
Change = Callable[[list[Any]], list[Any]]
#: ``Py_tp_iter``: the number of the slot that begins an iteration.
_ITERATES = 62
#: Files of functions that go through a set for their caller.
_BETWEEN = (__file__, _weakrefset.__file__)

_begin = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
_gone_through = Counter[bool]()
#: What Python calls must stay alive.
_kept: list[object] = []


def gone_through() -> tuple[int, int]:
    """How often code of the user's has gone through a set whose order each process has for itself, and how
    often a library has, in the user's name."""
    return _gone_through[True], _gone_through[False]


def turned(items: list[Any]) -> list[Any]:
    """Another order, in which nothing has the place that it had."""
    return items[1:] + items[:1] if len(items) % 2 else items[::-1]


def shuffled(seed: int) -> Change:
    """Orders that are drawn, alike whenever the seed is."""
    own = random.Random(seed)
    return lambda items: own.sample(items, len(items))


def watch_sets(change: Change | None = None) -> None:
    """From now on, until this process ends, sets are counted, and gone through in another order."""
    if _kept:
        return
    order = change or _as_it_is
    for kind in (set, frozenset):
        slot = _slot(kind)
        plain = _begin(slot.value)
        ours = _begin(functools.partial(_iterated, plain, order))
        _kept.extend((plain, ours))
        slot.value = ctypes.cast(ours, ctypes.c_void_p).value
        _modified(kind)
    _put(set, "pop", _popping(set.pop))
    _put(dict, "fromkeys", classmethod(_keyed(vars(dict)["fromkeys"])))


def _slot(kind: type) -> Any:
    """Where a class of Python's keeps what begins an iteration."""
    ask = ctypes.pythonapi.PyType_GetSlot
    ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_int]
    held = ask(kind, _ITERATES)
    size: int = vars(type)["__basicsize__"].__get__(type)
    places = range(id(kind), id(kind) + size, ctypes.sizeof(ctypes.c_void_p))
    return next(s for s in map(ctypes.c_void_p.from_address, places) if s.value == held)


def _modified(kind: type) -> None:
    """Python looks names of classes up in a cache (``PyType_Modified``)."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _put(kind: type, name: str, method: object) -> None:
    """A method of a class of Python's own."""
    (variables,) = gc.get_referents(vars(kind))
    _kept.append(variables[name])
    variables[name] = method
    _modified(kind)


def _as_it_is(items: list[Any]) -> list[Any]:
    """A copy here too: what is made later lies in memory where it does in the other process."""
    return items[:]


def _iterated(plain: Any, order: Change, items: Any) -> Any:
    if len(items) < 2 or (own := _users(plain, items, sys._getframe())) is None:
        return plain(items)
    _gone_through[own] += 1
    return iter(order(list(plain(items))))


def _popping(plain: Any) -> Any:
    """``pop`` takes the first one, in no iteration."""

    def pop(self: set[Any]) -> Any:
        if len(self) < 2:
            return plain(self)
        first = next(iter(self))
        self.discard(first)
        return first

    return pop


def _keyed(plain: Any) -> Any:
    """``fromkeys`` has a way of its own for sets."""

    def fromkeys(cls: type, keys: Any, value: Any = None) -> Any:
        return plain.__get__(None, cls)(list(keys) if isinstance(keys, set | frozenset) else keys, value)

    return fromkeys


def _users(plain: Any, items: Any, frame: FrameType | None) -> bool | None:
    """Is it the user's own code that goes through an order of the process's own? Libraries do so in the
    user's name where there are tensors or modules in a set; otherwise, None, it is nobody's affair."""
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    if users_own(frame):
        return None if all(map(hashed_alike, plain(items))) else True
    if frame is None or runs_in(frame).startswith(PROJECT):
        return None
    return False if any(isinstance(item, torch.Tensor | nn.Module) for item in plain(items)) else None
