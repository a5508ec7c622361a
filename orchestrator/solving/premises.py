"""Which premises of an obligation go into its file: the interface, and the version that asks no solver."""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def with_ranges(text: str, core: Sequence[int]) -> tuple[int, ...]:
    """A core, with the ranges of symbols in equations that have three without one, or more.

    Which ranges z3 leaves out decides how long another solver takes: places behind a gather over two axes
    (``987904 q0 + q1 = 1975808 q2 + 987904 q3 + q4``) with unbounded ``q0``, ``q2`` and ``q3`` took cvc5 more
    than eight minutes, and no time at all with the range of any one of them.
    """
    lines = [line for line in text.split("\n") if line.startswith("(assert ")][:-1]
    ranges = {m[1]: i for i, line in enumerate(lines) if (m := _RANGE.match(line))}
    kept = set(core)
    for i in core:
        if _EQUATION.match(lines[i]):
            loose = {s for s in _WORD.findall(lines[i]) if s in ranges and ranges[s] not in kept}
            kept |= {ranges[s] for s in loose} if len(loose) > 2 else set()
    return tuple(sorted(kept))


#: The range of a symbol; an equation of places, perhaps one that holds on a part only; a symbol.
_RANGE = re.compile(r"\(assert \(! \(and \(<= \S+ ([a-z]\w*)\) \(< \1 \S+\)\) :named bound\.\d+\)\)")
_EQUATION = re.compile(r"\(assert \(! \((=>? ).* :named bound\.\d+\)\)")
_WORD = re.compile(r"[a-z]\w*")
