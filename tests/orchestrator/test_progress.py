"""Progress lines: they come while a phase lasts, even if it says nothing itself."""

from __future__ import annotations

import time

import pytest

from orchestrator.progress import Progress


def test_a_long_phase_is_reported_with_its_count() -> None:
    said: list[str] = []
    progress = Progress(said.append, every=0.02)
    with progress.phase("confirm"):
        time.sleep(0.05)
        progress.step(3, 7)
        time.sleep(0.05)
    assert said[0] == "confirm: 0 s so far"
    assert "confirm: 3 of 7, 0 s so far" in said
    assert said[-1] == "confirm: 0.1 s"
    count = len(said)
    time.sleep(0.05)
    assert len(said) == count, "the reporter has stopped"


def test_short_phases_say_one_line_and_add_up() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    for _ in range(2):
        with progress.phase("assemble"):
            time.sleep(0.01)
    assert said == ["assemble: 0.0 s"] * 2
    assert 0.02 <= progress.seconds["assemble"] < 1


def test_a_failing_phase_is_timed_and_fails() -> None:
    progress = Progress()
    with pytest.raises(KeyError), progress.phase("prove"):
        raise KeyError
    assert "prove" in progress.seconds
