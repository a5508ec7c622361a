"""Random numbers of the system: ``os.urandom``, and with it ``secrets``, ``uuid4`` and ``SystemRandom``.

They have no state that could be compared. So it is counted how many the user's code draws.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .frames import is_users, runs_in
from .substituting import by_user, replaced, substituted

_SOURCES = ((os, "urandom"), (os, "getrandom"), (random, "_urandom"))
_drawn = [0]


def drawn() -> int:
    """How often the user's code has drawn some."""
    return _drawn[0]


@contextmanager
def draws_counted() -> Iterator[None]:
    """While a definition is traced, what its code draws counts."""
    there = [place for place in _SOURCES if hasattr(*place)]
    with substituted(dict.fromkeys(there, _counting)), replaced(random.Random, "seed", _seeding):
        yield


def _counting(original: Any) -> Any:
    def draw(*args: Any) -> Any:
        _drawn[0] += by_user(sys._getframe(1))
        return original(*args)

    return draw


def _seeding(original: Any) -> Any:
    """A generator without a seed asks the system for one, in C; those of libraries (for file names) may."""

    def seed(self: random.Random, a: Any = None, *rest: Any, **options: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == random.__file__:
            frame = frame.f_back
        _drawn[0] += a is None and is_users(runs_in(frame))
        original(self, a, *rest, **options)

    return seed
