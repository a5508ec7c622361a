"""Schedules by hand: segments where a program is built, lanes event by event."""

from __future__ import annotations

from itertools import pairwise

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.authoring.scheduling import LaneBuilder, ScheduleBuilder, recv, send, with_schedule
from certificates.errors import FormatError
from certificates.plan.schedule import Batch, Run, Slot, Wait
from tests.schedule_plans import by_torch, chain, torch_lanes


def test_ops_belong_to_the_innermost_segment() -> None:
    b = ProgramBuilder({"pp": 2}, time={"mb": 2})
    x = b.input("x", "f32[2]")
    with b.segment("outer"):
        y = x + x
        with b.segment("inner"):
            z = y + y
        b.send(z, 0, pp=0)
        w = y * y
    b.output("y", b.all_reduce(w, "mb") + w)
    assert b.build().segments == {"outer": ((0, 1), (3, 4)), "inner": ((1, 2),)}


def test_events_are_numbered_as_they_come() -> None:
    lane = LaneBuilder("one", {})
    lane.run("f", 1)
    number = lane.post("pp", send(0), recv(1, 2))
    lane.wait(number)
    assert lane.events == [Run("f", 1), Batch("pp", (send(0), recv(1, 2)), True), Wait(1)]
    assert (lane.slot("c0", "%1", 3), lane.slot("c0", "%2"), lane.slot("c0", "%3", first=1)) == (0, 3, 1)
    assert lane.slots[2] == Slot("c0", "%3", 1, 1)


def test_what_is_received_or_accumulated_gets_slots_of_its_own() -> None:
    b = chain(2, 3)
    plan = with_schedule(b.plan, torch_lanes(b, "1F1B").build())
    assert plan.schedule is not None
    for lane, cls in zip(plan.schedule.lanes, plan.classes, strict=True):
        named = {op.out for op in cls.program.ops if op.name == "recv"}
        assert named < {s.value for s in lane.slots} and all(s.count == 3 for s in lane.slots)
        spans = sorted((s.first, s.first + s.count) for s in lane.slots)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert lane.box["dp"] == (0, 2), "what a lane does not name is whole"


def test_an_axis_that_is_not_there() -> None:
    b = chain(2, 2)
    s = ScheduleBuilder(b.programs)
    s.lane("one", {"tp": (0, 1)})
    with pytest.raises(FormatError, match="lane one: the mesh has no axis 'tp'"):
        with_schedule(b.plan, s.build())
    assert by_torch("GPipe", 2, 2).version == 2
