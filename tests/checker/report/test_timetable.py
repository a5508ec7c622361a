"""The picture of a schedule: what is drawn, what is marked, what is left out."""

from __future__ import annotations

import re

from certificates.plan.schedule import Run
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.report.timetable import COLUMNS, LANES, timetable_svg
from tests.schedule_plans import by_torch, edited, judged


def test_every_event_of_a_small_schedule_is_drawn() -> None:
    plan = by_torch("1F1B", 2, 2)
    found = judged(plan)
    assert found is not None and plan.schedule is not None
    picture = timetable_svg(read_plan(dumps(plan)), found)
    assert picture.count("<rect") == sum(len(lane.events) for lane in plan.schedule.lanes)
    assert 'aria-label="Schedule of 2 lanes, SAFE"' in picture and "marked" not in picture
    assert "<title>rank0 0: f0, run 0</title>" in picture and "Not drawn" not in picture
    places = re.findall(r'class="k\d" x="(\d+)" y="(\d+)"', picture)
    assert len(set(places)) == len(places), "no two segments of a rank at one time"


def test_what_is_wrong_is_marked() -> None:
    plan = edited(
        by_torch("1F1B", 2, 2), "rank1", lambda e: [Run("f1", 0) if x == Run("f1", 1) else x for x in e]
    )
    found = judged(plan)
    assert found is not None and len(found.marked) == 2
    picture = timetable_svg(read_plan(dumps(plan)), found)
    assert picture.count("marked") == 2 and "UNSAFE" in picture


def test_a_large_schedule_is_cut() -> None:
    plan = by_torch("GPipe", LANES + 2, 12)
    found = judged(plan)
    assert found is not None and found.safe
    picture = timetable_svg(read_plan(dumps(plan)), found)
    assert "Not drawn: 2 lanes and " in picture
    wide = re.search(r'viewBox="0 0 (\d+)', picture)
    assert wide is not None and int(wide[1]) <= 96 + 13 * COLUMNS
