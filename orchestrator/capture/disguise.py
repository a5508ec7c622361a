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
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from unittest.mock import patch

from torch import SymInt, Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from .answers import Whole
from .frames import is_users
from .substituting import by_user, put

#: What can be done with a text that decides nothing: make, show and lengthen it.
_SHOWS = {*dir(object), "__add__", "__getnewargs__", "__rmod__", "encode"} - {
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
}

#: Classes of a trace's own, and what their objects are in a job.
STANDS: dict[builtins.type, builtins.type] = {}


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
    with put(scopes, names), patch.object(FakeTensor, "__repr__", _text), _told_class():
        yield


@contextmanager
def _told_class() -> Iterator[None]:
    """Of a tensor ``__class__`` says to the user's code what it is in a job.

    To set it on a class means another thing in Python, so it is put among the variables of the class.
    """
    (variables,) = gc.get_referents(vars(FakeTensor))
    variables["__class__"] = property(_class_told)
    _modified(FakeTensor)
    try:
        yield
    finally:
        del variables["__class__"]
        _modified(FakeTensor)


def _class_told(self: Tensor) -> builtins.type:
    return class_of(self) if by_user(sys._getframe(1)) else builtins.type(self)


def _modified(kind: builtins.type) -> None:
    """Python looks names of classes up in a cache (``PyType_Modified``)."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _is_instance(value: object, kinds: Any) -> bool:
    """``isinstance``, of the class that a value has in a job."""
    stands = _stands_for(value)
    return isinstance(value if stands is None else stands(), kinds)


def _stands_for(value: object) -> builtins.type | None:
    """The class of what is a number or a dictionary in a job, and of a class of its own in a trace."""
    found = builtins.type(value)
    if found is SymInt or isinstance(value, Whole):
        return int
    return STANDS.get(found)


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
                made.__module__ = sys._getframe(1).f_globals.get("__name__", made.__module__)
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
