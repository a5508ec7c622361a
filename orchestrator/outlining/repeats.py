"""Repetitions in a sequence of tokens: where a program runs the same code again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import eq

#: Shorter repetitions stay where they are: a call costs more than it saves.
LEAST_REPEATS, LEAST_PERIOD = 3, 32
#: A token may stand so often in one period; so many distances are tried.
_NEAR, _CANDIDATES = 64, 128


@dataclass(frozen=True)
class Run:
    """Tokens from ``start`` to ``stop`` that repeat after ``period`` positions."""

    start: int
    period: int
    stop: int

    @property
    def count(self) -> int:
        return (self.stop - self.start) // self.period

    @property
    def more(self) -> int:
        """Tokens beyond whole periods."""
        return (self.stop - self.start) % self.period


def runs(tokens: Sequence[int]) -> list[Run]:
    """Disjoint repetitions, those that save most first found, in order."""
    out: list[Run] = []
    work = [(0, len(tokens))]
    while work:
        low, high = work.pop()
        best = _longest(tokens, low, high)
        if best is not None:
            if best.period >= LEAST_PERIOD:
                out.append(best)
            work += [(low, best.start), (best.stop, high)]
    return _shared(tokens, sorted(out, key=lambda r: r.start))


def _shared(tokens: Sequence[int], found: Sequence[Run]) -> list[Run]:
    """With repetitions between these, to which they leave tokens beyond whole periods of their own: layers of
    two kinds begin and end alike, and each takes one that may be the other's.
    """
    out: list[Run] = []
    for run, high in zip(found, [*(run.start for run in found), len(tokens)][1:], strict=True):
        low = out[-1].stop if out else 0
        before = _longest(tokens, low, run.start + run.more) if run.more else None
        if before is not None and (end := before.stop - before.more) > run.start:
            out.append(replace(before, stop=end))
            run = replace(run, start=end)
        out.append(run)
        behind = _longest(tokens, run.stop - run.more, high) if run.more else None
        if behind is not None and (begin := behind.start + behind.more) < run.stop:
            out[-1:] = [replace(run, stop=begin), replace(behind, start=begin)]
    return [run for run in out if run.period >= LEAST_PERIOD]


def _longest(tokens: Sequence[int], low: int, high: int) -> Run | None:
    best, saved = None, 0
    for period in _periods(tokens, low, high):
        alike = bytes(map(eq, tokens[low : high - period], tokens[low + period : high]))
        first = alike.find(1)
        while first >= 0:
            last = alike.find(0, first)
            last = len(alike) if last < 0 else last
            count = (last - first) // period + 1
            if count >= LEAST_REPEATS and (count - 1) * period > saved:
                best, saved = Run(low + first, period, low + last + period), (count - 1) * period
            first = alike.find(1, last)
    return best


def _periods(tokens: Sequence[int], low: int, high: int) -> list[int]:
    """Distances at which most tokens stand again, ascending: nearly all do so at the period of a run."""
    places: dict[int, list[int]] = {}
    distances: Counter[int] = Counter()
    for i in range(low, high):
        before = places.setdefault(tokens[i], [])
        distances.update(i - j for j in before[-_NEAR:])
        before.append(i)
    return sorted(d for d, _ in distances.most_common(_CANDIDATES))
