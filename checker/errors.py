"""The checker's exceptions: one small tree, each with the exit code that it means."""

from __future__ import annotations

from dataclasses import dataclass


class CheckerError(Exception):
    """Base class; `code` is the exit code of `tv-check`."""

    code = 5


class Malformed(CheckerError):
    """Input that cannot be read as a plan or a bundle. Exit code 5."""

    code = 5


@dataclass
class Rejected(CheckerError):
    """A numbered obligation (docs/checking.md) fails: the bundle is invalid. Exit code 1."""

    number: int
    obligation: str
    detail: str
    where: str = ""
    code = 1

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"obligation {self.number} ({self.obligation}) fails{at}: {self.detail}"


class Undecided(CheckerError):
    """A cap of the checker, or solvers that do not agree: no verdict. Exit code 3."""

    code = 3


class SolverMissing(CheckerError):
    """Fewer answering solvers than the policy asks for. Exit code 4."""

    code = 4
