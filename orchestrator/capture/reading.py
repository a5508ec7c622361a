"""Files that a recorded step reads: what they say decides or counts, and the next step may find it changed.

Python's audit events tell of every file that is opened. A step may write files, such as a log. What an
installed package reads for itself, and what Python reads to import or to show a line, is not the step's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np

from .audits import leave, listen
from .errors import StateError
from .frames import is_own, runs_in, user_frame

_INSTEAD = "what the file says as an entry of the batch; or read it outside of the step, if it stays the same"
#: Modules of Python's own, and NumPy, through which code reads a file of its choice.
_READERS = tuple(
    os.path.join(os.path.dirname(library), name)
    for library, name in (
        *(
            (os.__file__, name)
            for name in ("pathlib", "gzip", "bz2.py", "lzma.py", "_bootlocale", "codecs.py")
        ),
        *((os.__file__, name) for name in ("configparser.py", "fileinput.py")),
        (np.__file__, ""),
    )
)


@contextmanager
def no_files(refuse: Callable[[StateError], None]) -> Iterator[None]:
    """While a step is recorded, its code opens no file to read it."""

    def opened(path: object, mode: object, *_flags: object) -> None:
        reader = _reader(sys._getframe(2))
        if isinstance(mode, str) and ("r" in mode or "+" in mode) and reader is not None:
            refuse(StateError(f"the step reads the file {path}", frame=user_frame(reader), instead=_INSTEAD))

    listen("open", opened)
    try:
        yield
    finally:
        leave("open", opened)


def _reader(frame: FrameType | None) -> FrameType | None:
    """The user's own code that opens it, itself or through a module that is for reading files."""
    while frame is not None and frame.f_code.co_filename.startswith(_READERS):
        frame = frame.f_back
    return frame if frame is not None and is_own(runs_in(frame)) else None
