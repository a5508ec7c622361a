"""Progress of long work: phases with their seconds, and a line every few seconds while one lasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Progress:
    """``report`` takes finished lines, one every ``every`` seconds; ``seconds`` has the time per phase."""

    report: Callable[[str], None] = lambda _: None
    every: float = 5.0
    seconds: dict[str, float] = field(default_factory=dict)
    _count: str = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; a phase that is entered again adds up."""
        start, over = time.monotonic(), threading.Event()
        self._count = ""

        def beat() -> None:
            while not over.wait(self.every):
                self.report(f"{name}: {self._count}{time.monotonic() - start:.0f} s so far")

        reporter = threading.Thread(target=beat, daemon=True)
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join()
            spent = time.monotonic() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.report(f"{name}: {spent:.1f} s")

    def step(self, done: int, total: int) -> None:
        """How far the phase is."""
        self._count = f"{done} of {total}, "
