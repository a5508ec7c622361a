"""What a value in Python holds: its parts by name, and what it can count with besides.

Containers, closures, hooks, objects and classes of the user's hold what the user's code puts into them. Of
objects of Python's library and of PyTorch (a queue, a model averager, the state of a communication hook) only
what they hold themselves is looked at: further in are caches and locks.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import io
import itertools
import logging
import os
import queue
import random
import sqlite3
import sys
import threading
import types
import zlib
from abc import ABCMeta, _get_dump  # type: ignore[attr-defined]
from argparse import Namespace
from array import array
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from datetime import date, timedelta
from enum import Enum
from mmap import mmap
from multiprocessing import sharedctypes
from numbers import Number
from pathlib import PurePath
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from . import opaque
from .bytecode import imports, sets
from .frames import is_installed, is_users

#: Of larger containers the plain values are compared as a whole; larger arrays count nothing (bytes).
_LARGE, _BYTES = 1000, 1 << 28
#: Of still larger ones nothing else is looked at.
_MANY = 1 << 16
#: Arrays of so many elements are told in full.
_SHOWN = 8
#: What has no parts and cannot be changed: a name is bound to another one.
_VALUES = (bool, int, float, str, bytes, Number, np.generic, Enum, date, timedelta)
_PLAINEST = frozenset((bool, int, float, str, bytes, type(None)))
PLAIN = (*_VALUES, range, slice, PurePath, torch.dtype, torch.device)
#: Classes of Python's own that hold what the user's code puts into them.
_BAGS = (SimpleNamespace, Namespace, threading.local, UserDict, UserList)
_FOLLOWED = (
    nn.Module,
    torch.Tensor,
    torch.optim.Optimizer,
    LRScheduler,
    Mapping,
    Iterator,
    sharedctypes.SynchronizedBase,
    *_BAGS,
)
#: What classes of these modules hold is the user's.
_CONTAINERS = ("builtins", "collections", "functools", "itertools", "types", "_contextvars")
CACHES = type(functools.lru_cache(len))
#: What the table of a cache of some size consists of.
_LINK = "_lru_list_elem"
#: What PyTorch itself keeps on a module and on an optimizer; hooks and others are the user's.
_OF_MODULES = frozenset(k for k in vars(nn.Module()) if "hook" not in k) - {
    *("training", "_non_persistent_buffers_set")
}
_OF_TENSORS = frozenset(("fake_mode", "constant", "pytype", "dispatch_keys", "real_tensor"))
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = frozenset(
    (*(k for k in vars(torch.optim.SGD([torch.zeros(())])) if "hook" not in k), "_opt_called")
) - {"defaults"}
#: What FSDP notes for the backward pass that empties it; in a model that has none (a frozen teacher)
#: it grows. It says in which order weights are gathered ahead. FSDP1 counts its iterations, and asks whether
#: this is the first one. Who names it may count with it.
UNASKED = ("_post_forward_indices", "post_forward_order", "_iter")
_FSDP = "torch.distributed.fsdp."
#: Names that Python itself gives to a module and to a class; all others the user's code has chosen.
_OF_PYTHON = frozenset(
    (
        *vars(types.ModuleType("")),
        *("__builtins__", "__file__", "__cached__", "__path__", "__warningregistry__"),
        *("__module__", "__dict__", "__weakref__", "__qualname__", "__abstractmethods__", "__mro__"),
        *("__parameters__", "__orig_bases__", "__slots__", "__match_args__", "__firstlineno__"),
        *("__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__type_params__"),
    )
) - {"__doc__"}
_OF_C = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)
_DIGESTS = frozenset(("_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2", "hmac"))
#: A frame that is running on, what it waits for: of generators and coroutines.
_RUNNING = {
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    CoroutineType: ("cr_frame", "cr_await"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}
CODE = (FunctionType, BuiltinFunctionType, type)


def users(module: str) -> bool:
    """Is this the name of a module outside Python's library, PyTorch and this package?"""
    return is_users(getattr(sys.modules.get(module), "__file__", None) or "<")


def handed_out(names: Set[str]) -> Iterator[tuple[str, object]]:
    """What code has put on the loggers and threads that Python's library hands out, if it asks for these."""
    if not {"getLogger", "root", "loggerDict"}.isdisjoint(names):
        # Who made it knows all others, and what is logged is noted in a cache.
        own: Set[str] = {"manager", "parent", "_cache"}
        for logger in (logging.root, *logging.Logger.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger):
                yield f"the logger {logger.name}", {k: v for k, v in vars(logger).items() if k not in own}
    if not {"current_thread", "main_thread", "currentThread"}.isdisjoint(names):
        own = vars(threading.Thread(name="")).keys() - {"_name"}
        for thread in threading.enumerate():  # its name may change, and others may end
            yield f"the thread {thread.ident}", {k: v for k, v in vars(thread).items() if k not in own}


def part(path: str, value: object, inner: str) -> object:
    """The part of this name as it is now."""
    return next((item for name, item in parts(path, value) if name == inner), None)


