"""Calls that give a tensor itself or a copy of it, as its strides are, while a step is recorded.

Where the strides are not certain (:mod:`.strides`), what they give is a copy in the trace, and it is known
that a job may have one memory for both. Code of the user's that asks for such strides is refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch._utils
from torch._subclasses.fake_tensor import FakeTensor

from .frames import is_users, runs_in, user_frame
from .layouts import local_tensor
from .recorder import active
from .substituting import replaced, substituted

_METHODS = ("contiguous", "reshape", "reshape_as", "flatten", "ravel", "to")
_FUNCTIONS = (
    (torch, "reshape"),
    (torch, "flatten"),
    (torch, "ravel"),
    (torch._utils, "_flatten_dense_tensors"),
)
_ASKING = ("is_contiguous", "stride", "as_strided", "as_strided_")
_Parameters = Callable[[], Iterable[torch.Tensor]]


@contextmanager
def sharing(parameters: _Parameters) -> Iterator[None]:
    """What may be a copy is one. Gradients of the ``parameters`` lie as these do, by PyTorch's rule."""

    def apart(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if original.__name__ == "to" and kwargs.get("memory_format") is None:
                return original(*args, **kwargs)  # strides decide nothing
            return _apart(_first(args), original(*args, **kwargs), parameters)

        return call

    def asking(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_users(runs_in(sys._getframe(1))):
                _refuse(args[0], original.__name__, parameters)
            return original(*args, **kwargs)

        return call

    with ExitStack() as patches:
        for name in _METHODS:
            patches.enter_context(replaced(torch.Tensor, name, apart))
        for name in _ASKING:
            patches.enter_context(replaced(torch.Tensor, name, asking))
        patches.enter_context(substituted(dict.fromkeys(_FUNCTIONS, apart) | {(torch, "as_strided"): asking}))
        yield


def _first(args: tuple[Any, ...]) -> Any:
    """The tensor of a call; of a list, its only one."""
    given = args[0] if args else None
    return given[0] if isinstance(given, list | tuple) and len(given) == 1 else given


def _uncertain(given: Any, parameters: _Parameters) -> bool:
    """Does no trace know how a tensor lies? A gradient lies as its parameter does."""
    recorder = active()
    if recorder is None or not recorder.strides.uncertain or not isinstance(given, torch.Tensor):
        return False
    here = local_tensor(given)
    if not isinstance(here, FakeTensor) or _storage(here) not in recorder.strides.uncertain:
        return False
    held = ((p, p.grad) for p in parameters() if p.grad is not None)
    return not any(
        _storage(local_tensor(grad)) == _storage(here) and grad.stride() == p.stride() for p, grad in held
    )


def _apart(given: Any, result: Any, parameters: _Parameters) -> Any:
    recorder = active()
    if recorder is None or not isinstance(result, torch.Tensor) or not _uncertain(given, parameters):
        return result
    one = _storage(local_tensor(given))
    if _storage(local_tensor(result)) == one:
        result = result.clone(memory_format=torch.contiguous_format)
    recorder.strides.may_share(one, _storage(local_tensor(result)))
    return result


def _refuse(given: Any, name: str, parameters: _Parameters) -> None:
    recorder = active()
    if recorder is not None and _uncertain(given, parameters):
        recorder.strides.asked(name, user_frame())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
