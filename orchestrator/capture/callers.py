"""Who calls a step, and by which words its program was begun: a trace is begun otherwise than a job.

The user's code may look at frames of its own, as a log does; who looks further up finds this package, and in
a job a training loop, and is refused. The words of the command line are those of a job that is given no
arguments: the name of the file.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from .answers import users_own
from .errors import StateError
from .frames import user_frame
from .substituting import Place, substituted

#: What lists all frames.
_LISTS: tuple[Place, ...] = (
    *((inspect, "stack"), (inspect, "getouterframes")),
    *((traceback, "extract_stack"), (traceback, "format_stack"), (traceback, "walk_stack")),
)
_INSTEAD = "what a job does, whoever calls it; the frames of your own code may be looked at"


@contextlib.contextmanager
def callers_unseen() -> Iterator[None]:
    """The user's code sees no frame but its own, or the trace ends."""
    changes: dict[Place, Callable[[Any], Any]] = dict.fromkeys(_LISTS, _listing)
    with substituted({**changes, (sys, "_getframe"): _looking}):
        yield


@contextlib.contextmanager
def begun_as(file: str) -> Iterator[None]:
    """The program was begun with this file, and no arguments."""
    with patch.object(sys, "argv", [file]):
        yield


def _listing(original: Any) -> Any:
    @functools.wraps(original)
    def frames(*args: Any, **kwargs: Any) -> Any:
        if users_own(sys._getframe(1)):
            raise _refusal(f"{original.__module__}.{original.__name__}")
        return original(*args, **kwargs)

    return frames


def _looking(original: Any) -> Any:
    def look(depth: int = 0, /) -> Any:
        found = original(depth + 1)
        if users_own(original(1)) and not users_own(found):
            raise _refusal("sys._getframe")
        return found

    return look


def _refusal(name: str) -> StateError:
    return StateError(
        f"{name} says who has called the step: in a job a training loop, in a trace this package",
        frame=user_frame(),
        instead=_INSTEAD,
    )
