"""What a value in Python holds: its parts by name.

Containers, closures, hooks, objects and classes of the user's hold what the user's code puts into them. Of
objects of Python's library and of PyTorch (a queue, a model averager, the state of a communication hook) only
what they hold themselves is looked at: further in are caches and locks. What is looked at is decided by the
class of a value alone, so it is asked for once per class.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import sys
import threading
import types
import weakref
from argparse import Namespace
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from datetime import date, timedelta
from enum import Enum
from multiprocessing import sharedctypes
from numbers import Number
from pathlib import PurePath
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
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
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Placement
from torch.nn.attention import SDPBackend
from torch.optim.lr_scheduler import LRScheduler

from . import opaque
from .bytecode import imports, sets
from .device_threads import held_for_the_engine
from .disguise import STANDS, of_traces
from .frames import is_installed, is_users, of_user, written_in
from .per_class import per_class
from .rates import Rate

#: Of larger containers the plain values are compared as a whole.
LARGE = 1000
#: Of still larger ones nothing else is looked at.
_MANY = 1 << 16
#: What has no parts and cannot be changed: a name is bound to another one.
_VALUES = (bool, int, float, str, bytes, Number, np.generic, Enum, date, timedelta)
PLAINEST = frozenset((bool, int, float, str, bytes, type(None)))
PLAIN = (
    *(*_VALUES, range, slice, PurePath, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(Placement, dist.ReduceOp.RedOpType, SDPBackend),
)
#: Classes of Python's own that hold what the user's code puts into them.
_BAGS = (SimpleNamespace, Namespace, threading.local, UserDict, UserList)
#: They lead to what somebody else holds.
_WEAK = (weakref.ref, weakref.WeakSet, weakref.finalize)
_FOLLOWED = (
    *(nn.Module, torch.Tensor, torch.optim.Optimizer, LRScheduler, Mapping, Iterator),
    *(sharedctypes.SynchronizedBase, *_BAGS, *_WEAK),
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
_REGISTERED = ("_parameters", "_buffers", "_modules")
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
#: A frame that is running on, what it waits for: of generators and coroutines.
RUNNING = {
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    CoroutineType: ("cr_frame", "cr_await"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}
CODE = (FunctionType, BuiltinFunctionType, type)
_Parts = Callable[[str, Any], Iterable[tuple[str, object]]]


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


def chosen(name: str) -> bool:
    """Is it no name that Python itself gives to a module or a class?"""
    return name not in _OF_PYTHON


@per_class
def _stored(kind: Any) -> frozenset[str]:
    """Attributes that methods of a class set, as the code of the class says."""
    functions = [f for base in kind.__mro__ for f in vars(base).values() if isinstance(f, FunctionType)]
    return frozenset[str]().union(*(sets(f.__code__) for f in functions))


def _looked_at(entries: Iterable[tuple[Any, object]], length: int) -> Iterator[tuple[Any, object]]:
    """Keys and items of a container; of a large one what is no plain value: those are compared as a whole."""
    if length <= LARGE:
        yield from entries
    elif length <= _MANY:
        yield from ((key, item) for key, item in entries if type(item) not in PLAINEST)


def parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """What an object holds: its contents, and the attributes of one of the user's classes."""
    contents = _contents(type(value))
    if contents is not None:
        yield from contents(path, value)
    if not isinstance(value, _WHOLE) and type(value) not in STANDS:
        yield from _attributes(path, value)


@per_class
def _contents(kind: type) -> _Parts | None:
    """How objects of this class are looked into, besides their attributes."""
    if kind in RUNNING:
        return _parts_of_running
    if issubclass(kind, Iterator) and kind.__module__ in ("builtins", "itertools"):
        return _parts_of_iterator
    return next((found for kinds, found in _CONTENTS if issubclass(kind, kinds)), None)


def _parts_of_dictionary(path: str, value: dict[Any, object]) -> Iterator[tuple[str, object]]:
    """What it holds: a lazy dictionary would import or compute all that it can give."""
    entries = _looked_at(dict.items(value), dict.__len__(value))
    yield from ((f"{path}[{key!r}]", item) for key, item in entries)
    yield from _keys(path, dict.keys(value), dict.__len__(value))


def _parts_of_mapping(path: str, value: Mapping[Any, object]) -> Iterator[tuple[str, object]]:
    if len(value) <= LARGE:
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
        yield from _keys(path, value, len(value))


def _keys(path: str, keys: Iterable[object], length: int) -> Iterator[tuple[str, object]]:
    """Keys that are objects of the user's: what they hold may change where they lie."""
    if length <= _MANY:
        yield from ((f"{path}, key {i}", key) for i, key in enumerate(keys) if of_user(type(key)))


