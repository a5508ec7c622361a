"""Numbers in Python that a step changes: counters, schedules, flags.

Two steps of one program say nothing of the tenth if `if self.calls % 10 == 0` decides there. So what a step
may count with is looked at before and after it: attributes of modules and optimizer, the options of the
optimizer, its state, and what the step's functions hold in globals and closures.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import random
import sys
import threading
from argparse import Namespace
from array import array
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from numbers import Number
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from .errors import Frame, StateError
from .names import parameters
from .recorder import is_installed, is_users, user_frame

#: Containers and objects inside one another are followed so far.
_DEPTH = 12
#: Larger containers are tables, not counters; of arrays so many bytes are.
_LARGE, _BYTES = 1000, 1 << 24
#: Arrays of so many elements are told in full.
_SHOWN = 8
#: What has no parts and cannot be changed: a name is bound to another one.
_PLAIN = (bool, int, float, str, bytes, Number, np.generic, Enum, date, timedelta)
#: Classes of Python's own that hold what the user's code puts into them.
_BAGS = (SimpleNamespace, Namespace, threading.local, UserDict, UserList)
_CACHES = type(functools.lru_cache(len))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
#: What PyTorch itself keeps on a module and on an optimizer; other private attributes are their class's.
_OF_MODULES = frozenset(vars(nn.Module())) - {*_HOOKS, "training"}
_OF_TENSORS = frozenset(("fake_mode", "constant", "pytype", "dispatch_keys", "real_tensor"))
_OF_OPTIMIZERS = frozenset((*vars(torch.optim.SGD([torch.zeros(())])), "_opt_called"))
_OPAQUE = (torch.Tensor, ModuleType)
Numbers = Mapping[str, object]
Held = tuple[object, Callable[[], object]]
_RANDOM: Mapping[str, Callable[[], object]] = {
    "the random numbers of Python": lambda: hash(random.getstate()),
    "the random numbers of NumPy": lambda: np.random.get_state(legacy=False)["state"]["pos"],
    "the seed of PyTorch": torch.initial_seed,
}
COUNTED = (
    "a buffer or optimizer state (a tensor) for what is counted, or count outside the step; the "
    "learning rate is "
    "an input (hyper.lr), so step a scheduler outside"
)
SCHEDULED = (
    "scheduler.step() outside of the step, in the loop that calls it: the learning rate is an input "
    "of the plan "
    "(hyper.lr), whatever the schedule gives"
)
LOGGED = (
    'the value among what the step returns, as {"loss": loss, "norm": norm}, and a log in the '
    "loop that calls it"
)
DRAWN = "an entry of the batch for what is drawn: the loop that calls the step draws it"


@dataclass(frozen=True)
class Place:
    """Where a number is kept: ``read`` says what it is now, ``holder`` is what it is a part of."""

    holder: object
    read: Callable[[], object]


def numbers(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Numbers:
    """Every number, text or flag that the step can reach, by the expression that leads to it."""
    return _walked(step, model, optimizer, None).found


def place_of(path: str, step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Place | None:
    """Where the number of this name is kept now."""
    return _walked(step, model, optimizer, path).place


def _walked(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer, wanted: str | None) -> _Walk:
    walk = _Walk(wanted)
    walk.into("model", model)
    walk.into("optimizer", optimizer)
    names = {parameter: name for name, parameter in parameters(model)}
    for i, group in enumerate(optimizer.param_groups):
        walk.into(f"optimizer.param_groups[{i}]", group)
    for owner, entries in optimizer.state.items():
        at = names.get(owner, "?") if isinstance(owner, torch.Tensor) else str(owner)
        walk.into(f"optimizer.state[{at}]", entries)
    for path, read in _RANDOM.items():
        walk.note(path, read(), random, read)
    for key, text in os.environ.items():
        walk.note(f"the environment variable {key}", text, os.environ, functools.partial(os.environ.get, key))
    walk.into("step", step)
    files = {kind.__module__ for item in (*model.modules(), optimizer) for kind in type(item).__mro__}
    scopes = [vars(sys.modules[name]) for name in sorted(files) if _users(name)]
    # A Definition wraps the user's step, so a closure leads to it: its variables are those of its own file.
    scopes += [function.__globals__ for function in walk.functions]
    looked: set[int] = set()
    scopes += map(vars, walk.modules)
    while scopes:
        variables = scopes.pop(0)
        if id(variables) in looked:
            continue
        looked.add(id(variables))
        walk.functions.clear()
        walk.modules.clear()
        for key, value in list(variables.items()):
            if not key.startswith("__"):
                walk.into(key, value, held=(variables, functools.partial(variables.get, key)))
        # Functions imported from the user's other files count there; installed packages have caches.
        scopes += [f.__globals__ for f in walk.functions if not is_installed(f.__code__.co_filename)]
        scopes += map(vars, walk.modules)
    return walk


def _users(module: str) -> bool:
    return is_users(getattr(sys.modules.get(module), "__file__", None) or "<")


class _Walk:
    """Follows containers, closures and objects of the user's classes."""

    def __init__(self, wanted: str | None = None) -> None:
        self.found: dict[str, object] = {}
        #: Where the number of the ``wanted`` name is kept.
        self.place: Place | None = None
        self._wanted = wanted
        self._seen: dict[int, object] = {}  # alive, so that nothing else takes their identities
        self._met: dict[str, int] = {}
        #: Functions of the user's that were met.
        self.functions: list[FunctionType] = []
        #: Modules that are the user's own files.
        self.modules: list[ModuleType] = []

    def note(self, path: str, value: object, holder: object, read: Callable[[], object]) -> None:
        same = self._met[path] = self._met.get(path, 0) + 1
        path += f" ({same})" * (same > 1)  # closures of several functions may have a variable of this name
        self.found[path] = value
        if path == self._wanted:
            self.place = Place(holder, read)

    def into(self, path: str, value: object, depth: int = _DEPTH, held: Held | None = None) -> None:
        """``held`` is what holds the value, and how to read it anew."""
        if value is None or isinstance(value, _PLAIN):
            self.note(path, value, *(held or (None, lambda: value)))
        elif isinstance(value, ModuleType):
            file = getattr(value, "__file__", None) or "<"
            self.modules += [value] if is_users(file) and not is_installed(file) else []
        elif depth and id(value) not in self._seen and not isinstance(value, _OPAQUE):
            self._seen[id(value)] = value
            if isinstance(value, nn.Module):
                self._seen.update((id(module), module) for module in value.modules())
            if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
                self.functions.append(value)
            position = _position(value)
            if position is not None:
                self.note(f"the position of {path}", position, value, functools.partial(_position, value))
            for inner, item in _parts(path, value):
                self.into(inner, item, depth - 1, (value, functools.partial(_part, path, value, inner)))


