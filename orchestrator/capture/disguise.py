"""What code asks of a tensor itself, and a trace would answer otherwise than a job: its class and its text.

Under a trace every tensor is a ``FakeTensor``. Code that asks for a class (``type(p) is nn.Parameter``, a
table of handlers by ``type(t)``, ``t.__class__``) is told the class that the tensor has in a job. What stands
for something else (a learning rate, a number of rows, the options of a group) is of its class
(``isinstance(group["lr"], float)``). The text of a tensor holds values, of which a trace has none: it can be
printed, and what decides by it is refused.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from sys import _getframe  # as it was before a trace puts another one there
from types import FunctionType
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import SymInt, Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from .answers import Whole
from .errors import StateError
from .frames import is_users, user_frame
from .substituting import by_user, put, replaced

#: What can be done with a text that decides nothing: make, show and lengthen it.
_SHOWS = {*dir(object), "__add__", "__getnewargs__", "__rmod__", "encode"} - {
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
}

#: Classes of a trace's own, and what their objects are in a job.
STANDS: dict[builtins.type, builtins.type] = {}
#: Likewise, of classes that inherit what PyTorch looks for.
INHERITS: dict[builtins.type, builtins.type] = {}


@contextmanager
def disguised(*functions: Callable[..., object]) -> Iterator[None]:
    """While a definition is traced, its tensors say that they are of the classes they have in a job.

    In every module outside PyTorch and Python's library, and where ``functions`` are defined: there the
    name ``type`` is a :class:`_Type`, and ``isinstance`` asks for the same classes.
    """
    scopes = [vars(m) for m in list(sys.modules.values()) if is_users(getattr(m, "__file__", None) or "<")]
    scopes += [
        f.__globals__ for f in functions if isinstance(f, FunctionType) and is_users(f.__code__.co_filename)
    ]
    names: Mapping[str, Any] = {"type": _Type, "isinstance": _is_instance}
    parameters = replaced(nn.Parameter, "__new__", _as_asked)
    text = patch.object(FakeTensor, "__repr__", _text)
    with put(scopes, names), text, _told_names(), _told_class(), parameters:
        yield


def _as_asked(original: Callable[..., Any]) -> Any:
    """Of a fake tensor PyTorch makes no parameter of the user's own class, and says nothing: methods,
    attributes and ``isinstance`` are lost."""

    @functools.wraps(original)
    def new(kind: builtins.type, *args: Any, **kwargs: Any) -> Any:
        made = original(kind, *args, **kwargs)
        if kind is not nn.Parameter and builtins.type(made) is FakeTensor:
            raise StateError(
                f"a tensor of the trace is made one of another class ({kind.__name__}), "
                "which may run other ops",
                frame=user_frame(),
                instead="nn.Parameter, and an attribute (p.shared = True) that tells which are meant",
            )
        return made

    return staticmethod(new)


def _told_class() -> AbstractContextManager[None]:
    """Of a tensor ``__class__``, and what it has of its class, tell the user what they do in a job."""
    of_class = {name: _OfClass(name, getattr(FakeTensor, name)) for name in ("__module__", "__doc__")}
    return _variables({"__class__": property(_class_told), **of_class})


def _told_names() -> AbstractContextManager[None]:
    """To the user's code a tensor has the attributes that it has in a job, and no others."""
    own = vars(FakeTensor)
    hidden = {name: _OfTraces(name, own.get(name, _NOTHING)) for name in of_traces()}
    return _variables({**hidden, "__dict__": property(_variables_told), "__dir__": _names_told})


@contextmanager
def _variables(names: Mapping[str, object]) -> Iterator[None]:
    """To set some of these on a class means another thing in Python: they are put among its variables."""
    (variables,) = gc.get_referents(vars(FakeTensor))
    before = {name: variables[name] for name in names if name in variables}
    variables.update(names)
    _modified(FakeTensor)
    try:
        yield
    finally:
        for name in names:
            del variables[name]
        variables.update(before)
        _modified(FakeTensor)


_NOTHING = object()
_MARKED = "a tensor of a trace has an attribute of its own that is named {}: what is set here would change it"


@functools.cache
def of_traces() -> frozenset[str]:
    """Names of attributes that a tensor of a trace has, and one of a job has not."""
    with FakeTensorMode():
        names = {*dir(nn.Parameter(torch.zeros(1))), *dir(FakeTensor)}
    return frozenset(names.difference(dir(Tensor), dir(nn.Parameter(torch.zeros(1)))))


