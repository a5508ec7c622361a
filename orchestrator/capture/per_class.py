"""What is decided by the class of a value, and asked for once per class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def per_class(ask: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """Answers are kept by the identity of a class: a metaclass may say what equals what, or have no hash."""
    known: dict[int, tuple[Any, Answer]] = {}  # with the class, which is alive so

    @functools.wraps(ask)
    def answer(kind: Any) -> Answer:
        found = known.get(id(kind))
        if found is None:
            found = known[id(kind)] = kind, ask(kind)
        return found[1]

    return answer