def _part(path: str, value: object, inner: str) -> object:
    """The part of this name as it is now."""
    return next((item for name, item in _parts(path, value) if name == inner), None)


def _position(value: object) -> object:
    """What a container, an array, a cache, an iterator or a source of random numbers can count with."""
    if isinstance(value, dict):
        return dict.__len__(value)
    if isinstance(value, list | set | deque | UserDict | UserList):
        return len(value)
    if isinstance(value, np.ndarray | bytearray | array):
        held = np.asarray(value)
        if held.dtype.hasobject or held.nbytes > _BYTES:
            return held.shape
        return held.tolist() if held.size <= _SHOWN else hash(held.tobytes())
    if isinstance(value, _CACHES):
        return value.cache_info()[1:]  # what it was asked for again is no news
    if isinstance(value, GeneratorType):
        return -1 if value.gi_frame is None else value.gi_frame.f_lasti
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, Iterator):
        return repr(value) if isinstance(value, itertools.count) else operator.length_hint(value, -1)
    return None


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """What an object holds: its contents, and the attributes of one of the user's classes."""
    if isinstance(value, dict):
        # What it holds: a lazy dictionary would import or compute all that it can give.
        if dict.__len__(value) <= _LARGE:
            yield from ((f"{path}[{key!r}]", item) for key, item in dict.items(value))
    elif isinstance(value, Mapping):
        if len(value) <= _LARGE:
            yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | deque | UserList):
        if len(value) <= _LARGE:
            yield from ((f"{path}[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, nn.Module):
        yield from _parts_of_module(path, value)
        return
    elif isinstance(value, torch.optim.Optimizer):
        yield from ((f"{path}.{k}", item) for k, item in vars(value).items() if k not in _OF_OPTIMIZERS)
        return
    elif isinstance(value, itertools.cycle | enumerate | zip | map | filter | itertools.islice):
        # They do not say how far they are, but hold the iterators that do.
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
    elif isinstance(value, staticmethod | classmethod | _CACHES):
        yield path, value.__wrapped__
    elif isinstance(value, property):
        yield path, (value.fget, value.fset)
    elif isinstance(value, FunctionType):
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not bound yet
                yield key, cell.cell_contents
        yield f"the defaults of {path}", value.__defaults__
        yield f"the defaults of {path}", value.__kwdefaults__
        yield from ((f"{path}.{key}", item) for key, item in vars(value).items())
    elif isinstance(value, GeneratorType):
        if value.gi_frame is not None:
            yield from value.gi_frame.f_locals.items()
        yield f"what {path} yields from", value.gi_yieldfrom
    elif isinstance(value, type):
        if _users(value.__module__):
            yield from (
                (f"{path}.{key}", item) for key, item in vars(value).items() if not key.startswith("__")
            )
        return
    yield from _attributes(path, value)


def _parts_of_module(path: str, value: nn.Module) -> Iterator[tuple[str, object]]:
    for name, module in value.named_modules(prefix=path):
        if not type(module).__module__.startswith("torch.nn.parallel"):  # DDP counts for itself
            yield from ((f"{name}.{k}", item) for k, item in vars(module).items() if k not in _OF_MODULES)
    for name, tensor in (*value.named_parameters(prefix=path), *value.named_buffers(prefix=path)):
        own = ((k, item) for k, item in vars(tensor).items() if k[0] != "_" and k not in _OF_TENSORS)
        yield from ((f"{name}.{k}", item) for k, item in own if isinstance(item, _PLAIN))


def _attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Attributes and slots of an object of the user's classes."""
    if not isinstance(value, (LRScheduler, *_BAGS)) and not _users(type(value).__module__):
        return
    yield from ((f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ()) if _users(kind.__module__) else ()
        for key in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{key}" if key.startswith("__") else key
            if hasattr(value, name) and name != "__dict__":
                yield f"{path}.{name}", getattr(value, name)


def counted(
    before: Numbers,
    after: Numbers,
    place: Callable[[str], Place | None] = lambda _path: None,
    run: Callable[[], object] | None = None,
) -> StateError | None:
    """The first number that a step changes; the line is looked for in a further ``run``, at its ``place``."""
    path = _changed(before, after)
    if path is None:
        return None
    at = place(path)
    error = StateError(
        f"the step changes {path}, which is no tensor, from {before[path]!r} to {after[path]!r}: a "
        "later step may "
        "do something else",
        instead=_advice(None if at is None else at.holder),
    )
    if at is not None and run is not None:
        with contextlib.suppress(Exception):  # it may not run again
            error.frame = line_of(at.read, run)
    return error


def _changed(before: Numbers, after: Numbers) -> str | None:
    """The name of the first number that a step changes."""
    return next((path for path in before if path in after and _differ(before[path], after[path])), None)


def _differ(was: object, now: object) -> bool:
    return repr(was) != repr(now) if isinstance(was, list) else was != now and not (was != was and now != now)


def _advice(holder: object) -> str:
    """What to write instead of changing a number that is a part of ``holder``."""
    if isinstance(holder, LRScheduler):
        return SCHEDULED
    if holder is random:
        return DRAWN
    if isinstance(holder, list | deque | set):
        return LOGGED
    return DRAWN if isinstance(holder, Iterator) and not isinstance(holder, itertools.count) else COUNTED


def line_of(read: Callable[[], object], run: Callable[[], object]) -> Frame | None:
    """The line of the user's that changes first what is read, in a run under Python's tracing."""
    before, last, found = read(), None, None

    def look() -> None:
        nonlocal found
        if found is None and last is not None and _differ(before, read()):
            found = last

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal last
        look()
        if found is not None or not is_users(frame.f_code.co_filename):
            return None
        if event == "line":
            last = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        elif event == "return":  # what is left of the line that called
            last = user_frame(frame.f_back)
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(outer)
    look()
    return found
