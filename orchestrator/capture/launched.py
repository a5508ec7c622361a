"""What a process says of itself: in a job a launcher has started it, and in a trace this tool has forked it.

A rank of a job is the main process of its program, has NCCL, and a garbage collector that is on. A trace runs
in a forked child, on any machine, and collects nothing; what the user's code asks of it is answered as in a
job.
"""

from __future__ import annotations

import gc
import multiprocessing.context
import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch.distributed as dist

from .errors import StateError
from .frames import user_frame
from .group import IN_A_JOB
from .substituting import Place, by_user, replaced, substituted

#: By which backend a function asks whether PyTorch was built with it.
_BUILT_WITH = {"is_nccl_available": "nccl", "is_gloo_available": "gloo"}
#: Variables of Python's that say how a process was started, and what they are where no other Python did.
_process: Any = multiprocessing.process
_context: Any = multiprocessing.context


@contextmanager
def by_a_launcher() -> Iterator[None]:
    """The process is the main one of its program; its garbage collector is on until code turns it off."""
    collector = _Collector()
    changes: dict[Place, Callable[[Any], Any]] = {
        (gc, "isenabled"): lambda _: collector.is_on,
        (gc, "enable"): lambda _: collector.turn_on,
        (gc, "disable"): lambda _: collector.turn_off,
    }
    before = _process._current_process, _process._parent_process
    default = _context._default_context
    method = default._actual_context
    _process._current_process, _process._parent_process = _main(), None
    default._actual_context = None
    try:
        with substituted(changes), on_a_machine_of_a_job(), replaced(_process.BaseProcess, "start", _alone):
            yield
    finally:
        _process._current_process, _process._parent_process = before
        default._actual_context = method


def _main() -> multiprocessing.process.BaseProcess:
    """What Python makes of a main process; it keeps the class for itself."""
    kind: Any = type("_MainProcess", (_process.BaseProcess,), {"__module__": _process.__name__})
    made: Any = kind.__new__(kind)
    vars(made).update(
        _identity=(), _name="MainProcess", _parent_pid=None, _popen=None, _closed=False,
        _config={"authkey": _process.AuthenticationString(os.urandom(32)), "semprefix": "/mp"},
    )  # fmt: skip
    return cast(multiprocessing.process.BaseProcess, made)


def _alone(original: Any) -> Any:
    """Another process works on tensors of its own, of which a trace knows nothing."""

    def start(self: Any) -> None:
        raise StateError(
            f"{type(self).__name__}.start() begins another process, whose answers no trace knows",
            frame=user_frame(),
            instead="an entry of the batch for what it computes: the loop that calls the step asks it",
        )

    return start


class _Collector:
    """Whether garbage is collected, as far as the code can tell."""

    def __init__(self) -> None:
        self._on = True

    def is_on(self) -> bool:
        return self._on

    def turn_on(self) -> None:
        self._on = True

    def turn_off(self) -> None:
        self._on = False


@contextmanager
def on_a_machine_of_a_job() -> Iterator[None]:
    """To the user's code PyTorch says that it was built with NCCL, as ``dist.get_backend()`` does."""

    def built_with(backend: str) -> Callable[[Any], Any]:
        def change(original: Any) -> Any:
            def available() -> bool:
                asks = by_user(sys._getframe(1))
                return backend in (IN_A_JOB, "gloo") if asks else bool(original())

            return available

        return change

    def is_backend_available(original: Any) -> Any:
        def available(backend: str) -> bool:
            asks = by_user(sys._getframe(1)) and backend.lower() in _BUILT_WITH.values()
            return asks or bool(original(backend))

        return available

    homes = dist, dist.distributed_c10d
    changes: dict[Place, Callable[[Any], Any]] = {
        (home, name): built_with(backend) for home in homes for name, backend in _BUILT_WITH.items()
    }
    changes |= {(home, "is_backend_available"): is_backend_available for home in homes}
    with substituted(changes):
        yield
