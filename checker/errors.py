"""The checker's exceptions: one small tree, each with the exit code of `tv-check` that it means."""

from __future__ import annotations

OBLIGATIONS = dict(
    enumerate(
        (
            "members",
            "plan",
            "facts",
            "hypotheses",
            "definitions",
            "bounds",
            "laws",
            "trees and classes",
            "widths",
            "goals",
            "order",
            "text",
            "process groups",
            "rendezvous",
            "inputs",
            "outputs",
            "solvers",
            "witnesses",
            "messages",
            "time",
            "ghosts",
            "rows",
            "schedule",
        ),
        1,
    )
)
"""Numbers and names of docs/checking.md and of the kernel's docstring."""


class CheckerError(Exception):
    """Base class of everything that the checker raises on purpose."""

    code = 5


class Malformed(CheckerError):
    """Input that cannot be read as a plan or a bundle."""


class Rejected(CheckerError):
    """A numbered obligation fails: the bundle is invalid."""

    code = 1

    def __init__(self, number: int, detail: str, where: str = "") -> None:
        at = f" at {where}" if where else ""
        super().__init__(f"obligation {number} ({OBLIGATIONS[number]}) fails{at}: {detail}")
        self.number, self.detail = number, detail


class Undecided(CheckerError):
    """A cap of the checker, or solvers that do not agree: no verdict."""

    code = 3


class SolverMissing(CheckerError):
    """Fewer answering solvers than the policy asks for."""

    code = 4


class Masked(Rejected):
    """Constants mask a whole row: nothing is proved of such a plan, but a witness may refute it."""


def need(condition: bool, message: str) -> None:
    if not condition:
        raise Malformed(message)
