"""What the user's code asks the machine while a step is recorded: the time, and which files there are.

A step that decides by one of these does in an hour what no trace of it does now. A time may be measured and
shown, and so may what else the machine answers (:mod:`answers`): of the modules of Python's that speak of it
all functions do so, but for those that are listed as harmless. Whoever asks for a file (whether it is there,
how long it is) wants to decide; so that is refused at once, and so are questions for other processes: what a
store counts, what comes through a pipe. Installed packages may do all of it: a progress bar does.
"""

from __future__ import annotations

import abc
import atexit
import ctypes
import datetime
import functools
import gc
import importlib.util
import linecache
import math
import os
import platform
import posix
import resource
import select
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import timeit
import tracemalloc
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from .answers import (
    Answer,
    Refuse,
    answer,
    asks,
    computed_with,
    given,
    hashed,
    identity,
    listening,
    refuse_now,
    standing,
    told,
    users_own,
)
from .errors import StateError
from .frames import user_frame
from .pace import PACE
from .substituting import Place, replaced, shadowed, substituted

_MEASURES = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_CLOCKS = (
    *((time, name + unit) for name in _MEASURES for unit in ("", "_ns") if hasattr(time, name + unit)),
    (timeit, "default_timer"),
)
_FILES = tuple((os, name) for name in ("stat", "lstat", "fstat", "access", "listdir", "scandir"))
_SYSTEM = tuple(
    (module, name)
    for module, names in {
        os: ("read", "pread", "lseek", "system", "times", "getloadavg"),
        gc: ("get_stats", "get_count"),
        time: ("clock_gettime", "clock_gettime_ns"),
        torch: ("get_num_threads", "get_num_interop_threads"),  # a trace has one
    }.items()
    for name in names
    if hasattr(module, name)
)
#: Modules that speak of the machine, and what in them does not: it acts, computes, or gives a setting that is
#: compared as a number (:mod:`settings`).
_HARMLESS: Mapping[ModuleType, str] = {
    time: "strptime mktime get_clock_info clock_getres",
    os: "getenv getenvb getcwd getcwdb fspath fsencode fsdecode makedirs removedirs fdopen open write pwrite "
    "walk fwalk popen strerror urandom getrandom get_exec_path register_at_fork getpriority isatty pipe",
    gc: "isenabled get_threshold get_debug",
    threading: "current_thread main_thread currentThread Lock RLock stack_size excepthook get_ident gettrace "
    "getprofile",
    signal: "signal getsignal strsignal valid_signals default_int_handler set_wakeup_fd",
    resource: "getrlimit getpagesize",
    socket: "getdefaulttimeout htons htonl ntohs ntohl inet_aton inet_ntoa inet_pton inet_ntop",
    tracemalloc: "is_tracing get_traceback_limit total_ordering",
    uuid: "uuid3 uuid4 uuid5",  # random numbers of the system are counted
    select: "",
}
#: Of modules that do more than that, what speaks of the machine.
_SPEAKING: Mapping[ModuleType, tuple[str, ...]] = {
    sys: (
        *("getrefcount", "getsizeof", "getallocatedblocks", "_current_frames", "_current_exceptions"),
        "_debugmallocstats",
    ),
    platform: ("node", "uname", "platform"),
    shutil: ("disk_usage", "which"),
    linecache: ("getline", "getlines"),
    importlib.util: ("find_spec",),
    sqlite3: ("connect",),
    ssl: ("RAND_bytes", "RAND_status"),
    atexit: ("_ncallbacks",),
    abc: ("get_cache_token", "_get_dump"),
    weakref: ("getweakrefcount", "getweakrefs"),
    ctypes: ("get_errno",),
}
#: Of these, what answers with nothing where nothing is found.
_FINDS = ("which", "find_spec")
_DATES = tuple((datetime, name) for name in ("datetime", "date", "timedelta"))
#: Methods of a store that say what other processes, or earlier steps, have put there.
_STORED = (
    *("add", "get", "check", "wait", "compare_set", "multi_get", "num_keys", "list_keys"),
    *("queue_len", "queue_pop"),
)
#: Methods of a socket that say what another process has sent.
_RECEIVES = ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "accept")
#: Modules of Python's through which code asks for a file of its choice.
_FOLDER = os.path.dirname(os.__file__) + "/"
_THROUGH = ("genericpath", "posixpath", "pathlib", "glob", "fnmatch", "subprocess")
_THERE = "a question for files outside of the step, in the loop that calls it"
_BY_NAME = "the names as they are: import module; module.name = value"
_ELSEWHERE = "an entry of the batch for the answer, or the question outside of the step, in the loop"


