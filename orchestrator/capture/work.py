"""Handles of asynchronous collectives: waiting is recorded, whichever way a program waits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _Work

from .disguise import INHERITS
from .errors import StateError
from .frames import user_frame
from .recorder import active

#: What a handle answers from what the network has done so far, beside :meth:`Work.is_completed`.
_INSTEAD = (
    "wait() on the handle, which is over when it returns; no branch, and no loop, may depend on how far the "
    "network is"
)


def undecided(what: str) -> StateError:
    """How far the network is, which no trace knows: another answer in each run of a job, and on each rank."""
    return StateError(
        f"{what} asks how far a collective is: its answer is data of the network, which a trace has not",
        frame=user_frame(),
        instead=_INSTEAD,
    )


def waited(numbers: Sequence[int]) -> None:
    """The program knows from here on that these collectives are done."""
    recorder = active()
    if recorder is not None:
        for number in numbers:
            recorder.waited(number)


class Work(_Work):
    """The handle of one collective, or of a batch; ``numbers`` are those of the recorder."""

    def __init__(self, numbers: Sequence[int], results: list[torch.Tensor]) -> None:
        super().__init__()
        self.numbers, self._results = list(numbers), results

    def wait(self, timeout: Any = None) -> bool:
        waited(self.numbers)
        return True

    def synchronize(self) -> None:
        waited(self.numbers)

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Refused as :func:`undecided`, as all that tells how far the network is."""
        raise undecided("work.is_completed()")

    def is_success(self) -> bool:
        raise undecided("work.is_success()")

    def exception(self) -> Any:
        raise undecided("work.exception()")

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> Future:
        future = Future(self.numbers, self._results)
        # The Reducer of DistributedDataParallel asks from C++: no Python frame lies between.
        if sys._getframe(1).f_code.co_name == "_engine_run_backward":
            future.held_by_reducer()
        return future

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank


class Future(torch.futures.Future):  # type: ignore[misc]
    """What is computed from the results of collectives; complete at once, but that must be waited for.

    ``over`` says that it is known to be complete, as in a callback.
    """

    def __init__(self, numbers: Sequence[int], value: Any, over: bool = False) -> None:
        super().__init__()
        self.numbers, self._over = list(numbers), over
        self.set_result(value)

    def wait(self) -> Any:
        waited(self.numbers)
        return super().wait()

    def value(self) -> Any:
        waited(self.numbers)
        return super().value()

    def done(self) -> bool:
        """Refused as :func:`undecided`, but where it is known to be complete."""
        if not self._over:
            raise undecided("future.done()")
        return True

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """The callback runs when the collectives are done; who waits for it knows what it wrote."""
        recorder = active()
        if recorder is None:
            return Future([], callback(Future([], super().value(), over=True)))
        with recorder.after(self.numbers) as number:
            _callbacks.append(number)
            try:
                value = callback(Future([], super().value(), over=True))
            finally:
                _callbacks.pop()
        return Future([number], value)

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self.then(callback)

    def held_by_reducer(self) -> None:
        """The Reducer waits for it before it finishes the backward pass, without Python noticing."""
        held_by_reducer(self)


INHERITS[Work], INHERITS[Future] = _Work, torch._C.Future
#: Methods of a future that set it, or wait for it.
_METHODS = ("set_result", "wait", "value", "done", "then", "add_done_callback")
#: Callbacks that run now, the innermost last.
_callbacks: list[int] = []


def held_by_reducer(future: Any) -> None:
    """The Reducer waits for what this future waits for."""
    recorder = active()
    if recorder is not None:
        for number in getattr(future, "numbers", ()):
            recorder.hold(number)


def _promised(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of PyTorch's own future: who waits for one that a callback has set knows that it has run."""

    @functools.wraps(original)
    def method(self: Any, *args: Any) -> Any:
        if not isinstance(self, Future):
            if name == "set_result":
                self.numbers = _callbacks[-1:]
            elif hasattr(self, "numbers"):
                known = Future(self.numbers, original_value(self), over=not self.numbers)
                return getattr(known, name)(*args)
        return original(self, *args)

    original_value = torch.futures.Future.value
    return method


@contextmanager
def futures_are_ours() -> Iterator[None]:
    """Several futures are waited for in C++, where nobody sees it; plain ones are set by callbacks."""
    native = torch.futures.collect_all, torch.futures.wait_all
    methods = {name: getattr(torch.futures.Future, name) for name in _METHODS}

    def collect_all(futures: list[Any]) -> Any:
        if not any(hasattr(f, "numbers") for f in futures):
            return native[0](futures)
        return Future([n for f in futures for n in getattr(f, "numbers", ())], futures)

    def wait_all(futures: list[Any]) -> list[Any]:
        return [f.wait() for f in futures]

    torch.futures.collect_all, torch.futures.wait_all = collect_all, wait_all
    for name, method in methods.items():
        setattr(torch.futures.Future, name, _promised(name, method))
    try:
        yield
    finally:
        torch.futures.collect_all, torch.futures.wait_all = native
        for name, method in methods.items():
            setattr(torch.futures.Future, name, method)
