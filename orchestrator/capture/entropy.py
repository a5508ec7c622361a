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

from .substituting import by_user, substituted

_SOURCES = ((os, "urandom"), (os, "getrandom"), (random, "_urandom"))
_drawn = [0]


def drawn() -> int:
    """How often the user's code has drawn some."""
    return _drawn[0]


@contextmanager
def draws_counted() -> Iterator[None]:
    """While a definition is traced, what its code draws counts."""
    there = [place for place in _SOURCES if hasattr(*place)]
    with substituted(dict.fromkeys(there, _counting)):
        yield


def _counting(original: Any) -> Any:
    def draw(*args: Any) -> Any:
        _drawn[0] += by_user(sys._getframe(1))
        return original(*args)

    return draw
