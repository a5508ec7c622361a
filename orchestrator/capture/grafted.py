"""What the user's code has put on modules and classes of libraries: its own functions, and attributes.

A function that stands for ``dist.all_reduce`` is reached from no variable of the user's file, and may count
its calls in a closure. Nor is ``torch.calls = 0`` a variable of it. Both are looked for where they lie.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from .audits import listen
from .bytecode import built_names, chains, names, stored, texts
from .frames import is_installed, is_own, written_in
from .holding import CACHES, PLAIN, followed, imported
from .per_class import per_class
from .scopes import Kept

#: Objects of classes that are made while Python runs can get another class (``Py_TPFLAGS_HEAPTYPE``), and so
#: can modules.
_OF_HEAP = 1 << 9
#: With what code counts, and nothing that packages make of numbers.
_NUMBERS = (bool, int, float, str, bytes)
#: What a function can count in besides its attributes.
_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__", "__annotations__")
#: What holds a function.
_WRAPPERS = (functools.partial, MethodType, staticmethod, classmethod)
#: What a library has of its own in its modules and classes.
_CODE = (
    *(ModuleType, type, FunctionType, MethodType, staticmethod, classmethod, property, CACHES),
    *(BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType),
)


@functools.cache
def functions() -> tuple[tuple[str, object], ...]:
    """Functions of the user's, and objects of its classes, on modules and classes of libraries, by name.

    Looked for once in a process, when the first steps are over.
    """
    return tuple(_functions())


def look_ahead() -> None:
    """Look for them in the process that children are forked from: what stays there, they need not look at."""
    for _ in _functions():
        pass
    for module in _libraries(sys.modules):
        _plain(module)


def _functions() -> Iterator[tuple[str, object]]:
    _follow()
    for module in _libraries(sys.modules):
        own, classes = _own(module)
        yield from ((f"{module.__name__}.{key}", value) for key, value in own)
        for name, kind in classes:
            here = f"{module.__name__}.{name}"
            yield from ((f"{here}.{key}", value) for key, value in _own(kind)[0])


@functools.cache
def _follow() -> None:
    """What stays the same object may get another class, and a function another code."""

    def changed(item: object, name: object, *_value: object) -> None:
        if name == "__code__" or (name == "__class__" and id(item) in _OBJECTS):
            _own.forget()

    listen("object.__setattr__", changed)


#: What lies there and is no function, class or plain value, by identity.
_OBJECTS: set[int] = set()
_Named = tuple[tuple[str, Any], ...]


@Kept
def _own(scope: ModuleType | type) -> tuple[_Named, _Named]:
    """What lies there of the user's, and the classes that are defined there."""
    own, classes = [], []
    for key, value in list(vars(scope).items()):
        kind = type(value)
        if kind in _NUMBERS:
            continue
        if isinstance(scope, ModuleType) and issubclass(kind, type):  # isinstance asks objects that warn
            classes += [(key, value)] if value.__module__ == scope.__name__ else []
        elif kind is FunctionType or not _is_dull(kind):
            own += [(key, value)] if _users_own(value) else []
        elif kind is ModuleType or kind.__flags__ & _OF_HEAP:
            _OBJECTS.add(id(value))
    return tuple(own), tuple(classes)


@Kept
def _plain(module: ModuleType) -> frozenset[str]:
    """Names of its plain values."""
    return frozenset(key for key, value in list(vars(module).items()) if type(value) in _NUMBERS)


@per_class
def _is_dull(kind: type) -> bool:
    """Are no objects of this class the user's, as most of some 200,000 are not?"""
    return not issubclass(kind, _WRAPPERS) and not _is_users_module(kind.__module__)


@Kept
def _libraries(modules: Mapping[str, ModuleType]) -> list[ModuleType]:
    found = {id(m): m for m in list(modules.values()) if isinstance(m, ModuleType)}
    return [m for m in found.values() if _of_library(m.__name__)]


def _of_library(name: str) -> bool:
    """Is this the name of a module of PyTorch, of Python's library, or of an installed package?"""
    file = getattr(sys.modules.get(name), "__file__", None) or "<"
    return not is_own(file) and name != "__main__"


