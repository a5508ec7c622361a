"""Dispatch modes are what records: no code of the user's may stand below them or take them away."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.utils import _mode_utils, _python_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .errors import DefinitionError, StateError
from .frames import user_frame
from .substituting import by_user, substituted

#: What switches dispatch modes off, or the way to them.
_SWITCHES: tuple[tuple[Any, str], ...] = (
    (_python_dispatch, "_disable_current_modes"),
    (_python_dispatch, "_pop_mode"),
    (_python_dispatch, "_pop_mode_temporarily"),
    (_python_dispatch, "_disable_infra_mode"),
    (_mode_utils, "no_dispatch"),
    (fake_tensor, "unset_fake_temporarily"),
    (torch._C, "_DisableTorchDispatch"),
    (torch._C, "_ExcludeDispatchKeyGuard"),
    (torch._C, "_ForceDispatchKeyGuard"),
    (torch._C, "_pop_torch_dispatch_stack"),
    (torch._C, "_unset_dispatch_mode"),
)


def alone_on_the_stack() -> None:
    """A mode that is on before a trace begins stands below it, and never runs in it: a DefinitionError."""
    found = [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]
    if found:
        raise DefinitionError(
            f"a dispatch mode ({', '.join(found)}) is on before the trace begins: in a job it changes what "
            "ops do, and a trace does not see it",
            instead="no mode that is entered while the file is loaded; `with mode:` inside of the step",
        )


@contextmanager
def modes_stay() -> Iterator[None]:
    """The user's code that would take the recorder away is refused: what it ran would go unseen."""
    there = [place for place in _SWITCHES if hasattr(*place)]
    with substituted({(module, name): _refusing(name) for module, name in there}):
        yield


def _refusing(name: str) -> Callable[[Any], Any]:
    def change(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if by_user(sys._getframe(1)):
                raise StateError(
                    f"{name} takes away what records the ops of the step",
                    frame=user_frame(),
                    instead="the ops themselves, without it: a trace has no values that a mode would hide",
                )
            return original(*args, **kwargs)

        return call

    return change
