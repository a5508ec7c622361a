"""Progress of long work: phases with their seconds, and a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_EVERY = 2.0


@dataclass
class Progress:
    """``report`` takes finished lines; ``seconds`` holds wall-clock seconds per phase."""

    report: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = ""
    _start: float = 0.0
    _last: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; a phase that is entered again adds up."""
        self._phase, self._start = name, time.monotonic()
        self._last = self._start
        try:
            yield
        finally:
            spent = time.monotonic() - self._start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.report(f"{name}: {spent:.1f} s")

    def step(self, done: int, total: int) -> None:
        """Say how far the phase is, at most every two seconds."""
        now = time.monotonic()
        if now - self._last >= _EVERY:
            self._last = now
            self.report(f"{self._phase}: {done} of {total}, {now - self._start:.0f} s")
