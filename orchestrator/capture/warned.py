"""Which warnings a trace shows. Whether one is ignored, kept or raised, the user's filters alone decide.

A filter of ours would answer ``catch_warnings(record=True)`` and ``simplefilter("error")`` otherwise than a
job does. So what nobody should read is dropped where Python shows a warning, behind all filters. The warnings
of kernels a trace has not: where code keeps them while PyTorch's ops run, nobody knows what it finds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from .errors import StateError
from .frames import is_users, user_frame, written_in

Drops = Callable[[warnings.WarningMessage], bool]
#: Python calls it for each warning that no filter has stopped and that nobody keeps.
_SHOWS = "_showwarnmsg_impl"
_module: Any = warnings
#: What shows warnings while a rank is traced, the innermost last.
_shown: list[object] = []


@contextmanager
def unshown(drops: Drops) -> Iterator[None]:
    """Warnings for which ``drops`` says so are not shown."""
    original = getattr(_module, _SHOWS)

    def show(message: warnings.WarningMessage) -> None:
        if not drops(message):
            original(message)

    setattr(_module, _SHOWS, show)
    _shown.append(show)
    try:
        yield
    finally:
        _shown.pop()
        setattr(_module, _SHOWS, original)


def of_libraries(message: warnings.WarningMessage) -> bool:
    """Is it one of PyTorch's words on deprecations and fake tensors?"""
    return issubclass(message.category, FutureWarning | DeprecationWarning) or "FakeTensor" in str(
        message.message
    )


def refuse_kept() -> None:
    """An op runs while the user's code keeps the warnings: those of its kernel are missing.

    Raises:
        StateError: with the line of the op.
    """
    shows = _module.showwarning
    kept = bool(_shown) and getattr(_module, _SHOWS) is not _shown[-1]
    if kept or (type(shows) is FunctionType and is_users(written_in(shows))):
        raise StateError(
            "the step keeps the warnings of PyTorch's ops: kernels warn in a job, and a trace runs none",
            frame=user_frame(),
            instead="the ops outside of warnings.catch_warnings(record=True); no decision by a warning",
        )
