"""What a command says of an emission: nothing is done that lacks a proof, and no schedule is safe unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.bundle.bundle import OutputVerdict, Word
from orchestrator.emission import Emission


def emission(*words: Word, solved: bool = True, complete: int = 0, schedule: str = "") -> Emission:
    verdicts = tuple(OutputVerdict(f"s{i}", f"p{i}", word) for i, word in enumerate(words))
    counts = (complete, 5, 4, 3)
    missing = ({"outputs": ["p1", "p2"]},)
    return Emission(
        Path("b"), verdicts, solved, *counts, "d", 0, 0, {}, 1.0, missing=missing, schedule=schedule
    )


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        (emission("PROVED", "PROVED"), 0, "PROVED: 2 of 2"),
        (emission("PROVED", "UNKNOWN"), 3, "UNKNOWN: 1 of 2"),
        (emission("PROVED", "REFUTED"), 1, "REFUTED: 1 of 2"),
        (emission(), 3, "UNKNOWN: 0 of 0"),
        (emission("UNKNOWN", solved=False, complete=1), 0, "UNSOLVED: 1 of 1"),
        (emission("UNKNOWN", "UNKNOWN", solved=False, complete=1), 3, "UNKNOWN: 2 of 2"),
        (emission(solved=False), 3, "UNKNOWN: 0 of 0"),
        (emission("PROVED", schedule="SAFE: 8 events"), 0, "PROVED: 1 of 1"),
        (emission("PROVED", schedule="UNSAFE: a circle"), 1, "UNSAFE: a circle"),
        (emission("PROVED", schedule="of another plan"), 1, "of another plan"),
        (emission("REFUTED", schedule="UNSAFE: a circle"), 1, "REFUTED: 1 of 1"),
    ],
)
def test_exit_code_and_verdict(made: Emission, code: int, says: str) -> None:
    assert made.exit_code == code and made.verdict.startswith(says)
    assert made.to_json()["exit_code"] == code and made.to_json()["verdict"] == made.verdict


def test_of_outputs_that_lack_one_stage_the_first_explains_it() -> None:
    made = emission("REFUTED", "UNKNOWN", "UNKNOWN", "PROVED")
    assert [v.plan for v in made.explained] == ["p0", "p1"]


def test_counts_add_up() -> None:
    counts = emission("REFUTED", "UNKNOWN", "UNKNOWN", "PROVED").to_json()["counts"]
    assert isinstance(counts, dict)
    assert counts["proved"] + counts["refuted"] + counts["unknown"] == counts["outputs"] == 4
