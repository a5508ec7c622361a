"""Random numbers of the system: ``os.urandom``, and with it ``secrets``, ``uuid4`` and ``SystemRandom``.

They have no state that could be compared. So it is counted how many the user's code draws. Other generators
have one: it is compared with that at the beginning, and with that in another process.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch

from .frames import is_users, runs_in
from .substituting import by_user, replaced, substituted

_SOURCES = ((os, "urandom"), (os, "getrandom"), (random, "_urandom"))
_drawn = [0]


def _pythons() -> object:
    return random.getstate()


def _numpys() -> object:
    state: Any = np.random.get_state(legacy=False)
    return state["state"]["key"].tobytes(), state["state"]["pos"]


#: Generators that a process has, and how they stood when it began.
_READ: Mapping[ModuleType, Callable[[], object]] = {
    random: _pythons,
    np.random: _numpys,
    torch: torch.initial_seed,
}
_begun: dict[ModuleType, object] = {module: read() for module, read in _READ.items()}
#: Those that were given one.
_seeds: list[ModuleType] = []


def begin_anew() -> None:
    """In another process these generators begin elsewhere: a file without a seed draws other numbers."""
    random.seed(os.urandom(16))
    np.random.seed(list(os.urandom(16)))
    _begun.update({module: read() for module, read in _READ.items()})
    _seeds.clear()
    _drawn[0] = 0


def standing() -> str:
    """What was drawn since this process began: nothing (no text), or where the generators stand now.

    That is alike in two processes if a seed was given, and what the system gives never is.
    """
    now = {module: read() for module, read in _READ.items()}
    if now == _begun and not drawn():
        return ""
    systems = os.urandom(8) if drawn() else b""
    return hashlib.sha256(repr(list(now.values())).encode() + systems).hexdigest()


def drawn() -> int:
    """How often the user's code has drawn some."""
    return _drawn[0]


@contextmanager
def draws_counted() -> Iterator[None]:
    """While a definition is traced, what its code draws counts."""
    there = [place for place in _SOURCES if hasattr(*place)]
    seeds = {(module, "seed"): _ending(module) for module in (random, np.random)}
    with substituted(dict.fromkeys(there, _counting) | seeds), replaced(random.Random, "seed", _seeding):
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


def _ending(module: ModuleType) -> Callable[[Any], Any]:
    """The first seed hides what was drawn before: that counts as what the system gives."""

    def change(original: Any) -> Any:
        def seed(*args: Any, **options: Any) -> None:
            if module not in _seeds and by_user(sys._getframe(1)):
                _seeds.append(module)
                _drawn[0] += _READ[module]() != _begun[module]
            original(*args, **options)

        return seed

    return change
