"""What reports say of a plan with time axes: ranks count once, and equal runs are assumed to meet."""

from __future__ import annotations

import sys
from pathlib import Path

from checker.report.render import render
from checker.reporting import read

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import staged


def test_runs_are_no_ranks() -> None:
    texts = render(read(staged().members()))
    said = texts["report.txt"].splitlines()
    assert "  plan sample: pp 2, ranks: 2 in 2 rank classes" in said
    assert "  every rank runs its program 2 times, once for each mb" in said
    assert "  ranks that communicate are then in the same run (no schedule is claimed)" in said
    page = texts["report.html"]
    assert "Runs of each rank, by mb" in page and "the runs of one rank" in page
    assert 'aria-label="Device mesh pp 2"' in page
