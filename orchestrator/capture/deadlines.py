"""Waits that end after some time, and threads that run beside a step: what they leave depends on the time.

A wait with a timeout gives another answer on a slow network, or raises an exception: who decides by the one
or handles the other is refused. What a thread of the user's does, it does at once in every other recorded
step, and as late as it can in the others; a step that reads what it left before it ends is two programs then.
A timer or an alarm comes between any two lines, and is refused.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from .answers import Refuse, answer, asks, users_own
from .errors import StateError
from .frames import user_frame
from .handlers import goes_on
from .pace import PACE
from .substituting import Place, replaced, substituted
from .work import Work

#: Waits that say whether they were long enough, and those that raise an exception if they were not.
_SAYING: tuple[Place, ...] = (
    *((threading.Event, "wait"), (threading.Condition, "wait"), (threading.Condition, "wait_for")),
    (threading.Semaphore, "acquire"),
)
_RAISING: tuple[Place, ...] = (
    *((queue.Queue, "get"), (queue.Queue, "put"), (threading.Barrier, "wait"), (Work, "wait")),
    *((concurrent.futures.Future, "result"), (concurrent.futures.Future, "exception")),
)
_LATE = "the step goes on where a wait has taken too long ({}): on a slow machine it does something else"
_WAITED = "a wait without a timeout; or no handler, so that the job ends where a wait takes too long"
_COMES = "the step sets {}: what that does comes between any two lines"
_OUTSIDE = "a timer around the step, in the loop that calls it"
#: How long a thread may take at once, and how late it begins if nobody waits for it, in seconds.
_AT_ONCE, _LATEST = 1.0, 3.0


@contextmanager
def deadlines(refuse: Refuse) -> Iterator[None]:
    """While a step is recorded, in the thread that calls this."""
    traced = threading.get_ident()

    def by_step(frame: FrameType | None) -> bool:
        return threading.get_ident() == traced and asks(frame)

    def saying(original: Any) -> Any:
        return _bounded(original, by_step, None)

    def raising(original: Any) -> Any:
        def late(frame: FrameType) -> None:
            said = _LATE.format(original.__qualname__)
            refuse(StateError(said, frame=user_frame(frame), instead=_WAITED))

        return _bounded(original, by_step, late)

    def coming(what: str, seconds: int) -> Callable[[Any], Any]:
        """``seconds`` is the place of the argument that is none where it is called off."""

        def change(original: Any) -> Any:
            @functools.wraps(original)
            def put(*args: Any) -> Any:
                by_it = by_step(sys._getframe(1))
                if by_it and args[seconds : seconds + 1] not in ((0,), (0.0,)):
                    refuse(StateError(_COMES.format(what), frame=user_frame(), instead=_OUTSIDE))
                value = original(*args)
                return answer(value, True) if by_it else value

            return put

        return change

    alarms: Mapping[Place, Callable[[Any], Any]] = {
        (signal, "alarm"): coming("an alarm", 0),
        (signal, "setitimer"): coming("an alarm", 1),
    }
    with substituted(alarms), ExitStack() as patches, _beside(traced):
        for kind, name in _SAYING:
            patches.enter_context(replaced(kind, name, saying))
        for kind, name in _RAISING:
            patches.enter_context(replaced(kind, name, raising))
        patches.enter_context(replaced(threading.Timer, "start", coming("a timer", 1)))
        yield


def _bounded(
    original: Any, by_step: Callable[[FrameType], bool], late: Callable[[FrameType], None] | None
) -> Callable[..., Any]:
    """The wait. If it has a timeout, what it says is that of a clock; ``late`` is told of a handler for the
    exception that it may raise."""
    given = inspect.signature(original)

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        bounded = given.bind(*args, **kwargs).arguments.get("timeout") is not None and by_step(frame)
        if bounded and late is not None and goes_on(frame, users_own):
            late(frame)
        value = original(*args, **kwargs)
        says = late is None or isinstance(args[0], Work)
        return answer(int(value), True) if bounded and says else value

    return wait


@contextmanager
def _beside(traced: int) -> Iterator[None]:
    """Threads that the step starts run at once, or as late as they can."""
    gates: dict[threading.Thread, threading.Event] = {}
    starting = [False]
    begin, join = threading.Thread.start, threading.Thread.join

    def start(thread: threading.Thread) -> None:
        if threading.get_ident() != traced or user_frame() is None:
            return begin(thread)
        gates[thread] = threading.Event()
        if PACE.ahead:
            thread.run = _held(thread, gates[thread])  # type: ignore[method-assign]
        starting[0] = True
        try:
            begin(thread)
        finally:
            starting[0] = False
        if not PACE.ahead:
            join(thread, _AT_ONCE)

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread in gates:
            gates[thread].set()
        join(thread, timeout)

    def waiting(original: Any) -> Any:
        """For whom nobody says how long, all may go on."""

        @functools.wraps(original)
        def wait(self: Any, timeout: float | None = None) -> Any:
            if timeout is None and threading.get_ident() == traced and not starting[0]:
                for gate in gates.values():
                    gate.set()
            return original(self, timeout)

        return wait

    with ExitStack() as patches:
        patches.enter_context(replaced(threading.Thread, "start", lambda _: start))
        patches.enter_context(replaced(threading.Thread, "join", lambda _: joined))
        patches.enter_context(replaced(threading.Condition, "wait", waiting))
        try:
            yield
        finally:
            for thread in gates:
                if PACE.ahead and thread.ident is not None:
                    joined(thread, _AT_ONCE)


def _held(thread: threading.Thread, gate: threading.Event) -> Callable[[], None]:
    def run() -> None:
        gate.wait(_LATEST)
        del thread.run
        thread.run()

    return run
