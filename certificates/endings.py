"""How commands end when they are stopped from outside: exit codes of their own, and one line.

Neither Ctrl-C nor a full disk says anything about a plan, so none of them may look like a verdict (Python
itself ends with 1 for most, which would be *refuted*).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, ParamSpec

import click

from .words import VERSION, one_line

#: The option of every command.
version = click.version_option(VERSION, message="%(prog)s, TrainVerify %(version)s")

#: What Python says where the system gives it no memory for a thread, or none to say that there is none.
NO_THREAD, NO_REASON = "can't start new thread", "error return without exception set"
P = ParamSpec("P")
FAILED, INTERRUPTED, PIPE_CLOSED, TERMINATED = 6, 130, 141, 143


class Terminated(BaseException):
    """SIGTERM arrived.

    Like ``KeyboardInterrupt`` it passes by whoever expects errors, and undoes what is half done: temporary
    folders and child processes go.
    """


#: Seconds after which an interruption that fell into a finaliser is tried again.
_AGAIN = 0.01


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is raised as :class:`Terminated`, a second one is not waited for; Ctrl-C is never swallowed.

    Python drops what is raised while a finaliser runs, as those of a solver's terms do all the time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if any(f.f_code.co_name == "__del__" for f in _callers(frame)):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            raise KeyboardInterrupt

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {signal.SIGTERM: stop}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us ignores it
        handlers |= {signal.SIGINT: interrupt, signal.SIGALRM: interrupt}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def scratch(prefix: str, folder: Path | None = None) -> Iterator[Path]:
    """A temporary folder, which goes whenever the command is stopped.

    A signal that arrives while it is made, at whatever thread, waits until there is somebody to remove it.
    """
    arrived: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # Python handles signals there alone
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)) or signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, lambda n, _frame: arrived.append(n))
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as made:
            _restore(before)
            for late in arrived:
                signal.raise_signal(late)
            yield Path(made)
    finally:
        _restore(before)


def _restore(handlers: dict[int, Any]) -> None:
    while handlers:
        number, handler = handlers.popitem()
        signal.signal(number, handler)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def told(error: BaseException) -> tuple[int, str] | None:
    """Exit code and line for what stops a command from outside; ``None`` for anything else."""
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted"
        case Terminated():
            return TERMINATED, "terminated"
        case MemoryError():
            return FAILED, "out of memory"
        case OSError():
            return FAILED, one_line(error)
        case RuntimeError() if str(error) == NO_THREAD:
            return FAILED, "out of memory: no thread can be started"
        case SystemError() if str(error) == NO_REASON:
            return FAILED, "out of memory, by all appearances: Python gives no reason"
    return None


def ending(name: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A command whose last resort this is: what standard output could not take, standard error is told.

    Who closes the pipe that the command prints to wants no more of it, and is told nothing.
    """

    def wrap(function: Callable[P, None]) -> Callable[P, None]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            with terminable():
                try:
                    function(*args, **kwargs)
                    return
                except BrokenPipeError:
                    code = PIPE_CLOSED
                except (KeyboardInterrupt, Terminated, MemoryError, OSError) as error:
                    code, line = told(error) or (FAILED, "")
                    click.echo(f"{name}: {line}", err=True)
            with suppress(OSError):  # what is left in buffers would fail once more while Python ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(code)

        return run

    return wrap
