"""What an emission gave: the bundle's verdicts, what they took, and how the commands tell of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from certificates.bundle.bundle import OutputVerdict, summary


@dataclass(frozen=True)
class Emission:
    """A written bundle: its verdicts, and what it took. ``peak_mib``: largest resident set of one process.

    ``cause`` is why an output is refuted, ``missing`` the stages that outputs without a verdict lack, each
    once (docs/diagnosis.md).
    """

    bundle: Path
    verdicts: tuple[OutputVerdict, ...]
    solved: bool
    complete: int
    facts: int
    stages: int
    obligations: int
    digest: str
    resumed: int
    solver_answers: int
    seconds: dict[str, float]
    peak_mib: float
    cause: Mapping[str, object] | None = None
    missing: tuple[Mapping[str, object], ...] = ()
    schedule: str = ""

    @property
    def exit_code(self) -> int:
        """1 refuted, or a schedule that is not safe; 3 an output has no proof; 0. Without solving, all
        obligations written is enough."""
        words = {v.verdict for v in self.verdicts}
        if "REFUTED" in words or self.unsafe:
            return 1
        done = words == {"PROVED"} if self.solved else self.complete == len(self.verdicts) > 0
        return 0 if done else 3

    @property
    def unsafe(self) -> bool:
        """What the checker says of the schedule is anything but SAFE."""
        return bool(self.schedule) and not self.schedule.startswith("SAFE: ")

    @property
    def explained(self) -> list[OutputVerdict]:
        """Outputs whose reasons say what is wrong, or which stage is missing; others follow from these."""
        first = {str(names[0]) for m in self.missing if isinstance(names := m["outputs"], list)}
        return [v for v in self.verdicts if v.verdict == "REFUTED" or v.plan in first]

    @property
    def verdict(self) -> str:
        """One line in words."""
        total = len(self.verdicts)
        if self.unsafe and not any(v.verdict == "REFUTED" for v in self.verdicts):
            return self.schedule
        if self.solved or self.complete < total or not total:
            return summary(self.verdicts)
        return f"UNSOLVED: {total} of {total} outputs have all their obligations; no solver was asked"

    def to_json(self) -> dict[str, object]:
        """The document of ``--json``."""
        words = [v.verdict for v in self.verdicts]
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "digest": self.digest,
            "bundle": str(self.bundle),
            "outputs": [v.to_json() for v in self.verdicts],
            "cause": self.cause,
            "schedule": self.schedule,
            "missing": list(self.missing),
            "counts": {
                "outputs": len(words),
                "proved": words.count("PROVED"),
                "refuted": words.count("REFUTED"),
                "unknown": words.count("UNKNOWN"),
                "with_all_obligations": self.complete,
                "facts": self.facts,
                "stages": self.stages,
                "obligations": self.obligations,
                "resumed_answers": self.resumed,
                "solver_answers": self.solver_answers,
            },
            "seconds": {phase: round(s, 3) for phase, s in self.seconds.items()},
            "peak_mib": round(self.peak_mib, 1),
        }
