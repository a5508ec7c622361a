"""A learning rate that is a number in a job, and of which a trace has no value.

It is an input of the plan, so a trace has a tensor in its place. To the user's code it is no tensor but a
number: it has the attributes of a float and no others, and what is computed of it and of plain numbers is one
again. Where a tensor takes part, the tensor in its place does. Whoever asks for its value is refused.
"""

from __future__ import annotations

import dis
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._pytree import tree_leaves, tree_map_only

from .answers import shows
from .disguise import STANDS, Text
from .frames import is_users, runs_in
from .substituting import by_user, substituted

#: What copies look for.
_COPIES = frozenset(("__copy__", "__deepcopy__", "__reduce_ex__"))
#: PyTorch looks for it wherever the user's code hands a number over.
_HANDED = "__torch_function__"
#: Functions that make tensors of numbers alone; all others take no number in place of their only tensor.
_MAKES = frozenset(("full", "scalar_tensor", "arange", "linspace", "logspace", "range"))
#: How code goes on with a value: it is left, or kept, looked into, given back, or decides.
_USES = (
    "POP_TOP",
    "STORE",
    "COMPARE",
    "CONTAINS",
    "IS_OP",
    "BINARY_SUBSCR",
    "RETURN",
    "YIELD",
    "POP_JUMP",
    "JUMP",
)
_OWN = str(Path(__file__).resolve().parent) + "/"


def hides(kind: type, name: str, asks: FrameType) -> bool:
    """Is this a name that an object of the class has not in a job, and does the user's code ask for it?"""
    if name in _COPIES:
        return name not in dir(kind) and is_users(runs_in(asks))
    if name == _HANDED:
        code = asks.f_code
        return is_users(runs_in(asks)) and (name in code.co_names or name in code.co_consts)
    return not hasattr(kind, name) and by_user(asks)


class Rate:
    """A number to the user's code; ``tensor`` is what stands for it."""

    __slots__ = ("tensor",)
    #: NumPy's numbers leave it to the rate to compute with them.
    __array_ufunc__ = None

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattribute__(self, name: str) -> Any:
        asks = sys._getframe(1)
        if name == "__class__" and not asks.f_code.co_filename.startswith(_OWN):
            return float
        if hides(float, name, asks):
            raise AttributeError(f"'float' object has no attribute '{name}'")
        if hasattr(float, name) and not hasattr(Rate, name):
            raise DataDependentOutputException(f"float.{name}")
        return object.__getattribute__(self, name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = tree_leaves((args, dict(kwargs or {})))
        name = getattr(func, "__name__", "")
        if not any(isinstance(x, torch.Tensor) for x in given) and name not in _MAKES and "new_" not in name:
            raise TypeError(f"{name}(): argument must be Tensor, not float")
        args, kwargs = tree_map_only(Rate, tensor_of, (args, dict(kwargs or {})))
        found = multiplied(func, args, kwargs)
        return func(*args, **kwargs) if found is None else found

    @property
    def real(self) -> Self:
        return self

    @property
    def imag(self) -> float:
        return 0.0

    def conjugate(self) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return Text(f"float({self.tensor!r})")

    def __format__(self, form: str) -> str:
        format(0.0, form)  # what fails in a job fails
        if not _printed(sys._getframe(1)):
            raise DataDependentOutputException("float.__format__")
        return repr(self)

    def __dir__(self) -> list[str]:
        return dir(float)

    def __hash__(self) -> int:
        if by_user(sys._getframe(1)):
            raise DataDependentOutputException("float.__hash__")
        return id(self)

    def __neg__(self) -> Rate:
        return Rate(-self.tensor)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Rate:
        return Rate(self.tensor.abs())


STANDS[Rate] = float


def tensor_of(value: Any) -> Any:
    """The tensor that stands for a rate; all else is what it is."""
    return value.tensor if type(value) is Rate else value


def multiplied(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """``x.addcdiv_(y, z, value=t)`` and ``x.add_(y, alpha=t)`` of a tensor ``t``, whose value PyTorch would
    read, as the products that they stand for; ``None`` for any other call."""
    name = getattr(func, "__name__", "")
    for option, names in (("value", ("addcdiv", "addcmul")), ("alpha", ("add", "sub"))):
        factor = kwargs.get(option)
        if name.rstrip("_") in names and isinstance(factor, torch.Tensor) and "out" not in kwargs:
            x, y, *rest = args
            term = y * factor if not rest else factor * (y / rest[0] if "div" in name else y * rest[0])
            operation = ("sub" if "sub" in name else "add") + ("_" if name.endswith("_") else "")
            made: torch.Tensor = getattr(x, operation)(term)
            return made
    return None


@contextmanager
def taken_for_numbers() -> Iterator[None]:
    """What tells numbers from tensors in PyTorch, or makes tensors of numbers, takes rates for numbers."""

    def no_tensor(original: Callable[..., bool]) -> Callable[..., bool]:
        return functools.wraps(original)(lambda inp: type(inp) is not Rate and original(inp))

    def made(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def tensor(data: Any, **options: Any) -> torch.Tensor:
            if type(data) is not Rate:
                return original(data, **options)
            found: torch.Tensor = data.tensor.clone().to(options.pop("dtype", None), **options)
            return found

        return functools.wraps(original)(tensor)

    changes = {(torch.overrides, "is_tensor_like"): no_tensor, (torch, "tensor"): made}
    with substituted(changes | {(torch, "as_tensor"): made}):
        yield


def _computed(operation: Callable[[Any, Any], Any], turned: bool) -> Callable[[Rate, Any], Any]:
    """An arithmetic operation: with a plain number it gives a rate, with a tensor a tensor."""

    def method(self: Rate, other: Any) -> Any:
        if not isinstance(other, torch.Tensor | Rate | int | float | np.number | torch.SymInt):
            return NotImplemented
        operands = self.tensor, tensor_of(other)
        made = operation(*(operands[::-1] if turned else operands))
        return made if isinstance(other, torch.Tensor) else Rate(made)

    return method


def _printed(frame: FrameType) -> bool:
    """Does nothing but a call get the text that is being made, as in ``print(f"{rate:.3f}")``?"""
    if not is_users(runs_in(frame)):
        return True  # a log's record
    later = (i.opname for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    return next((name for name in later if name.startswith(_USES)), "") == "POP_TOP"


def _asked(name: str) -> Callable[..., Any]:
    """A question for the value; a rate equals nothing that is no number, and in a text it is none."""

    def method(self: Rate, *others: Any) -> Any:
        if name in ("__eq__", "__ne__") and not isinstance(others[0], Rate | int | float | np.number):
            return NotImplemented
        asks = sys._getframe(1)
        if name == "__float__" and shows(asks) and _printed(asks):
            return math.nan
        raise DataDependentOutputException(f"float.{name}")

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _operation = getattr(operator, _name)
    setattr(Rate, f"__{_name}__", _computed(_operation, turned=False))
    setattr(Rate, f"__r{_name}__", _computed(_operation, turned=True))
for _name in (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "int", "float", "round", "trunc", "floor", "ceil"),
    *("divmod", "rdivmod", "reduce_ex", "getnewargs"),
):
    setattr(Rate, f"__{_name}__", _asked(f"__{_name}__"))
