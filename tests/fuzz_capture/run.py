"""The loops: programs from seeds, what became of them, and a file for each disagreement."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import definitions, functions
from .runs import Pool


@dataclass
class Tally:
    """What became of the programs; ``differing`` has the sources of shrunk disagreements."""

    programs: Counter[str] = field(default_factory=Counter)
    outputs: int = 0
    refused: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    differing: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0  # of processors

    def add(self, other: Tally) -> None:
        self.programs.update(other.programs)
        self.outputs += other.outputs
        self.refused += other.refused
        self.rules.update(other.rules)
        self.differing += other.differing
        self.seconds += other.seconds

    def count(self, outcome: functions.Outcome) -> None:
        self.programs[outcome.kind] += 1
        self.outputs += outcome.outputs
        self.refused += outcome.refused
        self.rules.update(outcome.rules)

    def table(self, what: str = "programs") -> str:
        total = self.programs.total()
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.programs.items()))
        share = self.refused / max(1, self.outputs + self.refused)
        captured = self.programs["agrees"] + self.programs["differs"]
        lines = [
            f"{total} {what} in {self.seconds:.0f} s of processors: {captured} captured ({counts})",
            f"{self.outputs} outputs compared, {self.refused} refused ({share:.1%})",
            *(f"  {n:6d} {rule}" for rule, n in self.rules.most_common(12)),
        ]
        for name, detail in self.differing:
            lines.append(f"DIFFERS {name}: {detail}")
        return "\n".join(lines)


def programs(seeds: Iterable[int], folder: Path | None = None) -> Tally:
    """Level 1: one program per seed; a file in ``folder`` for each shrunk disagreement."""
    tally, start = Tally(), _used()
    for seed in seeds:
        function = functions.write(seed)
        outcome = functions.check(function)
        tally.count(outcome)
        if outcome.kind != "differs":
            continue
        least = functions.shrunk(function)
        name = f"program_{seed}.py"
        _save(folder, name, least.source())
        detail = "; ".join(least.statements) + " -- " + functions.check(least).detail
        tally.differing.append((name, detail[:600]))
    tally.seconds = _used() - start
    return tally


def runs(seeds: Iterable[int], folder: Path | None = None, shrink: bool = True) -> Tally:
    """Level 2: one training step per seed, in processes."""
    tally, start = Tally(), _used()
    with Pool() as pool:
        for seed in seeds:
            definition = definitions.write(seed)
            outcome = pool.check(definition)
            tally.count(outcome)
            if outcome.kind != "differs":
                continue
            least = pool.shrunk(definition) if shrink else definition
            name = f"run_{seed}.py"
            _save(folder, name, least.source())
            detail = f"{least.way}, {least.reduction}, {least.before}, {least.after}, {least.extras}: "
            tally.differing.append((name, detail + pool.check(least).detail[:600]))
    tally.seconds = _used() - start
    return tally


def _used() -> float:
    """Seconds of processors in this process and in its children that have ended."""
    both = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)


def _save(folder: Path | None, name: str, source: str) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source, encoding="utf-8")
