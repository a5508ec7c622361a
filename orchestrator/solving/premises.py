"""Which premises of an obligation go into its file: the interface, and the version that asks no solver."""

from __future__ import annotations

from typing import Protocol


class CoreFinder(Protocol):
    """Chooses premises; :class:`orchestrator.solving.cores.Cores` asks z3."""

    def core(self, text: str) -> tuple[int, ...] | None:
        """Positions of premises that refute the goal of a file, or ``None`` if that was not shown."""
        ...


class AllPremises:
    """Keeps every premise and shows nothing: for obligations that are solved elsewhere.

    Where the engine asks for a proof in order to choose between guesses, it takes the first one; a wrong
    guess becomes an obligation that no solver refutes.
    """

    def core(self, text: str) -> tuple[int, ...]:
        return tuple(range(premises(text)))


def premises(text: str) -> int:
    """How many premises a file has: all of its assertions but the goal."""
    return text.count("\n(assert ") - 1
