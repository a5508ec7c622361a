"""What the user's code asks the machine while a step is recorded: the time, and which files there are.

A step that decides by one of these does in an hour what no trace of it does now. A time may be measured and
shown: what a clock says is a number that knows where it comes from, and so is what is computed of it. Whoever
compares it, or makes a plain number of it, is refused. Whoever asks for a file (whether it is there, how long
it is) wants to decide; so that is refused at once, and so are questions for other processes: what a store
counts, what comes through a pipe. Installed packages may do all of it: a progress bar does.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch.distributed as dist

from .errors import StateError
from .frames import is_installed, is_users, user_frame
from .substituting import Place, replaced, substituted

Refuse = Callable[[StateError], None]
_MEASURES = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_CLOCKS = tuple(
    (time, name + unit) for name in _MEASURES for unit in ("", "_ns") if hasattr(time, name + unit)
)
_FILES = tuple((os, name) for name in ("stat", "lstat", "fstat", "access", "listdir", "scandir"))
_SYSTEM = tuple(
    (module, name)
    for module, names in {
        os: ("read", "pread", "lseek", "system", "times", "getloadavg"),
        gc: ("get_stats", "get_count"),
        time: ("clock_gettime", "clock_gettime_ns"),
    }.items()
    for name in names
    if hasattr(module, name)
)
#: Methods of a store that say what other processes, or earlier steps, have put there.
_STORED = (
    *("add", "get", "check", "wait", "compare_set", "multi_get", "num_keys", "list_keys"),
    *("queue_len", "queue_pop"),
)
#: Modules of Python's through which code asks for a file of its choice.
_FOLDER = os.path.dirname(os.__file__) + "/"
_THROUGH = ("genericpath", "posixpath", "pathlib", "glob", "fnmatch", "subprocess")
_TIMES = "a decision outside of the step, in the loop that calls it; here the time can be measured and shown"
_THERE = "a question for files outside of the step, in the loop that calls it"
_ELSEWHERE = "an entry of the batch for the answer, or the question outside of the step, in the loop"

#: What stays a time, and what no longer is one.
_STAYS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod"),
    *("rmod", "neg", "pos", "abs", "round", "floor", "ceil"),
)
_DECIDES = ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "trunc", "divmod", "rdivmod")
#: Who is told of a decision; nobody, once the step is over.
_listening: list[Refuse] = []


class _Time:
    """What a clock has said, or what was computed of it."""

    __slots__ = ()


class Seconds(_Time, float):
    """A time, in a unit of the user's."""

    __hash__ = float.__hash__


class Ticks(_Time, int):
    """A whole number of nanoseconds, say."""

    __hash__ = int.__hash__


def _time(value: Any) -> Any:
    if isinstance(value, _Time | bool):
        return value
    return Seconds(value) if isinstance(value, float) else Ticks(value) if isinstance(value, int) else value


def _staying(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: _time(plain(*arguments))


def _deciding(plain: Callable[..., Any]) -> Callable[..., Any]:
    def decide(*arguments: Any) -> Any:
        if _users_own(sys._getframe(1)):
            for refuse in tuple(_listening):
                refuse(StateError("the step decides by the time", frame=user_frame(), instead=_TIMES))
        return plain(*arguments)

    return decide


for _kind, _plain in ((Seconds, float), (Ticks, int)):
    for _names, _as in ((_STAYS, _staying), (_DECIDES, _deciding)):
        for _name in (f"__{name}__" for name in _names):
            if hasattr(_plain, _name):
                setattr(_kind, _name, _as(getattr(_plain, _name)))


@contextmanager
def asked(refuse: Refuse) -> Iterator[None]:
    """While a step is recorded, its code decides by no clock, and asks for no file and no other process."""

    def clock(original: Any) -> Any:
        def read() -> Any:
            value = original()
            return _time(value) if _users_own(sys._getframe(1)) else value

        return read

    def question(what: str, instead: str = _ELSEWHERE) -> Callable[[Any], Any]:
        """``{}`` stands for the first argument, a file."""

        def change(original: Any) -> Any:
            def ask(*args: Any, **kwargs: Any) -> Any:
                if _users_own(_beyond(sys._getframe(1))):
                    said = f"the step asks {what}".replace("{}", str(args[0] if args else "."))
                    refuse(StateError(said, frame=user_frame(), instead=instead))
                return original(*args, **kwargs)

            return ask

        return change

    changes: Mapping[Place, Callable[[Any], Any]] = {
        **dict.fromkeys(_CLOCKS, clock),
        **dict.fromkeys(_FILES, question("for the file {}", _THERE)),
        **{(m, name): question(f"the system ({m.__name__}.{name})") for m, name in _SYSTEM},
    }
    _listening.append(refuse)
    try:
        with substituted(changes), ExitStack() as patches:
            for name in _STORED:
                patches.enter_context(replaced(dist.Store, name, question(f"a store ({name})")))
            patches.enter_context(replaced(subprocess.Popen, "_execute_child", question("another program")))
            yield
    finally:
        _listening.remove(refuse)


def _beyond(frame: FrameType | None) -> FrameType | None:
    """Who asks, behind the modules of Python's that are for asking; to make a folder is no question."""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        module = file.removeprefix(_FOLDER).removeprefix("<frozen ")
        walks = module.startswith("os") and name in ("walk", "_walk", "fwalk")
        if name in ("mkdir", "touch") or not (walks or module.startswith(_THROUGH)):
            break
        frame = frame.f_back
    return frame


def _users_own(frame: FrameType | None) -> bool:
    """Is it the user's own code, and not that of a package?"""
    name = "<" if frame is None else frame.f_code.co_filename
    return is_users(name) and not is_installed(name)