def imported(function: FunctionType) -> Iterator[types.ModuleType]:
    """Modules that the code of a function imports itself, as far as they are loaded by now."""
    package = function.__globals__.get("__package__") or ""
    for name in imports(function.__code__):
        found = sys.modules.get(name.replace("$", package, 1) if name.startswith("$") else name)
        if isinstance(found, types.ModuleType):
            yield found


def kind(value: Any) -> str:
    """The name of a function or class, or the class of an object."""
    named = value if isinstance(value, CODE) else type(value)
    line = f" of line {value.__code__.co_firstlineno}" if isinstance(value, FunctionType) else ""
    return f"{named.__qualname__}{line}"


def _size(entries: Any, length: int) -> object:
    """The length of a container; of a large one its plain values too, which are not looked at one by one."""
    if length <= _LARGE:
        return length
    return length, hash(tuple(x for x in entries if isinstance(x, bool | int | float | str | bytes)))


def position_of(value: object) -> object:
    """What a container, an array, a cache, an iterator or a source of random numbers can count with."""
    if isinstance(value, dict):
        size = _size(dict.values(value), dict.__len__(value))
        # Code may turn a plan of ten steps round by its keys.
        return size, hash(tuple(k for k in dict.keys(value) if type(k) in _PLAINEST))
    if isinstance(value, sqlite3.Connection):
        return value.total_changes
    if isinstance(value, set | frozenset):
        plain = sorted(repr(x) for x in value if isinstance(x, PLAIN))
        return len(value), plain if len(plain) <= _SHOWN else hash(tuple(plain))
    if isinstance(value, UserDict):
        return len(value)
    if isinstance(value, ABCMeta) and users(value.__module__):
        return len(_get_dump(value)[0])  # classes that are registered with it
    if isinstance(value, list | deque | UserList) or (isinstance(value, tuple) and len(value) > _LARGE):
        return _size(value, len(value))
    if isinstance(value, _OF_C):
        return bytes(value)
    if isinstance(value, np.ndarray | bytearray | array | memoryview | mmap):
        held = np.frombuffer(value, np.uint8) if isinstance(value, mmap) else np.asarray(value)
        if held.dtype.hasobject or held.nbytes > _BYTES:
            return held.shape
        return held.tolist() if held.size <= _SHOWN else zlib.crc32(held.reshape(-1).view(np.uint8).data)
    if isinstance(value, CACHES):
        return value.cache_info()[1:]  # what it was asked for again is no news
    if type(value) in _RUNNING:
        frame = getattr(value, _RUNNING[type(value)][0])
        return -1 if frame is None else frame.f_lasti
    if isinstance(value, queue.SimpleQueue):
        return value.qsize()
    if type(value).__module__ == "_io":
        return _place_in(value)
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if type(value).__module__ in _DIGESTS and hasattr(value, "hexdigest"):
        return value.hexdigest() if getattr(value, "digest_size", 0) else value.hexdigest(8)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return hash(value.getstate())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)["state"]["pos"]
    if isinstance(value, Iterator):
        return repr(value) if isinstance(value, itertools.count) else opaque.shown(value)
    return opaque.shown(value) if opaque.is_opaque(value) else None


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


def chosen(name: str) -> bool:
    """Is it no name that Python itself gives to a module or a class?"""
    return name not in _OF_PYTHON


@functools.cache
def _stored(kind: Any) -> frozenset[str]:
    """Attributes that methods of a class set, as the code of the class says."""
    functions = [f for base in kind.__mro__ for f in vars(base).values() if isinstance(f, FunctionType)]
    return frozenset[str]().union(*(sets(f.__code__) for f in functions))


def _looked_at(entries: Iterable[tuple[Any, object]], length: int) -> Iterator[tuple[Any, object]]:
    """Keys and items of a container; of a large one what is no plain value: those are compared as a whole."""
    if length <= _LARGE:
        yield from entries
    elif length <= _MANY:
        yield from ((key, item) for key, item in entries if type(item) not in _PLAINEST)


def parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """What an object holds: its contents, and the attributes of one of the user's classes."""
    if isinstance(value, dict):
        # What it holds: a lazy dictionary would import or compute all that it can give.
        entries = _looked_at(dict.items(value), dict.__len__(value))
        yield from ((f"{path}[{key!r}]", item) for key, item in entries)
    elif isinstance(value, Mapping):
        if len(value) <= _LARGE:
            yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, set | frozenset):
        held = ((i, x) for i, x in enumerate(value) if not isinstance(x, PLAIN))
        yield from ((f"{path}, member {i}", item) for i, item in _looked_at(held, len(value)))
    elif isinstance(value, ctypes._Pointer):
        if value:
            yield f"{path}.contents", value.contents
    elif isinstance(value, list | tuple | deque | UserList):
        yield from ((f"{path}[{i}]", item) for i, item in _looked_at(enumerate(value), len(value)))
    elif isinstance(value, nn.Module):
        yield from _parts_of_module(path, value)
        return
    elif isinstance(value, torch.Tensor):
        yield from _parts_of_tensor(path, value)
        return
    elif isinstance(value, torch.optim.Optimizer):
        yield from ((f"{path}.{k}", item) for k, item in vars(value).items() if k not in _OF_OPTIMIZERS)
        yield f"{path}.param_groups", value.param_groups
        yield f"{path}.state", list(value.state.values())
        yield type(value).__name__, type(value)
        return
    elif type(value) in _RUNNING:
        frame, awaited = (getattr(value, name) for name in _RUNNING[type(value)])
        if frame is not None:
            yield from frame.f_locals.items()
        yield f"what {path} yields from", awaited
    elif isinstance(value, torch.futures.Future):
        yield from _promised(path, value)
    elif isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        # Many do not say how far they are, but hold the iterators that do.
        yield from ((f"{path}.{i}", item) for i, item in enumerate(value.__reduce__()[1:]))
    elif isinstance(value, ContextVar):
        with contextlib.suppress(LookupError):
            yield path, value.get()
    elif isinstance(value, functools.partial):
        yield path, value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, MethodType):
        yield path, value.__self__
        yield path, value.__func__
    elif isinstance(value, staticmethod | classmethod):
        yield path, value.__wrapped__
    elif isinstance(value, CACHES):
        yield path, value.__wrapped__
        yield from ((f"what {path} gave ({i})", item) for i, item in enumerate(_given(value)))
    elif isinstance(value, property):
        yield path, (value.fget, value.fset)
    elif isinstance(value, functools.cached_property | functools.partialmethod):
        yield path, value.func
    elif isinstance(value, BuiltinFunctionType | MethodWrapperType):  # list().append, count().__next__
        yield path, value.__self__
    elif isinstance(value, sharedctypes.SynchronizedBase):
        yield path, value.get_obj()
    elif isinstance(value, FunctionType):
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not bound yet
                yield key, cell.cell_contents
        yield f"the defaults of {path}", value.__defaults__
        yield f"the defaults of {path}", value.__kwdefaults__
        yield f"the annotations of {path}", value.__annotations__
        yield f"the texts of {path}", (value.__name__, value.__doc__)
        yield from ((f"{path}.{key}", item) for key, item in vars(value).items())
    elif isinstance(value, type):
        if users(value.__module__):
            for key, item in vars(value).items():
                if chosen(key):
                    yield f"{path}.{key}", item
            yield from ((kind.__name__, kind) for kind in value.__mro__[1:])
        return
    yield from _attributes(path, value)


def _promised(path: str, future: torch.futures.Future[Any]) -> Iterator[tuple[str, object]]:
    if future.done():
        with contextlib.suppress(RuntimeError):  # it has an exception
            yield f"the value of {path}", future.value()


def _given(cache: Any) -> list[object]:
    """What a cache of a function of the user's has given, and for what: code may change it where it lies."""
    code = getattr(cache.__wrapped__, "__code__", None)
    if code is None or not is_users(code.co_filename) or is_installed(code.co_filename):
        return []
    held = [x for x in gc.get_referents(cache) if x is not cache.__wrapped__ and x is not vars(cache)]
    if cache.cache_parameters()["maxsize"] is None:  # else its entries are linked
        return [item for x in held if type(x) is dict for item in x.values()]
    return [x for x in held if not (type(x) is dict and _LINK in (type(v).__name__ for v in x.values()))]


def _parts_of_module(path: str, value: nn.Module) -> Iterator[tuple[str, object]]:
    for name, module in value.named_modules(prefix=path):
        # DDP counts for itself, in what its own code sets.
        wraps = type(module).__module__.startswith("torch.nn.parallel")
        own = _stored(module.__class__) - {"_comm_hooks"} if wraps else ()
        for key, item in vars(module).items():
            if key not in _OF_MODULES and key not in own:
                yield f"{name}.{key}", item
        yield type(module).__name__, type(module)
    yield from (*value.named_parameters(prefix=path), *value.named_buffers(prefix=path))


def _parts_of_tensor(path: str, value: torch.Tensor) -> Iterator[tuple[str, object]]:
    for key, item in vars(value).items():
        if key not in _OF_TENSORS:
            yield f"{path}.{key}", item
    yield from ((f"{path}.{key}", getattr(value, key)) for key in _HOOKS_OF_TENSORS)


def followed(value: object) -> bool:
    """Is it the user's, or a container? Of other objects only what they hold themselves is looked at."""
    module = type(value).__module__
    return module in _CONTAINERS or isinstance(value, _FOLLOWED) or users(module)


def _attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Attributes and slots of an object, and the class of one of the user's, which may be local."""
    yield from opaque.parts(path, value) if opaque.is_opaque(value) else ()
    left = UNASKED if type(value).__module__.startswith(_FSDP) else ()
    held = getattr(value, "__dict__", {}).items()
    yield from ((f"{path}.{key}", item) for key, item in held if key not in left)
    if users(type(value).__module__):
        yield type(value).__name__, type(value)
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for key in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{key}" if key.startswith("__") else key
            if hasattr(value, name) and name != "__dict__":
                yield f"{path}.{name}", getattr(value, name)
