"""Progress lines: they come while a phase lasts, even if it says nothing itself."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from orchestrator import progress as module
from orchestrator.progress import Progress


def wait_until(good: Callable[[], bool]) -> None:
    """However slow the machine is."""
    while not good():
        time.sleep(0.005)


def test_a_long_phase_is_reported_with_its_count() -> None:
    said: list[str] = []
    progress = Progress(said.append, every=0.02)
    with progress.phase("confirm"):
        wait_until(lambda: bool(said))
        progress.step(3, 7)
        wait_until(lambda: "3 of 7" in said[-1])
    assert re.fullmatch(r"confirm: \d+ s so far", said[0])
    assert any(re.fullmatch(r"confirm: 3 of 7, \d+ s so far", line) for line in said)
    assert re.fullmatch(r"confirm: \d+\.\d s", said[-1])
    count = len(said)
    time.sleep(0.05)
    assert len(said) == count, "the reporter has stopped"


def test_short_phases_say_one_line_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    progress = Progress(said.append)
    clock = iter([1.0, 1.25, 3.0, 3.75])
    monkeypatch.setattr("orchestrator.progress.time.monotonic", lambda: next(clock))
    for _ in range(2):
        with progress.phase("assemble"):
            pass
    assert said == ["assemble: 0.2 s", "assemble: 0.8 s"]
    assert progress.seconds["assemble"] == 1.0


def test_a_failing_phase_is_timed_and_fails() -> None:
    progress = Progress()
    with pytest.raises(KeyError), progress.phase("prove"):
        raise KeyError
    assert "prove" in progress.seconds


def test_nothing_waits_for_a_thread_that_could_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Thread.start`` did, for ever: a command with little memory never ended."""
    begun: list[object] = []

    def without_memory(beat: object, _arguments: object) -> None:
        begun.append(beat)

    monkeypatch.setattr(module, "start_new_thread", without_memory)
    said: list[str] = []
    with Progress(said.append).phase("prove"):
        pass
    assert len(begun) == len(said) == 1

    def none_left(_beat: object, _arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "start_new_thread", none_left)
    with Progress(said.append).phase("prove"):
        pass
    assert len(said) == 2
