"""What a value in Python can count with besides its parts: how long it is, how far it is read, what it draws.

Which way there is to tell is decided by the class of a value alone, so it is asked for once per class.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import os
import queue
import random
import sqlite3
import zlib
from abc import ABCMeta, _get_dump  # type: ignore[attr-defined]
from array import array
from collections import UserDict, UserList, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from mmap import mmap
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from . import opaque
from .frames import of_user
from .holding import CACHES, LARGE, PLAIN, PLAINEST, RUNNING
from .per_class import per_class

#: Larger arrays count nothing (bytes).
_BYTES = 1 << 28
#: Arrays of so many elements are told in full.
_SHOWN = 8
_OF_C = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)
_ARRAYS = (np.ndarray, bytearray, array, memoryview, mmap)
_DIGESTS = frozenset(("_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2", "hmac"))
_Position = Callable[[Any], object]


def position_of(value: object) -> object:
    """What a container, an array, a cache, an iterator or a source of random numbers can count with."""
    position = _position(type(value))
    return None if position is None else position(value)


@per_class
def _position(kind: type) -> _Position | None:
    for kinds, position in _POSITIONS:
        if issubclass(kind, kinds):
            return position
    kind = opaque.beneath(kind)
    if kind in RUNNING:
        return _of_running
    if kind.__module__ == "_io":
        return _place_in
    if kind.__module__ in _DIGESTS and hasattr(kind, "hexdigest"):
        return _of_digest
    if issubclass(kind, Iterator):
        return repr if issubclass(kind, itertools.count) else opaque.shown
    return opaque.shown if opaque.makes_opaque(kind) else None


def _size(entries: Any, length: int) -> object:
    """The length of a container; of a large one its plain values too, which are not looked at one by one."""
    if length <= LARGE:
        return length
    return length, hash(tuple(x for x in entries if isinstance(x, bool | int | float | str | bytes)))


class Order:
    """The order of objects; one of others is the same where those that both have are in one order, each as
    often as it stands there.

    Keys that a step makes anew, as caches have them, say nothing.
    """

    def __init__(self, of: Iterable[object]) -> None:
        self._held = tuple(of)  # alive, so that nothing else takes an identity
        self._of = tuple(map(id, self._held))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Order):
            return NotImplemented
        both = set(self._of).intersection(other._of)
        return [i for i in self._of if i in both] == [i for i in other._of if i in both]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{len(self._of)} keys in order {hash(self._of) & 0xFFFF:04x}"


def _of_dictionary(value: dict[Any, Any]) -> object:
    size = _size(dict.values(value), dict.__len__(value))
    # Code may turn a plan of ten steps round by its keys.
    plain = hash(tuple(k for k in dict.keys(value) if type(k) in PLAINEST))
    others = [k for k in dict.keys(value) if type(k) not in PLAINEST]
    return (size, plain, Order(others)) if others else (size, plain)


def _of_set(value: set[Any] | frozenset[Any]) -> object:
    plain = sorted(repr(x) for x in value if isinstance(x, PLAIN))
    return len(value), plain if len(plain) <= _SHOWN else hash(tuple(plain))


def _of_list(value: Any) -> object:
    size, others = _size(value, len(value)), [x for x in value if type(x) not in PLAINEST]
    return (size, Order(others)) if others else size


def _of_tuple(value: tuple[Any, ...]) -> object:
    if len(value) > LARGE:
        return _size(value, len(value))
    if opaque.is_opaque(value):
        return opaque.shown(value)
    others = [x for x in value if type(x) not in PLAINEST]
    return (len(value), Order(others)) if len(others) > 1 else len(value)


def _of_abstract(value: Any) -> object:
    """How many classes are registered with one of the user's."""
    return len(_get_dump(value)[0]) if of_user(value) else None


def _of_array(value: Any) -> object:
    held = np.frombuffer(value, np.uint8) if isinstance(value, mmap) else np.asarray(value)
    if held.dtype.hasobject or held.nbytes > _BYTES:
        return held.shape
    return held.tolist() if held.size <= _SHOWN else zlib.crc32(held.reshape(-1).view(np.uint8).data)


def _of_running(value: Any) -> object:
    frame = getattr(value, RUNNING[type(value)][0])
    return -1 if frame is None else frame.f_lasti


def _of_digest(value: Any) -> object:
    return value.hexdigest() if getattr(value, "digest_size", 0) else value.hexdigest(8)


def _place_in(file: Any) -> object:
    """How far a file is read. One that is only written to may be a log, which decides nothing."""
    try:
        if file.closed or not file.readable():
            return None
        if isinstance(file, io.StringIO | io.BytesIO):
            return file.tell()
        try:
            return file.tell()
        except OSError:  # while a text file is read line by line
            return os.lseek(file.fileno(), 0, os.SEEK_CUR)
    except (OSError, ValueError):  # a pipe, a terminal
        return None


def written(file: Any) -> object:
    """How far a file is read or written."""
    with contextlib.suppress(OSError, ValueError):  # a pipe, a terminal, one that is closed
        return file.tell()
    return None


#: By class, the first that fits: of files, digests, iterators and what is made in C :func:`_position` says.
_POSITIONS: tuple[tuple[Any, _Position], ...] = (
    (dict, _of_dictionary),
    (sqlite3.Connection, lambda value: value.total_changes),
    ((set, frozenset), _of_set),
    ((UserDict, MappingProxyType, KeysView, ValuesView, ItemsView), len),
    (ABCMeta, _of_abstract),
    ((list, deque, UserList), _of_list),
    (tuple, _of_tuple),
    (_OF_C, bytes),
    (_ARRAYS, _of_array),
    (CACHES, lambda value: value.cache_info()[1:]),  # what it was asked for again is no news
    (queue.SimpleQueue, lambda value: value.qsize()),
    (torch.Generator, lambda value: value.initial_seed()),
    (random.SystemRandom, lambda value: None),
    (random.Random, lambda value: hash(value.getstate())),
    (np.random.Generator, lambda value: repr(value.bit_generator.state)),
    (np.random.BitGenerator, lambda value: repr(value.state)),
    (np.random.SeedSequence, lambda value: value.n_children_spawned),
    (torch.UntypedStorage, lambda value: value.nbytes()),
    (np.random.RandomState, lambda value: value.get_state(legacy=False)["state"]["pos"]),
)
