"""Numbers in Python that a step changes: counters, schedules, flags.

Two steps of one program say nothing of the tenth if `if self.calls % 10 == 0` decides there. So what a step
may count with is looked at before and after it: attributes of modules and optimizer, the options of the
optimizer, its state, and what the step's functions hold in globals and closures.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import random
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import (
    FrameType,
    FunctionType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as of_modules
from torch.optim import optimizer as of_optimizers
from torch.optim.lr_scheduler import LRScheduler

from . import bytecode, grafted, opaque
from .answers import Answer
from .asks_of_traces import refuse_asking
from .disguise import STANDS
from .entropy import drawn
from .errors import Frame, StateError
from .frames import is_installed, is_own, is_users, of_user, user_frame, users, written_in
from .group import Traced
from .holders import Holders, borrowed
from .holding import (
    CACHES,
    CODE,
    UNASKED,
    attributes,
    chosen,
    followed,
    handed_out,
    imported,
    is_plain,
    kind,
    owners,
    part,
    parts,
)
from .identities import Known, Which, may_move, states_among, told_by_itself
from .names import parameters
from .positions import position_of, written
from .rates import Rate
from .settings import SETTINGS

#: Objects inside one another are followed so far; what is in one of Python's library or PyTorch, so far.
_DEPTH, _FOREIGN = 40, 1
_OWN = __name__.split(".")[0]
#: Where the learning rate is that the loop outside sets; in the next step it may be another one.
_OF_A_GROUP = re.compile(r"optimizer\.param_groups\[\d+\]\['lr'\]")
Numbers = Mapping[str, object]
Held = tuple[object, Callable[[], object]]
_RANDOM: Mapping[str, Callable[[], object]] = {
    "the random numbers of Python": lambda: hash(random.getstate()),
    "the random numbers of NumPy": lambda: np.random.get_state(legacy=False)["state"]["pos"],
    "the seed of PyTorch": torch.initial_seed,
    "how many random numbers of the system were drawn": drawn,
}

#: What Python keeps for all of a process, and how much of it there is, by the name that code has for it.
_REGISTERS: Mapping[str, tuple[str, Callable[[], int]]] = {
    "modules": ("how many modules code has named", lambda: sum(map(_named, [*sys.modules.items()]))),
    "loggerDict": ("how many loggers there are", lambda: len(logging.Logger.manager.loggerDict)),
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
HOOKED = (
    "a hook that is registered once, in build or parallelize; or handle.remove() in the step, for what "
    "register_hook returns"
)
LOGGED = (
    'the value among what the step returns, as {"loss": loss, "norm": norm}, and a log in the '
    "loop that calls it"
)
MOVED = "each object under one name of its own, and an entry of the batch for which of them is meant"
DRAWN = "an entry of the batch for what is drawn: the loop that calls the step draws it"


class _Object:
    """What stands for an object where numbers are compared: nothing may take a number's place, either."""

    def __repr__(self) -> str:
        return "an object"


OBJECT = _Object()


@dataclass(frozen=True)
class Place:
    """Where a number is kept: ``read`` says what it is now, ``holder`` is what it is a part of."""

    holder: object
    read: Callable[[], object]


