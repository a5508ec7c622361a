"""Schedules written by hand, or from what a framework says that it will do: a builder per lane.

A program is cut into segments where it is built (``with b.segment("f0"):``), and a lane lists what its ranks
do::

    s = ScheduleBuilder({"c0": program}, once={"c0": ["update"]})
    lane = s.lane("l0", {"pp": (0, 1)})
    lane.run("f0", 0)
    sent = lane.post("pp", send(5, 0))
    lane.wait(sent)
    plan = with_schedule(plan, s.build())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import FormatError
from ..plan.affine import Range
from ..plan.checking import check_plan
from ..plan.ops import COLLECTIVES
from ..plan.plan import Plan
from ..plan.program import Op
from ..plan.schedule import Batch, Event, Item, Lane, Run, Schedule, Slot, Wait
from .build import SourcedProgram, Value


def send(seq: int, run: int = 0) -> Item:
    return Item("send", seq, run)


def recv(seq: int, run: int = 0) -> Item:
    return Item("recv", seq, run)


def meet(seq: int, run: int = 0) -> Item:
    """A collective outside of segments."""
    return Item("meet", seq, run)


@dataclass
class LaneBuilder:
    """The events of one lane in order, and which values share memory."""

    name: str
    box: Mapping[str, Range]
    events: list[Event] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    def run(self, segment: str, run: int = 0) -> None:
        self.events.append(Run(segment, run))

    def now(self, communicator: str, *items: Item) -> None:
        """A batch for which the rank waits at once."""
        self.events.append(Batch(communicator, items))

    def post(self, communicator: str, *items: Item) -> int:
        """A batch for which the rank waits later: its number is for :meth:`wait`."""
        self.events.append(Batch(communicator, items, posted=True))
        return len(self.events) - 1

    def wait(self, posted: int) -> None:
        self.events.append(Wait(posted))

    def slot(self, cls: str, value: Value | str, count: int = 1, first: int | None = None) -> int:
        """Memory for a value: ``count`` slots in turn, new ones unless ``first`` names the first of them."""
        first = self._free() if first is None else first
        name = value if isinstance(value, str) else value.name
        self.slots.append(Slot(cls, name, first, count))
        return first

    def _free(self) -> int:
        return max((s.first + s.count for s in self.slots), default=0)


class ScheduleBuilder:
    """All lanes of a schedule; ``once`` names segments and meetings that happen once for all runs."""

    def __init__(
        self,
        programs: Mapping[str, SourcedProgram],
        once: Mapping[str, Iterable[str | int]] | None = None,
    ) -> None:
        self.programs = programs
        self.once = {c: tuple(names) for c, names in (once or {}).items()}
        self.lanes: list[LaneBuilder] = []

    def lane(self, name: str, box: Mapping[str, Range]) -> LaneBuilder:
        self.lanes.append(LaneBuilder(name, box))
        return self.lanes[-1]

    def build(self) -> Schedule:
        segments = {c: dict(p.segments) for c, p in self.programs.items() if p.segments}
        lanes = tuple(Lane(n.name, n.box, tuple(n.events), tuple(n.slots)) for n in self.lanes)
        return Schedule(segments, self.once, lanes)


def with_schedule(plan: Plan, schedule: Schedule) -> Plan:
    """The plan with this schedule, checked. What is received or accumulated and has no slot gets one for
    each run; an axis that a lane does not name is whole."""
    lanes = []
    for lane in schedule.lanes:
        builder = LaneBuilder(lane.name, _whole(plan, lane), list(lane.events), list(lane.slots))
        for c, op, over_time in _kept(plan, builder.box):
            same = [s for s in builder.slots if (s.cls, s.value) == (c, op.out)]
            if over_time and not same:  # one accumulator, whichever classes add to it
                meets = plan.rendezvous(op.integer("seq"))
                same = [s for s in builder.slots if s.cls in meets and s.value == meets[s.cls].out]
                builder.slots += [replace(s, cls=c, value=op.out) for s in same[:1]]
            if not same:
                builder.slot(c, op.out, plan.mesh.points // plan.mesh.ranks)
        lanes.append(replace(lane, box=builder.box, slots=tuple(builder.slots)))
    made = replace(plan, version=max(plan.version, 2), schedule=replace(schedule, lanes=tuple(lanes)))
    check_plan(made)
    return made


def _whole(plan: Plan, lane: Lane) -> dict[str, Range]:
    unknown = lane.box.keys() - plan.mesh.space.keys()
    if unknown:
        raise FormatError(f"lane {lane.name}: the mesh has no axis {min(unknown)!r}")
    return {a: lane.box.get(a, (0, n)) for a, n in plan.mesh.space.items()}


def _kept(plan: Plan, box: Mapping[str, Range]) -> Iterable[tuple[str, Op, bool]]:
    """What is received or joins runs in the classes of a lane: these need slots."""
    for cls in plan.classes:
        if all(cls.box[a][0] <= lo and hi <= cls.box[a][1] for a, (lo, hi) in box.items()):
            for op in cls.program.ops:
                over_time = op.name in COLLECTIVES and plan.groups[op.text("group")].steps > 0
                if op.name == "recv" or over_time:
                    yield cls.name, op, over_time
