"""On which hosts the ranks are: in a trace all on one, where a job may have several.

``LOCAL_RANK`` on one host is the rank itself; on two it is not. Who reads such a variable is noted, and ranks
that do are traced again with other hosts (:mod:`elsewhere`): to choose a device or to print, that is the same
program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import CaptureError, StepError
from .frames import PROJECT, user_frame
from .substituting import replaced

_DEPENDS = "it depends on how many hosts the ranks are on"
_INSTEAD = (
    "RANK and WORLD_SIZE, dist.get_rank(group) or coordinates of the mesh for what is computed; the place on "
    "a host (LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, …) chooses the device"
)
#: So many lines that read such a variable are named.
_SHOWN = 3
#: How many ranks a host has, where that is not all of them.
_each: list[int] = []
#: Where a variable was read that says it.
_read: dict[str, None] = {}


def variables(rank: int, size: int) -> dict[str, int]:
    """What ``torchrun`` tells a rank of the hosts."""
    each = min(size, *_each) if _each else size
    return {
        "LOCAL_RANK": rank % each,
        "LOCAL_WORLD_SIZE": each,
        "GROUP_RANK": rank // each,
        "GROUP_WORLD_SIZE": size // each,
    }


def spread(each: int) -> None:
    """From now on, until this process ends, so many ranks share a host."""
    _each[:] = [each]


def other_ways(size: int) -> Sequence[int]:
    """How many ranks may share a host other than all: one, and as many as on the fewest hosts."""
    fewest = next((n for n in range(2, size) if size % n == 0), size)
    return [] if size < 2 else sorted({1, size // fewest})


@contextmanager
def reads_noted() -> Iterator[None]:
    """While a rank is traced: where the user's code, or a library for it, asks for the hosts."""
    names = variables(0, 1).keys()
    _read.clear()

    def noting(original: Any) -> Any:
        def read(environment: Any, key: Any) -> Any:
            name = os.fsdecode(key) if isinstance(key, str | bytes) else ""
            frame = user_frame() if name in names else None
            # What PyTorch asks on its own is below no code but that of the command.
            if frame is not None and not frame[0].startswith(PROJECT):
                _read.setdefault(f"{name}, read at {Path(frame[0]).name}:{frame[1]}")
            return original(environment, key)

        return read

    with replaced(os._Environ, "__getitem__", noting):
        yield


def asked_at() -> tuple[str, ...]:
    """Where it was asked."""
    return tuple(_read)


def depends(problem: CaptureError, places: Sequence[str]) -> CaptureError | None:
    """What is said of another program, or of none, where the ranks are on other hosts.

    Code of the user's that raises an exception there raises it in a job.
    """
    if isinstance(problem, StepError) and problem.instead is None:
        return None
    problem.message = f"{_DEPENDS} ({'; '.join(places[:_SHOWN])}): {problem.message}"
    problem.instead = _INSTEAD
    return problem