def numbers(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Numbers:
    """Every number, text or flag that the step can reach, by the expression that leads to it."""
    return _walked(step, model, optimizer, None).found


@dataclass(frozen=True)
class Reached:
    """All that a step can reach: numbers, tensors under each name that leads to one, and who holds a function
    of Python's or PyTorch's by itself."""

    numbers: Numbers
    tensors: Mapping[str, torch.Tensor]
    holders: tuple[tuple[str, object], ...]


def reached(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reached:
    walk = _walked(step, model, optimizer, None)
    holders = ((walk.path_of(holder), holder) for holder in walk.holders.all())
    return Reached(walk.found, walk.tensors, tuple(holders))


def place_of(path: str, step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Place | None:
    """Where the number of this name is kept now."""
    return _walked(step, model, optimizer, path).place


def _walked(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer, wanted: str | None) -> _Walk:
    walk = _Walk(wanted, frozenset(map(id, states_among(model, optimizer))))
    walk.into("model", model)
    names = {parameter: name for name, parameter in parameters(model)}
    for i, group in enumerate(optimizer.param_groups):
        walk.into(f"optimizer.param_groups[{i}]", group)
    for owner, entries in optimizer.state.items():
        at = names.get(owner, "?") if isinstance(owner, torch.Tensor) else str(owner)
        walk.into(f"optimizer.state[{at}]", entries)
    states = functools.partial(position_of, optimizer.state)
    walk.note("the order of optimizer.state", states(), optimizer.state, states)
    walk.into("optimizer", optimizer)
    for path, read in _RANDOM.items():
        walk.note(path, read(), random, read)
    for path, read in SETTINGS.items():
        walk.note(path, read(), None, read)
    for key, text in os.environ.items():
        walk.note(f"the environment variable {key}", text, os.environ, functools.partial(os.environ.get, key))
    for scope in (vars(of_modules), vars(of_optimizers)):
        walk.into("the hooks of all modules", [v for k, v in scope.items() if k.startswith("_global_")])
    walk.into("step", step)
    for path, function in grafted.functions():
        walk.into(path, function)
    kinds = dict.fromkeys(kind for item in (*model.modules(), optimizer) for kind in type(item).__mro__)
    files = {kind.__module__ for kind in kinds}
    scopes = [vars(sys.modules[name]) for name in sorted(files) if users(name)]
    # A Definition wraps the user's step, so a closure leads to it: its variables are those of its own file.
    scopes += [function.__globals__ for function in walk.functions]
    looked: dict[int, dict[str, Any]] = {}
    first = tuple(walk.functions)
    code = dict.fromkeys(first)
    scopes += map(vars, walk.modules)
    while scopes:
        variables = scopes.pop(0)
        if id(variables) in looked:
            continue
        looked[id(variables)] = variables
        walk.functions.clear()
        walk.modules.clear()
        for key, value in list(variables.items()):
            if chosen(key):
                walk.into(key, value, held=(variables, functools.partial(variables.get, key)))
                if borrowed(value):
                    walk.holders.add(variables)
        # Functions imported from the user's other files count there; installed packages have caches.
        own = [f for f in walk.functions if not is_installed(written_in(f))]
        code |= dict.fromkeys(own)
        scopes += [f.__globals__ for f in own]
        scopes += map(vars, walk.modules)
    walk.note_asked({name for function in code for name in bytecode.names(function.__code__)})
    if any("__warningregistry__" in bytecode.names(f.__code__) | bytecode.said(f.__code__) for f in code):
        warned = tuple(len(variables.get("__warningregistry__", ())) for variables in looked.values())
        walk.note("what was warned of", warned, warnings, opaque.Unknown)
    users_own = [f for f in code if not is_installed(written_in(f))]
    refuse_asking(first, users_own)
    walk.note_unseen({name for function in users_own for name in bytecode.names(function.__code__)})
    for path, value, holder in grafted.attributes(code, kinds):
        name = path.rpartition(".")[2]
        walk.into(path, value, held=(holder, functools.partial(getattr, holder, name, None)))
    for path, held in walk.objects.items():
        if path not in walk.found:
            walk.note(path, OBJECT, *held)
    return walk


class _Walk:
    """Follows containers, closures and objects of the user's classes."""

    def __init__(self, wanted: str | None = None, states: frozenset[int] = frozenset()) -> None:
        self._states = states
        self.found: dict[str, object] = {}
        #: Where the number of the ``wanted`` name is kept.
        self.place: Place | None = None
        self._wanted = wanted
        #: What was met, by identity (alive, so that nothing else takes it): under which name, and how deep.
        self._seen: dict[int, tuple[object, str, int]] = {}
        self._met: dict[str, int] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        #: What is no number itself, and how to read it anew.
        self.objects: dict[str, Held] = {}
        #: Functions of the user's that were met.
        self.functions: list[FunctionType] = []
        #: Modules that are the user's own files.
        self.modules: list[ModuleType] = []
        self.holders = Holders()
        self._known = Known()

    def note(self, path: str, value: object, holder: object, read: Callable[[], object]) -> None:
        same = self._met[path] = self._met.get(path, 0) + 1
        path += f" ({same})" * (same > 1)  # closures of several functions may have a variable of this name
        self.found[path] = value
        if path == self._wanted:
            self.place = Place(holder, read)

    def path_of(self, value: object) -> str:
        """Under which name this was met first."""
        return self._seen.get(id(value), (value, "", 0))[1]

    def note_asked(self, names: set[str]) -> None:
        """What changes in right steps too, and decides nothing unless the code has its name: how often a
        cache was asked for what it had, how much a file was written, what FSDP notes for a backward pass."""
        for path, held in handed_out(names):
            self.into(path, held)
        for name in names & _REGISTERS.keys():
            path, read = _REGISTERS[name]
            self.note(path, read(), None, read)
        for value, path, _ in list(self._seen.values()):
            if isinstance(value, type) and "__subclasses__" in names and of_user(value):
                self.note(f"the subclasses of {path}", len(type.__subclasses__(value)), value, opaque.Unknown)
            if isinstance(value, CACHES) and "cache_info" in names:
                self.note(f"the hits of {path}", _hits(value), value, functools.partial(_hits, value))
            if opaque.beneath(type(value)).__module__ == "_io" and "tell" in names:
                self.note(f"the end of {path}", written(value), value, functools.partial(written, value))
            for name in names.intersection(UNASKED):
                if hasattr(value, name):
                    self.into(f"{path}.{name}", getattr(value, name))

    def note_unseen(self, names: set[str]) -> None:
        """What counts and cannot be compared is never the same for code that has its name."""
        for path in opaque.unseen(names, [value for value, _, _ in self._seen.values()]):
            self.note(path, opaque.Unknown(), None, opaque.Unknown)

    def into(self, path: str, value: object, depth: int = _DEPTH, held: Held | None = None) -> None:
        """``held`` is what holds the value, and how to read it anew."""
        if value is None or is_plain(type(value)):
            self.note(path, value, *(held or (None, lambda: value)))
            if value is not None and of_user(type(value)):  # a text, a number or an enum with more
                self._follow(path, value, depth, held)
        elif isinstance(value, ModuleType):
            self._note_which(path, value, held)
            self.modules += [value] if is_own(getattr(value, "__file__", None) or "<") else []
        elif isinstance(value, Traced):
            self._note_which(path, value, held)
            for key, item in value.others().items():
                self.into(f"{path}.{key}", item, depth, (value, functools.partial(getattr, value, key, None)))
        elif type(value) is Rate and not _OF_A_GROUP.fullmatch(path):
            self.note(path, opaque.Unknown(), *(held or (None, lambda: value)))  # outside, it may be any
        elif type(value) in STANDS or str(type(value).__module__).split(".")[0] != _OWN:
            self.objects.setdefault(path, held or (None, lambda: value))
            self._follow(path, value, depth, held)

    def _note_which(self, path: str, value: object, held: Held | None) -> None:
        """Where nothing that it holds tells which object it is."""
        holder, read = held or (None, lambda: value)
        of_tensor = isinstance(value, torch.Tensor) and id(value) not in self._states and may_move(holder)
        if of_tensor or told_by_itself(type(value)):
            self.note(f"which object {path} is", Which(value, self._known), holder, lambda: id(read()))

    def _follow(self, path: str, value: Any, depth: int, held: Held | None) -> None:
        """What a name is bound to counts too: one that was met under another name is told by that."""
        if isinstance(value, torch.Tensor):
            self.tensors[path] = value
            self.note(f"the shape of {path}", tuple(value.shape), value, lambda: tuple(value.shape))
        first, looked = self._seen.get(id(value), (value, path, -1))[1:]
        if isinstance(value, (*CODE, nn.Module)) or (of_user(type(value)) and hasattr(value, "__dict__")):
            holder, read = held or (None, lambda: value)
            self.note(f"what {path} is", first if first != path else kind(value), holder, lambda: id(read()))
        self._note_which(path, value, held)
        if depth <= max(looked, 0) or looked > _FOREIGN:
            return
        self._seen[id(value)] = value, first, depth
        if isinstance(value, nn.Module):
            for name, module in value.named_modules(prefix=path):
                self._seen.setdefault(id(module), (module, name, depth))
        if isinstance(value, FunctionType) and is_users(written_in(value)):
            self.functions.append(value)
            for module in imported(value):
                self.into(module.__name__, module)
        position = position_of(value)
        if position is not None:
            self.note(f"the position of {path}", position, value, functools.partial(position_of, value))
        for owner, item in owners(path, value):
            self.note(
                f"the attributes of {owner}", attributes(item), item, functools.partial(attributes, item)
            )
        below = depth - 1 if followed(value) else min(depth - 1, _FOREIGN)
        if held is not None:
            self.holders.inside(value, held[0])
        for inner, item in parts(path, value):
            if borrowed(item):
                self.holders.add(value)
            self.into(inner, item, below, (value, functools.partial(part, path, value, inner)))


def _named(module: tuple[str, ModuleType]) -> bool:
    """Does this module have another name than the one it was imported by? Libraries import on demand."""
    return getattr(getattr(module[1], "__spec__", None), "name", None) != module[0]


def _hits(cache: Any) -> int:
    return int(cache.cache_info().hits)


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
    moved = isinstance(before[path], Which)
    kept = path if moved else f"{path}, which is no tensor"
    error = StateError(
        f"the step changes {kept}, from {_change(before[path], after[path])}: a "
        "later step may "
        "do something else",
        instead=MOVED
        if moved
        else HOOKED
        if "_hooks" in path
        else _advice(None if at is None else at.holder),
    )
    if at is not None and run is not None:
        with contextlib.suppress(Exception):  # it may not run again
            error.frame = line_of(at.read, run)
    return error


def _changed(before: Numbers, after: Numbers) -> str | None:
    """The name of the first number that a step changes; what a name is bound to says less."""
    changed = [path for path in before if path in after and _differ(before[path], after[path])]
    return next((path for path in changed if not isinstance(before[path], Which)), next(iter(changed), None))


def _differ(was: object, now: object) -> bool:
    """A time that is kept is another one in each step; who decides by it is refused (:mod:`answers`)."""
    if isinstance(now, Answer):
        return False
    return repr(was) != repr(now) if isinstance(was, list) else was != now and not (was != was and now != now)


def _change(was: object, now: object) -> str:
    """Of containers how many entries they have; what tells their order is another in each process."""
    if isinstance(was, Which):
        return f"{was!r} to another that was there"
    sizes = [x[0] if isinstance(x, tuple) and x and isinstance(x[0], int) else None for x in (was, now)]
    if None in sizes:
        return f"{was!r} to {now!r}"
    return f"{sizes[0]} to {sizes[1]} entries" if sizes[0] != sizes[1] else f"{sizes[0]} entries to others"


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