class _OfTraces:
    """An attribute that does not exist for the user's code; ``original`` is what the class itself has."""

    def __init__(self, name: str, original: Any) -> None:
        self._name, self._original = name, original
        self._sets = hasattr(original, "__set__")

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        if tensor is not None:
            if by_user(_getframe(1)):
                said = f"{class_of(tensor).__name__!r} object has no attribute {self._name!r}"
                raise AttributeError(said)
            held = Tensor.__dict__["__dict__"].__get__(tensor)
            if not self._sets and self._name in held:
                return held[self._name]
        if self._original is _NOTHING:
            raise AttributeError(self._name)
        get = getattr(builtins.type(self._original), "__get__", None)
        return self._original if get is None else get(self._original, tensor, owner)

    def __set__(self, tensor: Any, value: object) -> None:
        if by_user(_getframe(1)):
            raise _marked(self._name)
        if self._sets:
            self._original.__set__(tensor, value)
        else:
            Tensor.__dict__["__dict__"].__get__(tensor)[self._name] = value

    def __delete__(self, tensor: Any) -> None:
        Tensor.__dict__["__dict__"].__get__(tensor).pop(self._name)


def _marked(name: str) -> StateError:
    return StateError(_MARKED.format(name), frame=user_frame(), instead="another name for the attribute")


class _Variables(dict[str, Any]):
    """``vars(tensor)`` as the user's code sees it: what it writes is written to the tensor as well."""

    def __init__(self, held: dict[str, Any]) -> None:
        super().__init__((name, item) for name, item in held.items() if name not in of_traces())
        self._held = held

    def __setitem__(self, name: str, value: Any) -> None:
        if name in of_traces():
            raise _marked(name)
        self._held[name] = value
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self._held[name]

    def __ior__(self, others: Any) -> Self:  # type: ignore[override, misc]
        self.update(others)
        return self

    update, setdefault = MutableMapping.update, MutableMapping.setdefault
    pop, popitem, clear = MutableMapping.pop, MutableMapping.popitem, MutableMapping.clear


STANDS[_Variables] = dict


def _variables_told(self: Tensor) -> dict[str, Any]:
    held: dict[str, Any] = Tensor.__dict__["__dict__"].__get__(self)
    return _Variables(held) if by_user(_getframe(1)) else held


def _names_told(self: Tensor) -> list[str]:
    names: list[str] = Tensor.__dir__(self)
    return [n for n in names if n not in of_traces()] if by_user(_getframe(1)) else names


def _class_told(self: Tensor) -> builtins.type:
    return class_of(self) if by_user(_getframe(1)) else builtins.type(self)


class _OfClass(str):
    """A text that an object has of its class. Python takes what lies at the class itself for the class's."""

    name: str

    def __new__(cls, name: str, text: str) -> Self:
        made = super().__new__(cls, text)
        made.name = name
        return made

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        told = tensor is not None and by_user(_getframe(1))
        return getattr(class_of(tensor), self.name) if told else str(self)


def _modified(kind: builtins.type) -> None:
    """Python looks names of classes up in a cache (``PyType_Modified``)."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _is_instance(value: object, kinds: Any) -> bool:
    """``isinstance``, of the class that a value has in a job."""
    if (found := INHERITS.get(builtins.type(value))) is not None:
        return issubclass(found, kinds)
    stands = _stands_for(value)
    return isinstance(value if stands is None else stands(), kinds)


def _stands_for(value: object) -> builtins.type | None:
    """The class of what is a number or a dictionary in a job, and of a class of its own in a trace."""
    found = builtins.type(value)
    if found is SymInt or isinstance(value, Whole):
        return int
    return STANDS.get(found) or INHERITS.get(found)


def class_of(tensor: Tensor) -> builtins.type:
    """The class of a tensor in a job: that of a parameter, or of a tensor."""
    parameter: builtins.type = nn.Parameter
    return parameter if getattr(tensor, "_is_param", False) else Tensor


class _Asked(type):
    """Of :class:`_Type`, which is called as ``type`` is, and stands for it in ``isinstance``."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _Type:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:  # a class is made, in the module that makes it
            made = builtins.type(*args, **kwargs)
            if "__module__" not in args[-1]:
                made.__module__ = _getframe(1).f_globals.get("__name__", made.__module__)
            return made
        found = builtins.type(args[0])
        if (stands := _stands_for(args[0])) is not None:
            return stands
        if found is FakeTensor:
            return class_of(args[0])
        return _Type if found in (builtins.type, _Asked) else found

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, builtins.type) if cls is _Type else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: builtins.type) -> bool:
        return issubclass(other, builtins.type) if cls is _Type else super().__subclasscheck__(other)


class _Type(type, metaclass=_Asked):
    """``type`` as a user's module sees it."""


_Type.__name__ = _Type.__qualname__ = "type"
_is_instance.__name__ = _is_instance.__qualname__ = "isinstance"


class Text(str):
    """The text of a tensor without values: whoever looks into it is refused."""

    __slots__ = ()

    def __add__(self, other: str) -> Text:
        return Text(str.__add__(self, other))


def _text(self: FakeTensor) -> Text:
    return Text(Tensor.__repr__(self))


def _asked(name: str) -> Callable[..., Any]:
    def method(self: Text, *args: Any, **kwargs: Any) -> Any:
        raise DataDependentOutputException(f"str.{name}")

    return method


_QUERIES: Mapping[str, Callable[..., Any]] = {
    name: _asked(name) for name in dir(str) if name not in _SHOWS and callable(getattr(str, name))
}
for _name, _method in _QUERIES.items():
    setattr(Text, _name, _method)
