"""What reports say of a plan with time axes: ranks count once, and equal runs are assumed to meet."""

from __future__ import annotations

import sys
from pathlib import Path

from checker.report.render import render
from checker.report.verdict import LEFT, ORDER, TRANSPORT
from checker.reporting import read

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import scheduled, staged


def test_runs_are_no_ranks() -> None:
    texts = render(read(staged().members()))
    said = texts["report.txt"].splitlines()
    assert "  plan sample: pp 2, ranks: 2 in 2 rank classes" in said
    assert "  every rank runs its program 2 times, once for each mb" in said
    assert "  ranks that communicate are then in the same run (no schedule is shown to be safe)" in said
    assert said[said.index("Schedule") + 1] == "  not claimed, the plan has no schedule"
    page = texts["report.html"]
    assert "Runs of each rank, by mb" in page and "the runs of one rank" in page
    assert 'aria-label="Device mesh pp 2"' in page


def test_a_schedule_that_is_safe_takes_their_place() -> None:
    said = render(read(scheduled().members()))["report.txt"].splitlines()
    assert said[said.index("Schedule") + 1].startswith(
        "  SAFE: 6 events in 2 lanes, on 1 communicators: none"
    )
    assert not any("same run" in line for line in said)
    assert f"  {TRANSPORT[0]}" in said and f"  {LEFT}" in said and f"  {ORDER}" not in said
