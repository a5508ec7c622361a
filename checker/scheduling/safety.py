"""The verdict on a schedule, SAFE or UNSAFE: a claim of its own, beside what the outputs are (obligation 23).

`Rejected` where the schedule is not one of this plan, or its certificate is forged; `UNSAFE` where it is one,
and something may be lost, mixed up, overwritten or waited for without end. No certificate is needed for that
but for a circle of waiting: all else is seen in the schedule itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..language.plan import Plan, apart
from ..language.schedule import Schedule, When
from .lane import Unsafe, Walk
from .parts import parts, wrong
from .transport import Spot, Transport


class Safety(NamedTuple):
    """`marked` are the events that show that a schedule is not safe; `times` are those of one that is."""

    safe: bool
    reason: str
    marked: tuple[Spot, ...]
    when: When | None


def safety(plan: Plan, when: When | None) -> Safety | None:
    """What holds of the schedule of a plan; None if it has none."""
    if plan.schedule is None:
        if when is not None:
            raise wrong("times of a schedule, and the plan has none", "when")
        return None
    _tile(plan, plan.schedule)
    ordered = {c: parts(plan, plan.schedule, c) for c in plan.classes}
    walks = {lane.name: Walk(plan, lane, ordered) for lane in plan.schedule.lanes}
    try:
        for walk in walks.values():
            walk.check()
        transport = Transport(plan, walks)
        if when is None:
            raise wrong("the plan has a schedule, and the proof neither times nor a circle", "when")
        transport.check(when)
    except Unsafe as error:
        return Safety(False, error.reason, error.marked, None)
    events = sum(len(lane.events) for lane in plan.schedule.lanes)
    on = {e.on for lane in plan.schedule.lanes for e in lane.events if e.on}
    said = f"{events} events in {len(walks)} lanes, on {len(on)} communicators"
    return Safety(True, said, (), when)


def _tile(plan: Plan, schedule: Schedule) -> None:
    """Every rank is in one lane."""
    boxes, whole = [lane.box for lane in schedule.lanes], [n for a, n in plan.mesh if a not in plan.time]
    inside = all(lo >= 0 and hi <= n for box in boxes for (lo, hi), n in zip(box, whole, strict=True))
    disjoint = all(apart(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
    ranks = sum(math.prod(hi - lo for lo, hi in box) for box in boxes)
    if not inside or not disjoint or ranks != math.prod(whole):
        raise wrong("the lanes are not a partition of the ranks", "schedule")
