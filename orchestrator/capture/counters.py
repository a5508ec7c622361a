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
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from .errors import StateError
from .names import parameters
from .recorder import is_installed, is_users

#: Containers and objects inside one another are followed so far.
_DEPTH = 5
#: Larger containers are tables, not counters.
_LARGE = 1000
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
#: What PyTorch itself keeps on a module and on an optimizer; other private attributes are their class's.
_OF_MODULES = frozenset(vars(nn.Module())) - {*_HOOKS, "training"}
_OF_OPTIMIZERS = frozenset((*vars(torch.optim.SGD([torch.zeros(())])), "_opt_called"))
_OPAQUE = (torch.Tensor, ModuleType)
Numbers = Mapping[str, object]


def numbers(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Numbers:
    """Every number, text or flag that the step can reach, by the expression that leads to it."""
    walk = _Walk()
    walk.into("model", model)
    walk.into("optimizer", optimizer)
    names = {parameter: name for name, parameter in parameters(model)}
    for i, group in enumerate(optimizer.param_groups):
        walk.into(f"optimizer.param_groups[{i}]", {k: v for k, v in group.items() if k != "params"})
    for owner, entries in optimizer.state.items():
        at = names.get(owner, "?") if isinstance(owner, torch.Tensor) else str(owner)
        walk.into(f"optimizer.state[{at}]", entries)
    walk.found["the random numbers of Python"] = hash(random.getstate())
    walk.found["the random numbers of NumPy"] = np.random.get_state(legacy=False)["state"]["pos"]
    walk.into("step", step)
    files = {kind.__module__ for item in (*model.modules(), optimizer) for kind in type(item).__mro__}
    scopes = [vars(sys.modules[name]) for name in sorted(files) if _users(name)]
    # A Definition wraps the user's step, so a closure leads to it: its variables are those of its own file.
    scopes += [function.__globals__ for function in walk.functions]
    looked: set[int] = set()
    while scopes:
        variables = scopes.pop(0)
        if id(variables) in looked:
            continue
        looked.add(id(variables))
        walk.functions.clear()
        for key, value in list(variables.items()):
            if not key.startswith("__"):
                walk.into(key, value)
        # Functions imported from the user's other files count there; installed packages have caches.
        scopes += [f.__globals__ for f in walk.functions if not is_installed(f.__code__.co_filename)]
    return walk.found


def _users(module: str) -> bool:
    return is_users(getattr(sys.modules.get(module), "__file__", None) or "<")


class _Walk:
    """Follows containers, closures and objects of the user's classes."""

    def __init__(self) -> None:
        self.found: dict[str, object] = {}
        self._seen: set[int] = set()
        #: Functions of the user's that were met.
        self.functions: list[FunctionType] = []

    def into(self, path: str, value: object, depth: int = _DEPTH) -> None:
        if value is None or isinstance(value, bool | int | float | str):
            self.found[path] = value
        elif depth and id(value) not in self._seen and not isinstance(value, _OPAQUE):
            self._seen.add(id(value))
            if isinstance(value, nn.Module):
                self._seen.update(map(id, value.modules()))
            if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
                self.functions.append(value)
            position = _position(value)
            if position is not None:
                self.found[f"the position of {path}"] = position
            for inner, item in _parts(path, value):
                self.into(inner, item, depth - 1)


def _position(value: object) -> object:
    """What a container, an iterator or a source of random numbers can count with."""
    if isinstance(value, list | set | deque | dict):
        return len(value)
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
    if isinstance(value, Mapping):
        if len(value) <= _LARGE:
            yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | deque):
        if len(value) <= _LARGE:
            yield from ((f"{path}[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, nn.Module):
        for name, module in value.named_modules(prefix=path):
            if not type(module).__module__.startswith("torch.nn.parallel"):  # DDP counts for itself
                yield from ((f"{name}.{k}", item) for k, item in vars(module).items() if k not in _OF_MODULES)
    elif isinstance(value, torch.optim.Optimizer):
        yield from ((f"{path}.{k}", item) for k, item in vars(value).items() if k not in _OF_OPTIMIZERS)
    elif isinstance(value, functools.partial):
        yield path, value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, MethodType):
        yield path, value.__self__
        yield path, value.__func__
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
    elif isinstance(value, type):
        if _users(value.__module__):
            yield from (
                (f"{path}.{key}", item) for key, item in vars(value).items() if not key.startswith("__")
            )
    elif hasattr(value, "__dict__") and (isinstance(value, LRScheduler) or _users(type(value).__module__)):
        yield from ((f"{path}.{key}", item) for key, item in vars(value).items())


def counted(before: Numbers, after: Numbers) -> StateError | None:
    """The first number that a step changes."""
    for path in (*before, *(p for p in after if p not in before)):
        was, now = before.get(path), after.get(path)
        if path in before and path in after and was != now and not (was != was and now != now):
            return StateError(
                f"the step changes {path}, which is no tensor, from {was!r} to {now!r}: a later step may do "
                "something else",
                instead="a buffer or optimizer state (a tensor) for what is counted, or count outside the "
                "step; the learning rate is an input (hyper.lr), so step a scheduler outside",
            )
    return None
