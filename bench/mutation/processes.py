"""Processes for work that may hang or crash."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


def child(work: Callable[[], str]) -> str:
    """What `work` says in a forked child, `hung` or `killed by a crash`; its children end with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        text = "broken"
        try:
            os.setpgid(0, 0)
            os.close(read)
            quiet = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(quiet, number)
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            text = work()
        except SystemExit:
            text = "killed by an exit"
        except BaseException as error:
            text = f"broken: {error!r}"
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    try:
        status = os.waitpid(pid, 0)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    if os.WIFSIGNALED(status):
        return "hung" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "killed by a crash"
    if said.startswith("broken"):
        raise SystemExit(said)
    return said or "killed by an exit"


class Limits:
    """Time limits of this process and of those that it forks from now on."""

    def __init__(self) -> None:
        self._seconds = 0.0
        os.register_at_fork(after_in_child=self._inherit)

    def set(self, seconds: float, clock: float) -> None:
        """The system ends a process after so much time of its own, this one after so much on the clock."""
        self._seconds = seconds
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, clock)

    def _inherit(self) -> None:
        most = 1 + int(self._seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def spread(jobs: int, numbers: Sequence[int], work: Callable[[int], None]) -> None:
    """Calls `work` for all numbers in so many processes."""
    if jobs == 1:
        for number in numbers:
            work(number)
        return
    pids = []
    for k in range(jobs):
        pid = os.fork()
        if not pid:
            try:
                for number in numbers[k::jobs]:
                    work(number)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def listen(work: Callable[[Callable[[Any], None]], None], hear: Callable[[Any], None]) -> None:
    """Hears, item by item, what `work` tells in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            with os.fdopen(write, "w", encoding="utf-8", buffering=1) as pipe:
                work(lambda item: pipe.write(json.dumps(item) + "\n") and None)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        for line in pipe:
            hear(json.loads(line))
    os.waitpid(pid, 0)
