"""Clocks that go ahead in every other recorded step show what a plain number of a time would decide."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from orchestrator.capture.asking import asked
from orchestrator.capture.pace import HOURS, Pace


def test_looks_are_hours_apart_in_every_other_step() -> None:
    pace = Pace()
    pace.turn()
    assert [pace.late(1.5), pace.late(2)] == [1.5, 2] and not pace.ahead
    pace.turn()
    assert pace.ahead
    assert [pace.late(1.5), pace.late(2)] == [1.5 + HOURS, 2 + 2 * HOURS]
    assert pace.late(7, 1_000_000_000) == 7 + 3 * HOURS * 1_000_000_000
    pace.turn()  # time never goes back
    assert pace.late(0) == pace.late(0) == 3 * HOURS


def test_dates_go_ahead_too() -> None:
    pace = Pace()
    pace.turn()
    pace.turn()
    moment = datetime.datetime(2026, 1, 1)
    assert pace.late(moment) - moment == datetime.timedelta(seconds=HOURS)
    day = datetime.date(2026, 1, 1)
    for _ in range(86400 // HOURS):
        later = pace.late(day)
    assert later - day == datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("look", "second"),
    [
        (lambda: time.perf_counter(), 1),
        (lambda: time.monotonic_ns(), 10**9),
        (lambda: datetime.datetime.now(), datetime.timedelta(seconds=1)),
    ],
)
def test_two_recorded_steps_differ_in_what_they_measure(look: Any, second: Any) -> None:
    """A straggler is skipped by ``numpy.mean([took]) < 60``: C code takes the number as it is, and one of two
    steps skips where the other does not."""
    ratios = []
    for _ in range(2):
        with asked(lambda error: pytest.fail(str(error))):
            before = look()
            took = look() - before
        ratios.append(took / second)
    short, long = sorted(ratios, key=float.__float__)
    assert float.__float__(short) < 60 and float.__float__(long) >= HOURS
