"""Progress of long work: phases with their seconds, and a line every few seconds while one lasts."""

from __future__ import annotations

import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Event, Lock


@contextmanager
def beating(every: float, say: Callable[[], None]) -> Iterator[None]:
    """``say`` every few seconds, not any more once the block has ended.

    Nothing waits for the thread: ``Thread.start`` does, for ever, if it had no memory for its first call.
    """
    over, talking = Event(), Lock()

    def beat() -> None:
        with suppress(MemoryError, OSError):
            while not over.wait(every):
                with talking:
                    if not over.is_set():
                        say()

    with suppress(RuntimeError):  # no thread: nothing is said
        start_new_thread(beat, ())
    try:
        yield
    finally:
        with talking:
            over.set()


@dataclass
class Progress:
    """``report``, if anybody listens, takes finished lines, one every ``every`` seconds; ``seconds`` has the
    time per phase."""

    report: Callable[[str], None] | None = None
    every: float = 5.0
    seconds: dict[str, float] = field(default_factory=dict)
    _count: str = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; a phase that is entered again adds up."""
        start, self._count = time.monotonic(), ""

        def so_far() -> None:
            self._say(f"{name}: {self._count}{time.monotonic() - start:.0f} s so far")

        try:
            with beating(self.every, so_far) if self.report else nullcontext():
                yield
        finally:
            spent = time.monotonic() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self._say(f"{name}: {spent:.1f} s")

    def _say(self, line: str) -> None:
        if self.report:
            self.report(line)

    def step(self, done: int, total: int) -> None:
        """How far the phase is."""
        self._count = f"{done} of {total}, "