def _parts_of_set(path: str, value: Set[object]) -> Iterator[tuple[str, object]]:
    held = ((i, x) for i, x in enumerate(value) if not isinstance(x, PLAIN))
    yield from ((f"{path}, member {i}", item) for i, item in _looked_at(held, len(value)))


def _parts_of_reference(path: str, value: weakref.ref[Any]) -> Iterator[tuple[str, object]]:
    yield f"{path}()", value()
    yield f"the callback of {path}", value.__callback__


def _parts_of_list(path: str, value: Any) -> Iterator[tuple[str, object]]:
    yield from ((f"{path}[{i}]", item) for i, item in _looked_at(enumerate(value), len(value)))


def _parts_of_pointer(path: str, value: Any) -> Iterator[tuple[str, object]]:
    if value:
        yield f"{path}.contents", value.contents


def _parts_of_optimizer(path: str, value: torch.optim.Optimizer) -> Iterator[tuple[str, object]]:
    yield from ((f"{path}.{k}", item) for k, item in vars(value).items() if k not in _OF_OPTIMIZERS)
    yield f"{path}.param_groups", value.param_groups
    yield f"{path}.state", list(value.state.values())
    yield type(value).__name__, type(value)


def _parts_of_running(path: str, value: Any) -> Iterator[tuple[str, object]]:
    frame, awaited = (getattr(value, name) for name in RUNNING[type(value)])
    if frame is not None:
        yield from frame.f_locals.items()
    yield f"what {path} yields from", awaited