@contextmanager
def asked(refuse: Refuse) -> Iterator[None]:
    """While a step is recorded, its code decides by no clock, and asks for no file and no other process."""

    def question(what: str, instead: str = _ELSEWHERE) -> Callable[[Any], Any]:
        """``{}`` stands for the first argument, a file."""

        def change(original: Any) -> Any:
            def ask(*args: Any, **kwargs: Any) -> Any:
                if users_own(_beyond(sys._getframe(1))):
                    said = f"the step asks {what}".replace("{}", str(args[0] if args else "."))
                    refuse(StateError(said, frame=user_frame(), instead=instead))
                return original(*args, **kwargs)

            return ask

        return change

    def importing(original: Any) -> Any:
        @functools.wraps(original)
        def load(name: str, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            if users_own(caller) and name not in caller.f_code.co_consts:
                said = f"the step names a module when it runs ({name})"
                refuse(StateError(said, frame=user_frame(), instead=_BY_NAME))
            return original(name, *args, **kwargs)

        return load

    def running(original: Any) -> Callable[..., Any]:
        def run(text: Any, *scopes: Any) -> Any:
            caller = sys._getframe(1)
            said = f"the step runs a text as code ({original.__name__})"
            refuse(StateError(said, frame=user_frame(), instead=_BY_NAME))
            return original(text, *(scopes or (caller.f_globals, caller.f_locals)))

        return run

    changes: Mapping[Place, Callable[[Any], Any]] = {
        **dict.fromkeys(_speaking(), _answering),
        **dict.fromkeys(_arithmetic(), _carrying),
        **dict.fromkeys(_DATES, standing),
        (importlib, "import_module"): importing,
        **dict.fromkeys(_CLOCKS, _clock),
        **dict.fromkeys(_FILES, question("for the file {}", _THERE)),
        **{(m, name): question(f"the system ({m.__name__}.{name})") for m, name in _SYSTEM},
    }
    PACE.turn()
    own = {"id": identity, "hash": hashed, "exec": running(exec), "eval": running(eval)}
    listening.append(refuse)
    try:
        with substituted(changes), shadowed(own), ExitStack() as patches:
            for name in _STORED:
                patches.enter_context(replaced(dist.Store, name, question(f"a store ({name})")))
            for name in _RECEIVES:
                patches.enter_context(replaced(socket.socket, name, question(f"another process ({name})")))
            patches.enter_context(replaced(subprocess.Popen, "_execute_child", question("another program")))
            patches.enter_context(replaced(threading, "_newname", _carried))
            patches.enter_context(_handles())
            if given:
                patches.enter_context(_Apart())
            yield
    finally:
        listening.remove(refuse)


def _clock(original: Any) -> Any:
    unit = 1_000_000_000 if original.__name__.endswith("_ns") else 1

    def read() -> Any:
        value = original()
        return answer(PACE.late(value, unit), True) if asks(sys._getframe(1)) else value

    return read


def _answering(original: Any) -> Any:
    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        if not asks(sys._getframe(1)):
            return value
        if value is None and original.__name__ in _FINDS:
            refuse_now()
        return answer(value, original.__module__ == "time")

    return ask


class _Apart(TorchFunctionMode):  # type: ignore[misc]
    """No tensor is made of an answer: in a later step it would be another one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        computed_with((*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))


def _carried(original: Callable[..., str]) -> Callable[..., object]:
    """The name of a new thread says how many there were before."""
    return lambda *template: told(original(*template))


@contextmanager
def _handles() -> Iterator[None]:
    """The number of a hook says how many there were before."""
    RemovableHandle.next_id = told(RemovableHandle.next_id)
    try:
        yield
    finally:
        RemovableHandle.next_id = int(RemovableHandle.next_id)


@functools.cache
def _speaking() -> tuple[Place, ...]:
    """All functions that speak of the machine, but for those that are asked after in another way."""
    otherwise = {(module, name) for module, name in (*_CLOCKS, *_FILES, *_SYSTEM)}
    found = [(m, n) for m, names in _SPEAKING.items() for n in names if hasattr(m, n)]
    for module, harmless in _HARMLESS.items():
        left = harmless.split()
        found += [(module, n) for n, f in _functions(module) if n not in left]
    # Python gives the functions of the system two homes.
    found += [(posix, name) for module, name in found if module is os and hasattr(posix, name)]
    return tuple(place for place in found if place not in otherwise and (os, place[1]) not in otherwise)


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, item in vars(module).items():
        if isinstance(item, BuiltinFunctionType | FunctionType) and not name.startswith("_"):
            yield name, item


@functools.cache
def _arithmetic() -> tuple[Place, ...]:
    return tuple((math, name) for name, _ in _functions(math))


def _carrying(original: Any) -> Any:
    """What is computed of an answer is one."""

    @functools.wraps(original)
    def compute(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        asked = next((x for x in (*args, *kwargs.values()) if isinstance(x, Answer)), None)
        return value if asked is None else told(value, asked.timed)

    return compute


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
