"""The times of a schedule, or the circle that is in their way, found with no help from the checker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trainverify as tv
from certificates.plan.schedule import Batch, Event, Item, Run
from orchestrator.scheduling import when
from tests.pipeline_plans import pipeline
from tests.schedule_plans import by_torch, edited, reason


def test_a_plan_without_a_schedule_has_no_times() -> None:
    assert when(pipeline(2, 1, 2)) is None


def test_times_are_the_longest_ways() -> None:
    found = when(by_torch("GPipe", 2, 2))
    assert found is not None and not found.circle
    assert min(min(line) for line in found.times.values()) == 0
    assert all(len(set(line)) <= max(line) + 1 for line in found.times.values())


def test_an_event_that_names_nothing_meets_nobody() -> None:
    """What is no event of this plan is for the checker to say: times are found all the same."""
    plan = by_torch("GPipe", 2, 2)
    assert plan.schedule is not None
    strange: list[Event] = [Run("nothing", 99), Batch("pp", (replace(_item(plan), run=77),))]
    found = when(edited(plan, "rank0", lambda e: [*e, *strange]))
    assert found is not None and found.times


def _item(plan: tv.Plan) -> Item:
    assert plan.schedule is not None
    return next(e for e in plan.schedule.lanes[0].events if isinstance(e, Batch)).items[0]


@pytest.mark.parametrize("name", ["1F1B", "InterleavedZeroBubble"])
def test_a_circle_that_the_checker_follows(name: str) -> None:
    """Receives of gradients in front of all else: the first stage waits for what it has not sent."""
    plan = by_torch(name, 2, 4)

    def first(events: list[Event]) -> list[Event]:
        """Gradients are received in front of all else, and nothing is in flight."""
        batches = [replace(e, posted=False) for e in events if isinstance(e, Batch)]
        early = [e for e in batches if any(i.seq >= 100 and i.end == "recv" for i in e.items)]
        rest = [replace(e, posted=False) if isinstance(e, Batch) else e for e in events]
        return [*early, *(e for e in rest if e not in early and isinstance(e, Run | Batch))]

    said = reason(edited(plan, "rank0", first))
    found = when(edited(plan, "rank0", first))
    assert found is not None and (found.circle or "reads" in said or "sent" in said)


@pytest.mark.slow
def test_a_pipeline_with_its_schedule_is_valid_and_safe(tmp_path: Path) -> None:
    plan = by_torch("1F1B", 2, 2)
    emission = tv.emit(plan, tmp_path / "safe")
    assert emission.exit_code == 0 and emission.schedule.startswith("SAFE: ")
    verdict = tv.check(tmp_path / "safe")
    assert verdict.exit_code == 0 and "and the schedule is SAFE" in verdict.report
    wrong = edited(plan, "rank1", lambda e: [Run("f1", 0) if x == Run("f1", 1) else x for x in e])
    emission = tv.emit(wrong, tmp_path / "unsafe")
    assert emission.exit_code == 1 and emission.verdict.startswith("UNSAFE: lane rank1: event ")
    assert "f1, run 0 is done again" in emission.verdict
    verdict = tv.check(tmp_path / "unsafe")
    assert verdict.exit_code == 1 and not verdict
    assert verdict.report.splitlines()[-1].startswith(
        "UNSAFE: 3 of 3 outputs are proved, and the schedule is"
    )
