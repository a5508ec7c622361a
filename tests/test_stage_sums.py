"""Sums over ranks that run different programs: right ones are PROVED, wrong ones REFUTED."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainverify as tv
from certificates.plan.plan import Plan
from tests.orchestrator.plans import unproved
from tests.stage_sum_plans import clipped, first_rank_term, last_stage_loss
from tests.test_pipelines import wrong_outputs

RIGHT = {
    "squares added over stages": lambda: clipped(),
    "norms of all weights stacked": lambda: clipped(stacked=True),
    "rows over tensor-parallel ranks": lambda: clipped(tensor=2),
    "rows over tensor-parallel ranks, stacked": lambda: clipped(tensor=2, stacked=True),
    "loss of the last stage": lambda: last_stage_loss(),
    "a term that the first rank adds": lambda: first_rank_term(),
}
WRONG = {
    "norm clipped per stage": lambda: clipped(bug="norm clipped per stage"),
    "norms added, not squares": lambda: clipped(bug="norms added, not squares"),
    "norm of the rows of one rank": lambda: clipped(tensor=2, bug="norm of the rows of one rank"),
    "loss counted twice": lambda: last_stage_loss(bug="loss counted twice"),
    "every rank adds the term": lambda: first_rank_term(bug="every rank adds the term"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_sums_are_proved(name: str) -> None:
    plan: Plan = RIGHT[name]()
    assert wrong_outputs(plan) == set() and unproved(plan) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sums_are_refuted(name: str, tmp_path: Path) -> None:
    plan: Plan = WRONG[name]()
    wrong = wrong_outputs(plan)
    assert wrong & {"norm", "loss"}
    emission = tv.emit(plan, tmp_path / "bundle")
    assert {v.plan for v in emission.verdicts if v.verdict == "REFUTED"} & wrong
    assert tv.check(tmp_path / "bundle").exit_code == 1


@pytest.mark.slow
def test_clipping_over_eight_stages(tmp_path: Path) -> None:
    tv.emit(clipped(stages=8, per=4, stacked=True, tensor=2), tmp_path / "bundle")
    assert tv.check(tmp_path / "bundle").exit_code == 0
