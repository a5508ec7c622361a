"""Exceptions of kernels, which a trace runs none of: nobody may go on after one.

A kernel raises where an index is out of range, a matrix is singular, a type is none of its own, memory runs
out or a peer is gone; fake tensors do not. A job that handles such an exception and goes on does what no
trace shows. One that ends is none that a plan speaks of.
"""

from __future__ import annotations

import contextlib
import sys
from types import FrameType

from .answers import users_own
from .errors import HandledError
from .frames import user_frame
from .handlers import goes_on
from .swallowed import tell

#: What an op may raise by itself; a warning, if a filter of the user's makes an exception of it.
OF_KERNELS = (RuntimeError, IndexError, ValueError, TypeError, MemoryError, Warning)
_SAID = (
    "the step goes on where a kernel has raised an exception (an index, a type, memory, a peer): a trace "
    "runs no kernels, and does not show what happens then"
)
_INSTEAD = "no handler around the op, or `raise` at its end, so that a job ends"


def refuse_handled() -> None:
    """An op has run: that somebody would go on after an exception of its kernel is told, with the line."""
    if goes_on(sys._getframe(1), _judged, OF_KERNELS):
        tell(HandledError(_SAID, frame=user_frame(), instead=_INSTEAD))


def _judged(frame: FrameType) -> bool:
    """The user's own code, and where Python's library enters a context manager as a decorator."""
    return users_own(frame) or frame.f_code.co_filename == contextlib.__file__