def _parts_of_iterator(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """Many do not say how far they are, but hold the iterators that do."""
    yield from ((f"{path}.{i}", item) for i, item in enumerate(value.__reduce__()[1:]))


def _parts_of_cell(path: str, value: CellType) -> Iterator[tuple[str, object]]:
    with contextlib.suppress(ValueError):  # it is empty
        yield path, value.cell_contents


def _parts_of_exception(path: str, value: BaseException) -> Iterator[tuple[str, object]]:
    """What it was made with, what it follows from, and where it has been: each time that it is raised adds
    to that."""
    yield f"{path}.args", list(value.args)
    for name in ("__cause__", "__context__"):
        yield f"{path}.{name}", getattr(value, name)
    lines, place = list[int](), value.__traceback__
    while place is not None and len(lines) < LARGE:
        lines.append(place.tb_lineno)
        place = place.tb_next
    yield f"{path}.__traceback__", lines


def _parts_of_variable(path: str, value: ContextVar[object]) -> Iterator[tuple[str, object]]:
    with contextlib.suppress(LookupError):
        yield path, value.get()
    yield from _parts_of_local(path, value)


def _parts_of_local(path: str, value: Any) -> Iterator[tuple[str, object]]:
    yield f"{path}, in backward passes", held_for_the_engine(value)


def _parts_of_partial(path: str, value: functools.partial[object]) -> Iterator[tuple[str, object]]:
    yield path, value.func
    yield f"{path}.args", value.args
    yield f"{path}.keywords", value.keywords


def _parts_of_method(path: str, value: MethodType) -> Iterator[tuple[str, object]]:
    yield path, value.__self__
    yield path, value.__func__


def _parts_of_cache(path: str, value: Any) -> Iterator[tuple[str, object]]:
    yield path, value.__wrapped__
    yield from ((f"what {path} gave ({i})", item) for i, item in enumerate(_given(value)))


def _parts_of_function(path: str, value: FunctionType) -> Iterator[tuple[str, object]]:
    for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            yield key, cell.cell_contents
    yield f"the defaults of {path}", value.__defaults__
    yield f"the defaults of {path}", value.__kwdefaults__
    yield f"the annotations of {path}", value.__annotations__
    yield f"the texts of {path}", (value.__name__, value.__doc__)
    yield from ((f"{path}.{key}", item) for key, item in vars(value).items())


def _parts_of_class(path: str, value: type) -> Iterator[tuple[str, object]]:
    if of_user(value):
        for key, item in vars(value).items():
            if chosen(key):
                yield f"{path}.{key}", item
        yield from ((kind.__name__, kind) for kind in value.__mro__[1:])


def _promised(path: str, future: torch.futures.Future[Any]) -> Iterator[tuple[str, object]]:
    if future.done():
        with contextlib.suppress(RuntimeError):  # it has an exception
            yield f"the value of {path}", future.value()


def _given(cache: Any) -> list[object]:
    """What a cache of a function of the user's has given, and for what: code may change it where it lies."""
    code = getattr(cache.__wrapped__, "__code__", None)
    if code is None or not is_users(home := written_in(cache.__wrapped__)) or is_installed(home):
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
        if key not in of_traces():
            yield f"{path}.{key}", item
    yield from ((f"{path}.{key}", getattr(value, key)) for key in _HOOKS_OF_TENSORS)


@per_class
def is_plain(kind: type) -> bool:
    """Have objects of this class no parts, and cannot be changed?"""
    return issubclass(kind, PLAIN)


def followed(value: object) -> bool:
    """Is it the user's, or a container? Of other objects only what they hold themselves is looked at."""
    kind = type(value)
    return _is_container(kind) or of_user(kind)


@per_class
def _is_container(kind: type) -> bool:
    return kind.__module__ in _CONTAINERS or issubclass(kind, _FOLLOWED)


def _attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Attributes and slots of an object, and the class of one of the user's, which may be local."""
    kind = type(value)
    if opaque.is_opaque(value):
        yield from opaque.parts(path, value)
    held = getattr(value, "__dict__", None)
    if held:
        left = UNASKED if str(kind.__module__).startswith(_FSDP) else ()
        yield from ((f"{path}.{key}", item) for key, item in held.items() if key not in left)
    if of_user(kind):
        yield kind.__name__, kind
    for name in slots(kind):
        if hasattr(value, name):
            yield f"{path}.{name}", getattr(value, name)


def owners(path: str, value: object) -> Iterator[tuple[str, object]]:
    """The objects, by name, of which :func:`attributes` are told where this one is met."""
    if isinstance(value, nn.Module):
        yield from value.named_modules(prefix=path)
    elif isinstance(value, type):
        if of_user(value):
            yield path, value
    elif type(value) not in STANDS and (hasattr(value, "__dict__") or slots(type(value))):
        yield path, value


def attributes(value: Any) -> tuple[int, tuple[str, ...]]:
    """The names of what an object holds itself, how many and in which order: each step may add or take one.

    ``vars(history)`` has a length as a list has, and a module its parameters, buffers and modules by name.
    """
    held = list(getattr(value, "__dict__", ()))
    if isinstance(value, torch.Tensor):
        held = [name for name in held if name not in of_traces()]
    if isinstance(value, nn.Module):
        held += [f"{kind}[{name!r}]" for kind in _REGISTERED for name in getattr(value, kind)]
    held += [name for name in slots(type(value)) if hasattr(value, name)]
    names = tuple(filter(chosen, held))
    return len(names), names


@per_class
def slots(kind: type) -> tuple[str, ...]:
    """Names of the slots of objects of this class."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for key in (slots,) if isinstance(slots, str) else slots:
            found.append(f"_{base.__name__.lstrip('_')}{key}" if key.startswith("__") else key)
    return tuple(name for name in found if name != "__dict__")


#: By class, the first that fits.
_CONTENTS: tuple[tuple[Any, _Parts], ...] = (
    (dict, _parts_of_dictionary),
    (Mapping, _parts_of_mapping),
    ((set, frozenset), _parts_of_set),
    (ctypes._Pointer, _parts_of_pointer),
    ((list, tuple, deque, UserList), _parts_of_list),
    (nn.Module, _parts_of_module),
    (torch.Tensor, _parts_of_tensor),
    (torch.optim.Optimizer, _parts_of_optimizer),
    (torch.futures.Future, _promised),
    (ContextVar, _parts_of_variable),
    (threading.local, _parts_of_local),
    (CellType, _parts_of_cell),
    (BaseException, _parts_of_exception),
    (functools.partial, _parts_of_partial),
    (weakref.ref, _parts_of_reference),
    (weakref.finalize, lambda path, value: ((f"{path}.peek()", value.peek()),)),
    (Rate, lambda path, value: ((path, value.tensor),)),
    (MethodType, _parts_of_method),
    ((staticmethod, classmethod), lambda path, value: ((path, value.__wrapped__),)),
    (CACHES, _parts_of_cache),
    (property, lambda path, value: ((path, (value.fget, value.fset)),)),
    ((functools.cached_property, functools.partialmethod), lambda path, value: ((path, value.func),)),
    # list().append, count().__next__
    ((BuiltinFunctionType, MethodWrapperType), lambda path, value: ((path, value.__self__),)),
    (sharedctypes.SynchronizedBase, lambda path, value: ((path, value.get_obj()),)),
    (FunctionType, _parts_of_function),
    (type, _parts_of_class),
)
#: Of these all that is looked at is among their contents.
_WHOLE = (nn.Module, torch.Tensor, torch.optim.Optimizer, type)
