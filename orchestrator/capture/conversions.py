"""``model.to(…)``, ``.float()``, ``.to_empty(…)``: a module's tensors are converted as they are in a job.

All of these are ``nn.Module._apply``, which exchanges two tensors (``swap_tensors``) if a parameter is a
``FakeTensor``. Those of a trace cannot be exchanged, and a job takes another way: a parameter stays the
object that it is and gets other memory (``p.data = …``), or, of another kind of device (``meta``), becomes
another object. An optimizer that was made before holds it, or does not.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

from torch import nn

from .recorder import data_forgets
from .substituting import replaced

#: Where PyTorch's function takes the class from that it asks for.
_HOME = "torch._subclasses.fake_tensor"


class _OfNobody:
    """The class that PyTorch asks for: no tensor is of it, as in a job."""


@contextmanager
def converted_as_in_a_job() -> Iterator[None]:
    """PyTorch's own ``_apply`` runs, and finds no fake tensor."""
    with replaced(nn.Module, "_apply", _asking_nobody), data_forgets():
        yield


def _asking_nobody(original: FunctionType) -> FunctionType:
    """The same code, which imports another class by the name ``FakeTensor``."""

    def bring(name: str, *rest: Any) -> Any:
        return SimpleNamespace(FakeTensor=_OfNobody) if name == _HOME else builtins.__import__(name, *rest)

    scope = {**original.__globals__, "__builtins__": {**vars(builtins), "__import__": bring}}
    made = FunctionType(original.__code__, scope, original.__name__, original.__defaults__)
    made.__kwdefaults__ = original.__kwdefaults__
    return made
