"""Objects of Python's library that are made in C, and keep what they count where no attribute shows it.

A reader of lines has a number of its line, an element of a tree its children, a lock whether it is held. What
the garbage collector knows of an object, its public descriptors and its text tell of most; what tells nothing
at all (a compressor, a scanner) may count, and counts if the user's code names one of its methods.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import re
import sys
from collections.abc import Iterable, Iterator, Set
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from .frames import is_users, of_user
from .per_class import per_class

_DESCRIBED = (GetSetDescriptorType, MemberDescriptorType)
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__mro__[1]
#: Writes to a tensor and nodes of autograd's graph are numbered; memory of others is read at its address.
_BY_ITSELF = {"_version", "_sequence_nr", "from_address", "string_at", "wstring_at"}
#: Longer texts are not told.
_TEXT = 80
_PLAIN = (bool, int, float, str, bytes, type(None))
#: What holds code, names or whatever else is told otherwise, or cannot change.
_ELSEWHERE = frozenset(
    (
        *("frame", "code", "traceback", "module", "function", "type", "object", "mappingproxy", "weakref"),
        *("getset_descriptor", "member_descriptor", "method_descriptor", "wrapper_descriptor", "cell"),
        *("classmethod_descriptor", "method-wrapper", "builtin_function_or_method", "super", "property"),
        *("_abc_data", "TypeVar", "hamt", "_local", "ContextVar", "Token"),
    )
)
_MODULES = frozenset(sys.stdlib_module_names) - {"_io", "_functools", "functools", "itertools", "collections"}


class Unknown:
    """What nobody can tell: two of them are never the same."""

    def __repr__(self) -> str:
        return "what nothing shows"


def is_opaque(value: Any) -> bool:
    """Is it an object of Python's library that is made in C and shows no attributes of its own?"""
    return makes_opaque(beneath(type(value)))


@per_class
def beneath(kind: type) -> type:
    """The class of a library that this one is, or that a class of the user's derives from."""
    return next(base for base in kind.__mro__ if not of_user(base))


@per_class
def makes_opaque(kind: Any) -> bool:
    """Is it a class of such objects?"""
    module = kind.__module__
    home = getattr(sys.modules.get(module), "__file__", None) or "<"
    return bool(
        str(module).partition(".")[0] in _MODULES
        and module != "builtins"
        and not is_users(home)
        and kind.__name__ not in _ELSEWHERE
        and kind.__dictoffset__ == 0
        and "__slots__" not in vars(kind)
        and not kind.__flags__ & _ABSTRACT
        and all(_made_in_c(base) for base in kind.__mro__)
    )


#: Of an abstract class there are no objects (``Py_TPFLAGS_IS_ABSTRACT``).
_ABSTRACT = 1 << 20


def _made_in_c(kind: type) -> bool:
    """Classes written in Python have a ``__module__`` among their own names and functions for methods."""
    return not any(type(item).__name__ == "function" for item in vars(kind).values())


def shown(value: Any) -> object:
    """What an object shows of itself: its length, its text, numbers and texts among its descriptors."""
    kind: Any = beneath(type(value))
    found: list[object] = [operator.length_hint(value, -1)]
    if kind.__repr__ is not object.__repr__:
        text = re.sub(r" at 0x[0-9a-f]+", "", kind.__repr__(value))
        found.append(text if len(text) < _TEXT else hash(text))
    for name in _public(kind):
        item = _read(value, name)
        found += [item] if isinstance(item, _PLAIN) else []
    return tuple(found) if len(found) > 1 else found[0]


def parts(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """What it shows and is no number, and what the garbage collector knows that it refers to."""
    kind: Any = beneath(type(value))
    for name in _public(kind):
        item = _read(value, name)
        if not isinstance(item, _PLAIN):
            yield f"{path}.{name}", item
    held = [x for x in gc.get_referents(value) if type(x).__name__ not in _ELSEWHERE]
    yield from ((f"{path}, part {i}", item) for i, item in enumerate(held))


def unseen(names: Set[str], held: Iterable[object]) -> Iterator[str]:
    """What counts, and lies in no object that could be compared, for code that has its name."""
    yield from (f"what {name} says" for name in sorted(names & _BY_ITSELF))
    item: Any
    for item in held:
        if isinstance(item, _FUNCTION) and getattr(item, "__name__", None) in names:
            yield f"what {item.__name__} of a library in C says"
        elif names & silent(item):
            yield f"what a {type(item).__qualname__} counts"


def silent(value: Any) -> frozenset[str]:
    """Names of the methods of an object that tells nothing of what it counts; none, if it tells something."""
    kind: Any = beneath(type(value))
    if not is_opaque(value) or kind.__repr__ is not object.__repr__:
        return frozenset()
    told = [n for n in _public(kind) if not isinstance(_read(value, n), re.Pattern)]
    held = [x for x in gc.get_referents(value) if not isinstance(x, type | re.Pattern)]
    if told or held:
        return frozenset()
    return frozenset(n for n in dir(value) if not n.startswith("_")) | {"next"}


@per_class
def _public(kind: Any) -> tuple[str, ...]:
    found = {n for base in kind.__mro__ for n, item in vars(base).items() if isinstance(item, _DESCRIBED)}
    return tuple(sorted(n for n in found if not n.startswith("_")))


def _read(value: object, name: str) -> object:
    try:
        return getattr(value, name)
    except Exception:  # one that is closed, or not begun
        return None
