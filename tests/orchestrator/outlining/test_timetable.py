"""A schedule that speaks of calls: a call is one step, so nothing else may stand amid its ops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from certificates.authoring.scheduling import LaneBuilder, ScheduleBuilder, meet, recv, send, with_schedule
from certificates.plan.calls import calls
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.schedule import Wait
from orchestrator.outlining import repeats
from orchestrator.outlining.outline import outline
from orchestrator.outlining.timetable import Apart, rescheduled
from tests.schedule_plans import Built, Places, built, finish, judged, once

#: Six layers on two ranks, two microbatches.
PLACES = Places((0, 0, 0, 1, 1, 1), 2)


@pytest.fixture(autouse=True)
def short_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of few ops are worth a function here."""
    monkeypatch.setattr(repeats, "LEAST_PERIOD", 2)


def programs(plan: Plan) -> dict[str, Program]:
    return {c.name: c.program for c in plan.classes}


def forward(lane: LaneBuilder, stages: range, m: int) -> None:
    for s in stages:
        lane.run(f"f{s}", m)


def backward(lane: LaneBuilder, stages: range, m: int) -> None:
    for s in reversed(stages):
        lane.run(f"i{s}", m)
        lane.run(f"w{s}", m)


def scheduled(torn: bool = False, amid: bool = False, crossed: bool = False) -> tuple[Built, Plan]:
    """All forwards, then all backwards. `torn`: the last rank sends its last message while it reduces a
    gradient; `amid`: the first rank's layers take both microbatches in turn; `crossed`: the first rank waits
    for the last message first."""
    b = built(PLACES)
    s = ScheduleBuilder(b.programs, once=once(b))
    first, last = (s.lane(f"rank{r}", {"pp": (r, r + 1)}) for r in range(2))
    if amid:
        for stage in range(3):
            for m in range(2):
                first.run(f"f{stage}", m)
    for m in range(2):
        if not amid:
            forward(first, range(3), m)
        first.now("pp", send(3, m))
        last.now("pp", recv(3, m))
        forward(last, range(3, 6), m)
    for m in range(2):
        backward(last, range(3, 6), m)
        if torn and m:
            last.now("dp", meet(5001))
            posted = last.post("dp", meet(2003))
            last.now("pp", send(102, m))
            last.wait(posted)
        else:
            last.now("pp", send(102, m))
        first.now("pp", recv(102, 1 - m if crossed else m))
        backward(first, range(3), 1 - m if crossed else m)
    finish(b, first, 0)
    if torn:
        for seq in (2004, 2005):
            last.now("dp", meet(seq))
        last.run("update")
    else:
        finish(b, last, 1)
    return b, with_schedule(b.plan, s.build())


def test_calls_take_the_place_of_their_segments_and_the_schedule_stays_safe() -> None:
    _, plan = scheduled()
    made = outline(plan)
    assert made.functions and made.schedule is not None and plan.schedule is not None
    safe = judged(made)
    assert safe is not None and safe.safe
    for before, after in zip(plan.schedule.lanes, made.schedule.lanes, strict=True):
        assert len(after.events) <= len(before.events)
    for cls in made.classes:
        where = {
            i: name
            for name, ranges in made.schedule.segments[cls.name].items()
            for lo, hi in ranges
            for i in range(lo, hi)
        }
        number = {op.out: i for i, op in enumerate(cls.program.ops)}
        for call in calls(cls.program):
            assert len({where[number[v]] for v in call.results}) == 1, "results of a call are made together"


def test_what_stands_amid_a_call_is_told() -> None:
    _, plan = scheduled()
    outlined = replace(outline(plan), schedule=None)
    _, other = scheduled(torn=True)
    assert plan.classes == other.classes, "the same programs, in another order"
    with pytest.raises(Apart, match=r"amid f1 3 of c1, or not at all microbatches alike"):
        rescheduled(other, outlined, programs(other))


def test_collectives_of_calls_keep_the_order_in_which_they_were_seen() -> None:
    """Outlining moves gathers to where they are read. Two classes that call collectives in crossed order
    would hang; bodies in one order would hide it."""
    _, plan = scheduled()
    made = outline(plan)
    assert rescheduled(plan, replace(made, schedule=None), programs(plan)).schedule == made.schedule
    (role,) = made.functions["f1"].classes
    body = made.functions["f1"].classes[role]
    twice = (*body.ops, *(replace(op, out="%90") for op in body.ops if op.name == "all_reduce"))
    crossed = replace(made.functions["f1"], classes={role: replace(body, ops=twice)})
    outlined = replace(made, schedule=None, functions={**made.functions, "f1": crossed})
    with pytest.raises(Apart, match="whose collectives have another order"):
        rescheduled(plan, outlined, programs(plan))


def test_calls_wait_at_once_for_what_was_in_flight() -> None:
    """Else a gather ahead of time, or a gradient reduced while others are computed, stays flat everywhere."""
    _, plan = scheduled(torn=True)
    made = outline(plan)
    safe = judged(made)
    assert len(made.functions) == 2 and safe is not None and safe.safe
    assert made.schedule is not None
    events = [e for lane in made.schedule.lanes for e in lane.events]
    assert not any(isinstance(e, Wait) for e in events), "a call has no end of its own"


def test_what_a_slot_gives_back_while_it_is_read_is_not_told_as_read_at_once() -> None:
    """A gradient in flight whose memory another value takes: to wait at once would hide that."""
    _, plan = scheduled(torn=True)
    assert plan.schedule is not None and judged(plan).safe
    (first, last) = plan.schedule.lanes
    shared = tuple(replace(slot, first=0) if slot.value == "%47" else slot for slot in last.slots)
    assert shared != last.slots
    other = replace(plan, schedule=replace(plan.schedule, lanes=(first, replace(last, slots=shared))))
    for made in (other, outline(other)):
        safe = judged(made)
        assert safe is not None and not safe.safe
    outlined = replace(outline(plan), schedule=None)
    with pytest.raises(Apart, match="amid f1 3 of c1"):
        rescheduled(other, outlined, programs(other), early=True)


def test_calls_without_a_place_stay_flat_and_the_others_stand() -> None:
    """Where nothing is waited for at once, as something would wait for ever."""
    _, plan = scheduled(torn=True, crossed=True)
    made = outline(plan)
    safe = judged(made)
    assert len(made.functions) == 1 and safe is not None and not safe.safe


def test_layers_that_take_microbatches_in_turn_are_calls_still() -> None:
    _, plan = scheduled(amid=True)
    made = outline(plan)
    safe = judged(made)
    assert len(made.functions) == 2 and safe is not None and safe.safe
