"""Exceptions that only a trace raises, and that the user's code handles: a job runs something else then.

`try: bad = loss.item() > 9` has another branch under a trace than in a job. So these exceptions are noted
when they are made, and told if the code that was called returns as if nothing had happened.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .errors import CaptureError, HandledError
from .frames import user_frame
from .refusals import Compiled, Scaling, refused
from .storages import bytes_refused

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
#: Raised by PyTorch's own code for fake tensors, where a kernel would run.
_UNKNOWN = (NotImplementedError, AssertionError, AttributeError)
#: Methods that fail on fake tensors only, in Python's and PyTorch's own words.
_METHODS = ("numpy", "__array__", "__format__", "__round__", "share_memory_", "pin_memory")
_CATCHES = "; a trace raises here where a job goes on, and the code catches the exception"

#: What is raised when code returns that is called now, the innermost last.
_later: list[list[HandledError]] = []


@contextmanager
def told(but: tuple[type[CaptureError], ...] = ()) -> Iterator[None]:
    """What is raised inside by the trace alone is raised at the end, too, if nothing else is.

    ``but`` errors that the capture itself makes inside and handles.
    """
    found: list[CaptureError] = []
    later: list[HandledError] = []
    known: tuple[type[CaptureError], ...] = (HandledError, *but)
    thread = threading.get_ident()  # what others do is refused anyway

    describing = [False]

    def note(error: Exception) -> None:
        if found or describing[0] or isinstance(error, known) or threading.get_ident() != thread:
            return
        describing[0] = True  # that makes an error, too
        try:
            found.append(_described(error))
        finally:
            describing[0] = False

    with ExitStack() as patches:
        patches.enter_context(bytes_refused())
        patches.enter_context(patch.object(FakeTensor, "__reduce_ex__", _pickled))
        dispatch = FakeTensorMode.dispatch
        patches.enter_context(patch.object(FakeTensorMode, "dispatch", _outermost(dispatch, note)))
        for kind in _KINDS:
            patches.enter_context(patch.object(kind, "__init__", _noting_made(kind.__init__, note)))
        for name in _METHODS:
            original = getattr(FakeTensor, name, None)
            if original is not None:
                patches.enter_context(patch.object(FakeTensor, name, _noting(original, note)))
        patches.callback(_later.pop)
        _later.append(later)
        yield
    for error in (*found, *later):
        raise error


def tell(error: HandledError) -> None:
    """It is raised when the code that was called returns, if nothing else is."""
    if not _later:
        raise error
    _later[-1].append(error)


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


def _pickled(self: FakeTensor, protocol: Any) -> Any:
    """A pickle holds the values; a copy (:mod:`copy`) is made by the same method, and does not."""
    if sys._getframe(1).f_code.co_filename != copy.__file__:
        raise fake_tensor.DataDependentOutputException("pickle")
    return torch.Tensor.__reduce_ex__(self, protocol)


def _outermost(original: Callable[..., Any], note: Callable[[Exception], None]) -> Callable[..., Any]:
    """An op on fake tensors raises itself what no kernel does: that it, or a tensor like these, is not known.

    PyTorch tries several ways inside; only what leaves the outermost call reaches the user's code.
    """
    inside = [0]

    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside[0] += 1
        try:
            return original(self, *args, **kwargs)
        except _UNKNOWN as error:
            if inside[0] == 1:
                note(error)
            raise
        finally:
            inside[0] -= 1

    return dispatch


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
