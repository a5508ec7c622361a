"""What was begun before a step and goes on beside it: threads, timers, alarms, what the collector calls.

It comes between any two lines of any step, the hundredth perhaps, and a trace has ended by then. What a step
itself begins is looked at while it is recorded (:mod:`.deadlines`).
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

from .answers import users_own
from .errors import StateError
from .frames import is_installed, is_own, of_user, user_frame, written_in
from .substituting import Place, replaced, substituted

_COMES = "{} is begun before the step, and comes between any two lines of some step"
_INSTEAD = "nothing of the kind in the file, build and parallelize: the loop that calls the step begins it"


@contextmanager
def begun_outside() -> Iterator[None]:
    """What the user's code begins inside and leaves there is refused."""
    threads, called = set(threading.enumerate()), list(gc.callbacks)
    alarms: Mapping[Place, Any] = {(signal, "alarm"): _alarming(0), (signal, "setitimer"): _alarming(1)}
    with substituted(alarms), replaced(threading.Timer, "start", _starting):
        yield
    refuse_begun(threads, called)


def refuse_begun(threads: Collection[threading.Thread], called: Collection[object]) -> None:
    """A thread of the user's that is none of these still runs, or the collector calls one more function.

    Raises:
        StateError: with the line where the thread is.
    """
    running = sys._current_frames()
    for thread in (t for t in threading.enumerate() if t not in threads):
        frame = _own(running.get(thread.ident or 0))
        if frame is not None or _is_users(thread):
            line = None if frame is None else user_frame(frame)
            raise StateError(_COMES.format("a thread that runs on"), frame=line, instead=_INSTEAD)
    for function in gc.callbacks:
        if function not in called and _is_own(function):
            what = "what the garbage collector calls (gc.callbacks)"
            raise StateError(_COMES.format(what), frame=_line(function), instead=_INSTEAD)


def _own(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not users_own(frame):
        frame = frame.f_back
    return frame


def _is_users(thread: threading.Thread) -> bool:
    """Has it code of the user's to run, perhaps not yet begun?"""
    return _is_owns(type(thread)) or _is_own(getattr(thread, "_target", None))


def _is_own(function: object) -> bool:
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        return _is_owns(type(plain))
    return is_own(written_in(plain))


def _is_owns(kind: type) -> bool:
    """Is it a class of the user's own, and of no package?"""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return of_user(kind) and not is_installed(file or "<")


def _line(function: object) -> tuple[str, int, str] | None:
    code = getattr(function, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno, code.co_name)


def _alarming(place: int) -> Callable[[Any], Any]:
    """``place`` is that of the argument which is none where an alarm is called off."""

    def change(original: Any) -> Any:
        def put(*args: Any) -> Any:
            if args[place : place + 1] not in ((0,), (0.0,)) and users_own(sys._getframe(1)):
                raise _refusal("an alarm")
            return original(*args)

        return put

    return change


def _starting(original: Callable[..., None]) -> Callable[..., None]:
    def start(timer: threading.Timer) -> None:
        if users_own(sys._getframe(1)):
            raise _refusal("a timer")
        original(timer)

    return start


def _refusal(what: str) -> StateError:
    return StateError(_COMES.format(what), frame=user_frame(), instead=_INSTEAD)
