"""Functions of the libraries that stand for others while a definition is traced, wherever a user has them."""

from __future__ import annotations

import builtins
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from .builtin_names import has_theirs, stood_for
from .frames import is_installed, is_own, is_users, runs_in
from .scopes import Kept, ours

#: Where a function stands, and its name there.
Place = tuple[Any, str]
#: What stands for a function now, by the function's identity.
Standing = Mapping[int, Any]
_standing: dict[int, Any] = {}
_STDLIB = str(Path(sysconfig.get_path("stdlib")).resolve()) + "/"


@contextmanager
def substituted(changes: Mapping[Place, Callable[[Any], Any]]) -> Iterator[None]:
    """Each function is what the change makes of it; so it is in modules that have imported it by name."""
    made = {id(getattr(*place)): change(getattr(*place)) for place, change in changes.items()}
    found: list[tuple[Any, str]] = [(vars(module), name) for module, name in changes]
    having = (vars(m) for m in _users_modules(sys.modules) if not made.keys().isdisjoint(_identities(m)))
    found += [(scope, name) for scope in having for name, item in list(scope.items()) if id(item) in made]
    saved = [(scope, name, scope[name]) for scope, name in found]
    with ours((scope for scope, _ in found), _identities):
        for scope, name, item in saved:
            scope[name] = made[id(item)]
    try:
        with _stand(made):
            yield
    finally:
        with ours((scope for scope, _ in found), _identities):
            for scope, name, item in saved:
                scope[name] = item


def scopes_of_libraries() -> frozenset[int]:
    """The variables of all modules that are not the user's, by identity."""
    own = set(map(id, _users_modules(sys.modules)))
    return frozenset(id(vars(m)) for m in tuple(sys.modules.values()) if id(m) not in own)


def standing() -> Standing:
    """What stands for which function now."""
    return dict(_standing)


@contextmanager
def _stand(made: Standing) -> Iterator[None]:
    """What stands for something that stands for a function already, stands for that function."""
    first = {id(item): function for function, item in _standing.items()}
    before = dict(_standing)
    _standing.update({first.get(function, function): item for function, item in made.items()})
    try:
        yield
    finally:
        _standing.clear()
        _standing.update(before)


def look_ahead() -> None:
    """In the process that children are forked from: what stays there, they need not look at."""
    for module in _users_modules(sys.modules):
        _identities(module)


@Kept
def _users_modules(modules: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(m for m in list(modules.values()) if is_users(getattr(m, "__file__", None) or "<"))


@Kept
def _identities(module: ModuleType) -> frozenset[int]:
    return frozenset(map(id, list(vars(module).values())))


@contextmanager
def shadowed(names: Mapping[str, Any]) -> Iterator[None]:
    """In the user's own modules these names, which are Python's own, stand for something else."""
    files = ((m, getattr(m, "__file__", None) or "<") for m in list(sys.modules.values()))
    scopes = [vars(m) for m, file in files if is_own(file)]
    with put(scopes, names), _stand({id(getattr(builtins, name)): item for name, item in names.items()}):
        yield


@contextmanager
def put(scopes: Iterable[dict[str, Any]], names: Mapping[str, Any]) -> Iterator[None]:
    """These names of Python's stand for something in the scopes that have none of their own."""
    there = [s for s in {id(s): s for s in scopes}.values() if not has_theirs(s)]
    told = [(s, name) for s in there for name in names if name not in s]
    with ours(scope for scope, _ in told):
        for scope, name in told:
            scope[name] = names[name]
    try:
        with stood_for(names):
            yield
    finally:
        with ours(scope for scope, _ in told):
            for scope, name in told:
                scope.pop(name, None)


@contextmanager
def replaced(kind: Any, name: str, patch: Callable[[Any], Any]) -> Iterator[None]:
    """``kind.name`` patched; what was inherited is inherited again afterwards."""
    own = vars(kind).get(name)
    setattr(kind, name, patch(getattr(kind, name)))
    try:
        yield
    finally:
        if own is None:
            delattr(kind, name)
        else:
            setattr(kind, name, own)


def by_user(frame: FrameType | None) -> bool:
    """Is it the user's own code that calls, itself or through Python's library?"""
    while frame is not None:
        name = frame.f_code.co_filename
        said = _said(name)
        if said is not None:
            return is_users(runs_in(frame)) if name.startswith("<") else said
        frame = frame.f_back
    return False


@functools.cache
def _said(name: str) -> bool | None:
    """Is this the user's file? None, if it is one of Python's library: its caller is asked."""
    if name.startswith("<frozen") or (name.startswith(_STDLIB) and not is_installed(name)):
        return None
    return is_users(name)
