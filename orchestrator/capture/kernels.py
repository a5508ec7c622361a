"""Kernels of PyTorch's own ops that the user's code puts in place of PyTorch's: refused.

A trace runs no kernel. It writes down ``aten.tanh`` and takes it for what PyTorch says of it, whatever
``torch.library.Library("aten", "IMPL").impl("tanh", …, "CPU")`` has made of it for a job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

from .errors import DefinitionError
from .frames import is_users, runs_in, user_frame
from .signatures import PYTORCHS

_INSTEAD = (
    "a function of your own, called by your code in place of the op: what it does is recorded; or the op as "
    "PyTorch defines it"
)
#: What is between a call of the user's and the registration.
_LIBRARY = torch.library.__file__


@contextmanager
def kernels_stay() -> Iterator[None]:
    """While a definition is loaded and traced, a kernel of the user's for an op of PyTorch's is an error.

    It is one also where the code handles the exception.
    """
    problems: list[DefinitionError] = []
    original = torch.library.Library.impl

    def impl(self: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        if self.ns in PYTORCHS and _by_user(sys._getframe(1)):
            problems.append(
                DefinitionError(
                    f"a kernel of your own for {self.ns}::{_spoken(self.ns, name)}, an op of PyTorch's: a "
                    "trace runs no kernels, and takes the op for what PyTorch says of it",
                    frame=user_frame(),
                    instead=_INSTEAD,
                )
            )
            raise problems[0]
        return original(self, name, *args, **kwargs)

    with patch.object(torch.library.Library, "impl", impl):
        yield
    if problems:
        raise problems[0]


def _by_user(frame: FrameType | None) -> bool:
    """Does the user's code register it, or PyTorch itself, in a module that is loaded now?"""
    while frame is not None and frame.f_code.co_filename == _LIBRARY:
        frame = frame.f_back
    return frame is not None and is_users(runs_in(frame))


def _spoken(space: str, name: Any) -> str:
    return str(name).removeprefix(f"{space}::").removeprefix(f"{space}.")