def _users_own(value: Any) -> bool:
    """Is it a function of the user's, bound or wrapped or not, or an object of one of its classes?"""
    kind = type(value)
    if kind is FunctionType:
        inner = getattr(value, "__wrapped__", None)  # optimizers wrap the step of their class
        return is_own(value.__code__.co_filename) or (inner is not None and _users_own(inner))
    if issubclass(kind, functools.partial):
        return _users_own(value.func)
    if issubclass(kind, _WRAPPERS):
        return _users_own(value.__func__)
    return _is_users_module(kind.__module__)


@functools.cache
def _is_users_module(name: str) -> bool:
    return is_own(getattr(sys.modules.get(name), "__file__", None) or "<")


def attributes(
    code: Iterable[FunctionType], kinds: Iterable[type] = ()
) -> Iterator[tuple[str, object, object]]:
    """Attributes of modules, classes and functions of libraries that this code names, and of ``kinds``, the
    classes of what it is given: the name, what is there, on what.

    At names that the code sets, whatever is there; at names that a function reads beside the module or
    class, what can count: a container, a number, an object of the user's. A file may put them there when
    it is loaded. Where code puts names together when it runs, any attribute of the modules
    that it names may be meant. A function leads to the variables of a module that no code names, so plain
    values are looked for in all modules.
    """
    made = list(code)
    put = frozenset[str]().union(*(stored(f.__code__) for f in made))
    own = (f for f in made if not is_installed(written_in(f)))  # packages have caches
    asked = {f: names(f.__code__) | texts(f.__code__) for f in own}
    found: dict[int, tuple[str, Any, set[str]]] = {}
    for kind in kinds:
        if _of_library(kind.__module__):
            found[id(kind)] = kind.__qualname__, kind, set[str]().union(*asked.values())
    for function in made:
        for path, holder in _named(function):
            if function in asked or not isinstance(holder, FunctionType):  # packages keep constants on theirs
                found.setdefault(id(holder), (path, holder, set()))[2].update(asked.get(function, ()))
    building = [f for f in made if not is_installed(written_in(f)) and built_names(f.__code__)]
    built = {id(holder) for function in building for _, holder in _named(function)}
    for path, holder, read in found.values():
        held = _held(holder)
        if id(holder) in built and not isinstance(holder, type):
            read |= {name for name, item in held.items() if item is not sys.modules}
        counts = {name for name in read & held.keys() if _may_count(held[name])}
        counts |= {name for name in put & held.keys() if not _is_librarys_cache(held[name])}
        for name in sorted(counts):
            if held[name] is sys.modules:  # it grows with every module that a library imports late
                kept = ((key, item) for key, item in list(sys.modules.items()) if _may_count(item))
                yield from ((f"{path}.{name}[{key!r}]", item, holder) for key, item in kept)
            else:
                yield f"{path}.{name}", held[name], holder
    mentioned = set[str]().union(*asked.values())
    for module in _libraries(sys.modules):
        for name in mentioned & _plain(module) if id(module) not in found else ():
            yield f"{module.__name__}.{name}", vars(module)[name], module


def _held(holder: Any) -> Mapping[str, Any]:
    """What is on a module, a class or a function."""
    counting = _OF_FUNCTIONS if isinstance(holder, FunctionType) else ()
    return {**vars(holder), **{name: getattr(holder, name) for name in counting}}


def _is_librarys_cache(value: object) -> bool:
    """It has the name of something that the user's code sets somewhere, and fills by itself."""
    return isinstance(value, CACHES) and not _users_own(value.__wrapped__)


def _may_count(value: object) -> bool:
    """Is it no module, class or function of a library, and nothing of which only the library knows?"""
    kind = type(value)
    if issubclass(kind, _CODE):
        return kind is FunctionType and _users_own(value)
    return isinstance(value, PLAIN) or followed(value)


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Modules, classes and functions of libraries that a function names, as ``torch.nn.Module``, or imports
    itself."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known = function.__globals__ | {name: c.cell_contents for name, c in cells if _bound(c)}
    for chain in chains(function.__code__):
        value: Any = known.get(chain[0])
        for i in range(len(chain)):
            if i:
                value = vars(value).get(chain[i])
            if isinstance(value, ModuleType):
                library = _of_library(value.__name__)
            elif isinstance(value, type | FunctionType):
                library = _of_library(value.__module__)
            else:
                break
            if library:
                yield ".".join(chain[: i + 1]), value
            if isinstance(value, FunctionType):
                break
    yield from ((module.__name__, module) for module in imported(function) if _of_library(module.__name__))


def _bound(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
