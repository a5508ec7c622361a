"""Exceptions that only a trace raises, and that the user's code handles: a job runs something else then.

`try: bad = loss.item() > 9` has another branch under a trace than in a job. So these exceptions are noted
when they are made, and told if the code that was called returns as if nothing had happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .errors import CaptureError
from .frames import user_frame
from .refusals import Compiled, Scaling, refused

_KINDS: tuple[type[Exception], ...] = (
    CaptureError,
    Compiled,
    Scaling,
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
    GuardOnDataDependentSymNode,
)
#: Methods that fail on fake tensors only, in Python's and PyTorch's own words.
_METHODS = ("numpy", "__array__", "__format__", "__round__")
_CATCHES = "; a trace raises here where a job goes on, and the code catches the exception"


@contextmanager
def told(but: tuple[type[CaptureError], ...] = ()) -> Iterator[None]:
    """What is raised inside by the trace alone is raised at the end, too, if nothing else is.

    ``but`` errors that the capture itself makes inside and handles.
    """
    found: list[CaptureError] = []
    thread = threading.get_ident()  # what others do is refused anyway

    def note(error: Exception) -> None:
        if not found and not isinstance(error, but) and threading.get_ident() == thread:
            found.append(_described(error))

    with ExitStack() as patches:
        for kind in _KINDS:
            patches.enter_context(patch.object(kind, "__init__", _noting_made(kind.__init__, note)))
        for name in _METHODS:
            original = getattr(FakeTensor, name, None)
            if original is not None:
                patches.enter_context(patch.object(FakeTensor, name, _noting(original, note)))
        yield
    if found:
        raise found[0]


def _noting_made(original: Callable[..., None], note: Callable[[Exception], None]) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note(self)

    return init


def _noting(original: Callable[..., Any], note: Callable[[Exception], None]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            note(error)
            raise

    return method


def _described(error: Exception) -> CaptureError:
    """The error as :func:`refused` tells it, with the line that is running now.

    A :class:`CaptureError` says it itself, and may be changed by who raises it: a copy is kept.
    """
    frame = user_frame()
    if isinstance(error, CaptureError):
        kept = type(error).__new__(type(error))
        kept.__dict__.update(error.__dict__)
        kept.frame = kept.frame or frame
    else:
        kept = refused(error)
        kept.frame = frame
    kept.message += _CATCHES
    return kept
