"""The exceptions of this package."""

from __future__ import annotations


class OrchestratorError(Exception):
    """Root of what the orchestrator raises on purpose."""


class EvaluationError(OrchestratorError):
    """A program cannot be evaluated on the given numbers; the message names the op or the input."""


class OutOfTime(OrchestratorError):
    """A search was given up."""


class NoAnswer(OrchestratorError):
    """A command gave no answer in time. The clock may end a run; what a bundle says never depends on it."""


class Unaccepted(OrchestratorError):
    """The checker does not accept what was found, in its words: a plan outside of its model."""


class ForeignFile(OrchestratorError):
    """A file to write to is not one of ours; it is neither read nor changed. The message names it."""


class SolverMissing(OrchestratorError):
    """z3 or cvc5 is not installed. Exit code 4."""


class Unproved(OrchestratorError):
    """A fact without a proof; the message says what was tried."""
