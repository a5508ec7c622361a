"""How much was tried in vain for one plan, in steps: who has tried too much tries nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

#: Steps for guesses about one plan that come to nothing: a tensor that is opened, or an op that is compared.
#: docs/adr/0171-guesses-in-vain-are-counted.md says how many right plans need.
MAX_IN_VAIN = 400_000
#: Steps of a tensor that is opened in a file for a solver.
IN_A_FILE = 16
Found = TypeVar("Found")


@dataclass
class Tries:
    """The steps of attempts that failed; those of an attempt that succeeds do not count."""

    most: int = MAX_IN_VAIN
    in_vain: int = 0

    @property
    def left(self) -> bool:
        """Whether anything more is to be tried."""
        return self.in_vain < self.most

    def step(self, count: int = 1) -> None:
        """Count steps of what is being tried."""
        self.in_vain += count

    def attempt(self, task: Callable[[], Found], nothing: Found) -> Found:
        """What a task finds, whose steps then do not count; ``nothing`` if none are left."""
        if not self.left:
            return nothing
        before, found = self.in_vain, task()
        if found:
            self.in_vain = before
        return found
