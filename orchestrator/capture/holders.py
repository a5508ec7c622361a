"""Who holds a function of a library by itself: an argument's default, an attribute, an entry of a dictionary.

Where a function stands for another one while a step is recorded (:mod:`substituting`), it does so in modules
that have a name for it. ``def wait(now=time.monotonic)`` has none: what the step reaches is looked through
for such holders, and there the function stands for the other one too, or the step is refused.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from .errors import StateError
from .frames import is_users, written_in
from .holding import parts, slots
from .scopes import ours
from .substituting import Standing, scopes_of_libraries, standing

#: What is made anew to change what it holds; whoever holds it holds another one then.
_MADE = (
    *(tuple, frozenset, staticmethod, classmethod, functools.partial, MethodType, BuiltinFunctionType),
    property,
)
_BY_NAME = "a call of the function by its own name, as time.monotonic()"


@dataclass(frozen=True)
class Spot:
    """Where something is held: how to read it and how to write it."""

    read: Callable[[], object]
    write: Callable[[Any], None]


def borrowed(value: object) -> bool:
    """Is it a function or class that is not the user's?"""
    if isinstance(value, BuiltinFunctionType):
        return True
    if isinstance(value, FunctionType):
        return not is_users(written_in(value))
    return isinstance(value, type)


class Holders:
    """Who holds a borrowed function by itself."""

    def __init__(self) -> None:
        self._found: dict[int, object] = {}
        #: Of what is made anew, who holds it.
        self._within: dict[int, object] = {}

    def inside(self, value: object, holder: object) -> None:
        """``holder`` has this value."""
        if isinstance(value, _MADE):
            self._within.setdefault(id(value), holder)

    def add(self, holder: object) -> None:
        """It holds a borrowed function."""
        while isinstance(holder, _MADE):
            holder = self._within.get(id(holder))
        if isinstance(holder, FunctionType) and borrowed(holder):
            return  # what stands for a function holds that one
        if holder is not None:
            self._found.setdefault(id(holder), holder)

    def all(self) -> Iterator[object]:
        yield from self._found.values()


@contextmanager
def standing_in(holders: Iterable[tuple[str, object]]) -> Iterator[None]:
    """In these holders too, a function stands for the other one for which it does in modules.

    Raises:
        StateError: it cannot be put there.
    """
    made = standing()
    theirs = scopes_of_libraries()  # a text that is run as code has all names of Python's own
    held = ((path, h) for path, h in holders if id(h) not in theirs)
    having = [(path, h) for path, h in held if any(_holds(item, made) for _, item in parts(path, h))]
    changed: list[tuple[Spot, object, object]] = []
    with ours(h for _, h in having if type(h) is dict):
        for _, holder in having:
            for spot in _spots(holder):
                was = spot.read()
                if _holds(was, made):
                    spot.write(_anew(was, made))
                    changed.append((spot, was, spot.read()))
    try:
        for path, holder in having:
            for inner, item in parts(path, holder):
                if _calls(item, made):
                    said = f"{inner} is held where a trace cannot follow what it gives ({item!r})"
                    raise StateError(said, instead=_BY_NAME)
        yield
    finally:
        with ours(h for _, h in having if type(h) is dict):
            for spot, was, now in reversed(changed):
                if spot.read() is now:  # else the step has put something else there
                    spot.write(was)


def _calls(value: object, made: Standing) -> bool:
    """Is such a function among it? A class may be there as the base of another, or in an annotation."""
    if isinstance(value, type):
        return False
    return id(value) in made or any(_calls(item, made) for item in _inside(value))


def _holds(value: object, made: Standing) -> bool:
    """Is it such a function, or does what is made anew with it have one?"""
    return id(value) in made or any(_holds(item, made) for item in _inside(value))


def _inside(value: Any) -> tuple[object, ...]:
    if isinstance(value, tuple | frozenset):
        return tuple(value)
    if isinstance(value, staticmethod | classmethod):
        return (value.__wrapped__,)
    if type(value) is functools.partial:
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, BuiltinFunctionType):
        return (value.__self__,) if isinstance(value.__self__, type) else ()
    return (value.fget, value.fset) if type(value) is property else ()


def _anew(value: Any, made: Standing) -> Any:
    """The same with what stands for what it holds."""
    if id(value) in made:
        return made[id(value)]
    if not _holds(value, made):
        return value
    new = tuple(_anew(item, made) for item in _inside(value))
    if isinstance(value, tuple):
        return tuple.__new__(type(value), new)
    if isinstance(value, frozenset):
        return type(value)(new)
    if isinstance(value, staticmethod | classmethod):
        return type(value)(*new)
    if type(value) is functools.partial:
        func, *args = new[: 1 + len(value.args)]
        return functools.partial(
            func, *args, **dict(zip(value.keywords, new[1 + len(value.args) :], strict=True))
        )
    if isinstance(value, MethodType):
        return MethodType(*new)
    if isinstance(value, BuiltinFunctionType):
        return getattr(new[0], value.__name__)
    return property(new[0], new[1], value.fdel)


def _spots(holder: Any) -> Iterator[Spot]:
    """Where such a holder has what it holds, as far as it can be changed there."""
    if isinstance(holder, dict):
        yield from _entries(holder, dict.keys(holder), dict.__setitem__)
    elif isinstance(holder, list | deque):
        yield from _entries(holder, range(len(holder)), operator.setitem)
    elif isinstance(holder, set):
        yield from map(functools.partial(_member, holder), tuple(holder))
    elif isinstance(holder, type):
        yield from _variables_of_class(holder)
        return
    elif isinstance(holder, FunctionType):
        yield Spot(lambda: holder.__defaults__, functools.partial(setattr, holder, "__defaults__"))
        for cell in holder.__closure__ or ():
            yield Spot(functools.partial(_content, cell), functools.partial(setattr, cell, "cell_contents"))
    for item in holder.modules() if isinstance(holder, nn.Module) else (holder,):
        yield from _entries(*_own(item))
        for name in slots(type(item)):
            yield Spot(functools.partial(getattr, item, name, None), functools.partial(setattr, item, name))


def _own(item: object) -> tuple[Any, Iterable[Any], Callable[[Any, Any, Any], None]]:
    variables = getattr(item, "__dict__", {})
    return variables, variables.keys(), dict.__setitem__


def _entries(holder: Any, keys: Iterable[Any], put: Callable[[Any, Any, Any], None]) -> Iterator[Spot]:
    for key in tuple(keys):
        yield Spot(functools.partial(_item, holder, key), functools.partial(put, holder, key))


def _item(holder: Any, key: Any) -> object:
    """None, if the step has taken it away."""
    try:
        return dict.__getitem__(holder, key) if isinstance(holder, dict) else holder[key]
    except LookupError:
        return None


def _member(holder: set[Any], item: Any) -> Spot:
    held = [item]

    def write(value: Any) -> None:
        holder.discard(held[0])
        holder.add(value)
        held[0] = value

    return Spot(lambda: held[0] if held[0] in holder else None, write)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _variables_of_class(kind: type) -> Iterator[Spot]:
    """A function of C is no method where it is a variable of a class; what stands for it is none, either."""

    def write(name: str, value: Any) -> None:
        plain = isinstance(value, FunctionType) and not isinstance(vars(kind)[name], FunctionType)
        type.__setattr__(kind, name, staticmethod(value) if plain else value)

    for name in tuple(vars(kind)):
        yield Spot(functools.partial(vars(kind).get, name), functools.partial(write, name))
