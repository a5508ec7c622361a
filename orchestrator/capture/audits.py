"""Python's audit events, for who listens to one: its hooks cannot be taken away again, so there is one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_Told = Callable[..., None]
_LISTENING: dict[str, list[_Told]] = {}


def listen(event: str, told: _Told) -> None:
    """``told`` is called with the arguments of each such event, until :func:`leave`."""
    _install()
    _LISTENING.setdefault(event, []).append(told)


def leave(event: str, told: _Told) -> None:
    """It is told no more."""
    _LISTENING[event].remove(told)


@functools.cache
def _install() -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        for told in tuple(_LISTENING.get(event, ())):
            told(*arguments)

    sys.addaudithook(hook)
