"""What was found among the variables of a module or class, kept until these are other ones.

PyTorch's modules and classes have some 200,000 variables, and a forked child that looks at each of them
copies the memory they lie in. CPython up to 3.12 numbers all changes of dictionaries (PEP 509): the number of
one is in its head, and to read it touches none of them, as a comparison would. Where Python has no such
number, all is looked at anew.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

#: How Python itself finds the variables of a module and of a class; their own classes may say otherwise.
_OF_A_MODULE, _OF_A_CLASS = (vars(kind)["__dict__"] for kind in (ModuleType, type))
Scope = ModuleType | type | dict[str, ModuleType]
Found = TypeVar("Found")
#: Where a dictionary has it: behind its head and its length (``PyDictObject``, bytes).
_VERSION = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)


class Kept(Generic[Found]):
    """What ``look`` finds, by module or class. Their variables count, and no change inside of what these are:
    who follows that calls :meth:`forget`."""

    def __init__(self, look: Callable[[Any], Found]) -> None:
        self._look = look
        _ALL.append(self)
        #: By identity: what is kept alive so, where its number is, which one it was.
        self._known: dict[int, tuple[Scope, ctypes.c_uint64, int, Found]] = {}
        self._at: dict[int, int] = {}

    def __call__(self, scope: Scope) -> Found:
        known = self._known.get(id(scope))
        if known is not None and known[1].value == known[2]:
            return known[3]
        variables = _variables(scope) if NUMBERED else None
        if variables is None:
            return self._look(scope)
        number = _number(variables)
        before = number.value  # what changes during the look is looked at again
        found = self._look(scope)
        self._known[id(scope)] = scope, number, before, found
        self._at[id(variables)] = id(scope)
        return found

    def forget(self) -> None:
        """Look at all of them anew."""
        self._known.clear()
        self._at.clear()

    def standing(self, variables: int) -> int | None:
        """Whose variables these are, by identity, if what was found among them is still known."""
        at = self._at.get(variables)
        if at is None:
            return None
        _, number, before, _ = self._known[at]
        return at if number.value == before else None

    def renew(self, at: int) -> None:
        """What was found there is what would be found now."""
        scope, number, _, found = self._known[at]
        self._known[at] = scope, number, number.value, found


_ALL: list[Kept[Any]] = []


@contextmanager
def ours(variables: Iterable[Mapping[str, Any]], *but: Kept[Any]) -> Iterator[None]:
    """What is written to these dictionaries meanwhile is ours, and nothing that is looked for: what was found
    in them stays found, save by ``but``."""
    written = set(map(id, variables))
    standing = [
        (kept, at)
        for kept in _ALL
        for at in map(kept.standing, written if kept not in but else ())
        if at is not None
    ]
    try:
        yield
    finally:
        for kept, at in standing:
            kept.renew(at)


def _variables(scope: Scope) -> dict[str, Any] | None:
    """The dictionary itself, which a module or class keeps while it lives; of a class, Python shows what
    stands for it. None, if it shows something else as its variables."""
    if scope is sys.modules:
        return sys.modules
    shown: object = vars(scope)
    kind: Any = type(scope)
    if issubclass(kind, ModuleType):  # others only say that they are modules
        own: dict[str, Any] = _OF_A_MODULE.__get__(scope)
        return own if shown is own else None
    if not issubclass(kind, type):
        return None
    (own,) = gc.get_referents(_OF_A_CLASS.__get__(scope))
    return own if type(shown) is MappingProxyType and gc.get_referents(shown)[0] is own else None


def _number(variables: dict[str, Any]) -> ctypes.c_uint64:
    """The number of its last change, as it is whenever it is read; while the dictionary is alive."""
    return ctypes.c_uint64.from_address(id(variables) + _VERSION)


def _is_numbered() -> bool:
    """Does this Python number the changes of dictionaries, and where they are looked for?"""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False
    probe: dict[str, object] = {"a": 0}
    numbers = []
    for change in (len, lambda d: d.update(a=1), len, lambda d: d.update(b=1), len, lambda d: d.pop("a")):
        change(probe)
        numbers.append(_number(probe).value)
    changed = [was != now for was, now in itertools.pairwise(numbers)]
    return changed == [True, False, True, False, True]


NUMBERED = _is_numbered()
