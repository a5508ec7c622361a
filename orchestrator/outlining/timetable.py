"""The schedule of a plan whose layers have become calls.

A call is one step of its rank: all of a layer's segments, and the collectives amid them, become one segment.
So nothing else may stand between them, at any microbatch: no message, nothing of another microbatch, nothing
that happens once, but for work of one rank that can as well be done as soon as its operands are there.

A collective that is in flight while something else runs may be told as one that is waited for at once: who
waits sooner waits for all that it would have waited for, so what is safe then is safe as it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from networkx.utils import UnionFind

from certificates.errors import FormatError
from certificates.plan.calls import Call, calls
from certificates.plan.checking import check_plan
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.schedule import Batch, Event, Lane, Run, Schedule, Slot, Wait, spans

from .parting import Part, Parting
from .slices import AFTER, phases


class Apart(Exception):
    """Something stands amid calls of a ``function``."""

    def __init__(self, function: str, where: str) -> None:
        super().__init__(f"something stands amid {where}, or not at all microbatches alike")
        self.function = function


def rescheduled(plan: Plan, outlined: Plan, programs: Mapping[str, Program], early: bool = False) -> Plan:
    """The outlined plan with the schedule of the flat one, or :class:`Apart`; both name values alike.

    ``programs`` are those whose parts became calls: what they compute beside the flat plan is in no segment.
    ``early``: calls wait for their collectives at once.
    """
    assert plan.schedule is not None
    days = {
        c.name: _Day(plan, outlined, programs[c.name], c.name, plan.schedule, early) for c in plan.classes
    }
    lanes = []
    for lane in plan.schedule.lanes:
        events = tuple(days[_owner(plan, lane)].shortened(lane))
        lanes.append(replace(lane, events=events))
    segments = {name: day.segments for name, day in days.items()}
    once = {name: tuple(day.once()) for name, day in days.items()}
    made = replace(outlined, schedule=Schedule(segments, once, tuple(lanes)))
    check_plan(made)
    return made


def _owner(plan: Plan, lane: Lane) -> str:
    for cls in plan.classes:
        if all(cls.box[a][0] <= lo and hi <= cls.box[a][1] for a, (lo, hi) in lane.box.items()):
            return cls.name
    raise FormatError(f"lane {lane.name} lies in several classes")


def _overlap(a: Slot, b: Slot) -> bool:
    return a.first < b.first + b.count and b.first < a.first + a.count


@dataclass
class _Day:
    """What a class does, flat and with calls."""

    plan: Plan
    outlined: Plan
    near: Program
    name: str
    schedule: Schedule
    early: bool
    #: Segments of the outlined program.
    segments: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flat = self.plan.by_class[self.name].program.ops
        self._made = {op.out: op for op in self.flat}
        self._marked = frozenset(self.schedule.once.get(self.name, ()))
        self._phase = phases(self.plan, self.name, self.plan.by_class[self.name].program)
        self._calls = list(calls(self.outlined.by_class[self.name].program))
        segments = self.schedule.segments.get(self.name, {})
        self._parting = Parting(self.name, self.flat, self.near, self._calls, segments, self._phase)
        self._of, self._at = self._parting.of, self._parting.at
        self._marked |= {part for s in self._marked for part in self._parting.order.get(str(s), ())}
        self._meets = {op.integer("seq"): op for op in self.flat if op.name in COLLECTIVES}
        met = {v for cone in self._parting.cones for v in cone}
        self._called = {seq for seq, op in self._meets.items() if op.out in met} if self.early else set()
        self._lanes = {
            lane.name: list(self._moved(lane))
            for lane in self.schedule.lanes
            if _owner(self.plan, lane) == self.name
        }
        self._group: dict[Part, str] = {}
        #: The parts of each segment of calls, as they were seen.
        self._inside: dict[str, list[Part]] = {}
        self._join()
        self._number()
        self._compare()

    def once(self) -> Iterator[str | int]:
        """Segments and meetings that happen once."""
        more = sorted(part for parts in self._parting.order.values() for part in parts)
        parts = [*self.schedule.once.get(self.name, ()), *more]
        told = (self._group.get(part, part) for part in parts if part in self._marked)
        yield from (p for p in dict.fromkeys(told) if isinstance(p, int) or p in self.segments)

    def shortened(self, lane: Lane) -> Iterator[Event]:
        """The events of a lane, those of a call as one."""
        place: dict[int, int] = {}
        current: Run | None = None  # the call whose parts stand here
        count = 0
        for number, event in self._lanes[lane.name]:
            made: Event | None = event
            if isinstance(event, Wait):
                made = Wait(place[event.event]) if event.event in place else None
            elif (call := self._call(event)) is not None:
                made, current = (None if call == current else call), call
            elif isinstance(event, Run) and event.segment not in self.segments:
                made = None
            else:
                current = None
            if made is not None:
                if isinstance(made, Batch):
                    place[number] = count
                yield made
                count += 1

    def _call(self, event: Run | Batch) -> Run | None:
        """The calls that an event is part of."""
        if isinstance(event, Run):
            group = self._group.get(event.segment)
            return None if group is None else Run(group, event.run)
        groups = {self._group.get(item.seq) if item.end == "meet" else None for item in event.items}
        if len(groups) > 1:
            raise FormatError(f"class {self.name}: collectives in and outside of calls are one batch")
        group = groups.pop()
        return None if group is None else Run(group, event.items[0].run)

    # --- which segments become one -------------------------------------------------------------------------

    def _moved(self, lane: Lane) -> Iterator[tuple[int, Event]]:
        """The events with their numbers. Work of one rank that happens once is done as soon as it can be, or
        as late: if no run needs it, or if a collective of its own call does."""
        kept: list[list[tuple[int, Event]]] = [[]]  # each event, and what is moved behind it
        ready: dict[str, int] = {}  # value -> number of the list at whose end it is there, in the run so far
        posted: dict[int, Batch] = {}
        waiting: dict[str, tuple[int, Event]] = {}
        by_seq = {op.integer("seq"): op for op in self.flat if op.name in COLLECTIVES | MESSAGES}

        def done(number: int, event: Event, made: Iterable[str]) -> None:
            kept.append([(number, event)])
            ready.update(dict.fromkeys(made, len(kept) - 1))

        def needed(values: Iterable[str]) -> None:
            for segment in dict.fromkeys(self._at.get(v) for v in values):
                if segment in waiting:
                    number, event = waiting.pop(str(segment))
                    needed(self._reads(str(segment)))
                    done(number, event, (op.out for op in self._of[str(segment)]))

        for number, event in self._events(lane):
            if isinstance(event, Wait | Batch):
                items = posted[event.event].items if isinstance(event, Wait) else event.items
                ends = [by_seq[i.seq] for i in items if i.seq in by_seq]
                if isinstance(event, Batch):
                    posted[number] = event
                    needed(v for op in ends for v in op.ins)
                done(number, event, (op.out for op in ends))
                continue
            segment, ops = event.segment, self._of[event.segment]
            reads = self._reads(segment)
            if segment not in self._marked or any(op.name in COLLECTIVES for op in ops):
                needed(reads)
                done(number, event, (op.out for op in ops))
            elif self._parting.ahead.get(segment, all(self._phase[op.out] == AFTER for op in ops)):
                waiting[segment] = number, event
            else:
                needed(reads)
                here = max((ready.get(v, 0) for v in reads), default=0)
                kept[here].append((number, event))
                ready |= dict.fromkeys((op.out for op in ops), here)
        needed([op.out for segment in list(waiting) for op in self._of[segment]])
        yield from (item for items in kept for item in items)

    def _events(self, lane: Lane) -> Iterator[tuple[int, Event]]:
        waited: set[int] = set()
        for number, event in enumerate(lane.events):
            if isinstance(event, Run):
                yield from ((number, Run(s, event.run)) for s in self._parting.order[event.segment])
            elif isinstance(event, Batch) and event.posted and self._at_once(event, lane):
                waited.add(number)
                yield number, replace(event, posted=False)
            elif not isinstance(event, Wait) or event.event not in waited:
                yield number, event

    def _at_once(self, batch: Batch, lane: Lane) -> bool:
        """May a batch be waited for at once? Until its wait nothing may be written to slots that it reads."""
        for item in batch.items:
            if item.end != "meet" or item.seq not in self._called:
                return False
            slots = [s for s in lane.slots if s.cls == self.name and s.value in self._meets[item.seq].ins]
            if slots and item.seq not in self._marked:
                return False  # the next run writes it
            if any(_overlap(slot, other) for slot in slots for other in lane.slots if other != slot):
                return False
        return True

    def _reads(self, segment: str) -> list[str]:
        """Values from outside that a segment reads, and those from which its call computes some anew."""
        own, anew = {op.out for op in self._of[segment]}, self._parting.anew(segment)
        found: list[str] = []
        work = [v for op in reversed(self._of[segment]) for v in reversed(op.ins)]
        while work:
            value = work.pop()
            if value in anew:
                own.add(value)
                anew.discard(value)
                work += self._made[value].ins if value in self._made else ()
            elif value not in own:
                found.append(self._given(value))
        return found

    def _given(self, value: str) -> str:
        """What was given last to what joins runs; else the value itself."""
        op = self._made.get(value)
        while op is not None and op.name in COLLECTIVES and self.plan.groups[op.text("group")].steps:
            value = op.ins[0]
            op = self._made.get(value)
        return value

    def _join(self) -> None:
        """Group the parts of each call, and of calls that share some."""
        orders = [order for events in self._lanes.values() for order in self._orders(events)]
        where = [{part: i for i, part in enumerate(parts)} for parts, _ in orders]
        met = UnionFind()
        for call, cone in zip(self._calls, self._parting.cones, strict=True):
            wanted = set(self._parts(call, cone))
            stretches: set[tuple[Part, ...]] = set()
            for (parts, breaks), at in zip(orders, where, strict=True):
                places = sorted(at[p] for p in wanted if p in at)
                if not places:
                    continue
                lo, hi = places[0], places[-1]
                if len(places) < len(wanted) or any(lo <= b < hi for b in breaks):
                    raise Apart(call.function, f"{call.function} {call.instance} of {self.name}")
                stretches.add(tuple(parts[lo : hi + 1]))
            if len(stretches) != 1:
                raise Apart(call.function, f"{call.function} {call.instance} of {self.name}")
            met.union(*stretches.pop())
        for joined in met.to_sets():
            order = next(parts for parts, _ in orders if not joined.isdisjoint(parts))
            name = min((p for p in joined if isinstance(p, str)), default=f"calls{min(map(str, joined))}")
            self._group |= dict.fromkeys(joined, name)
            self._inside[name] = [part for part in order if part in joined]

    def _orders(self, events: Sequence[tuple[int, Event]]) -> Iterator[tuple[list[Part], list[int]]]:
        """Of each run, and of what happens once, the parts in order, and after which of them others stand."""
        parts: dict[int | None, list[Part]] = {}
        seen: dict[int | None, list[int]] = {}  # the place of each part among all events
        alone: set[int] = set()  # waits for what was posted just before
        for i, (number, event) in enumerate(events):
            found: list[tuple[Part, int]] = []
            if isinstance(event, Run):
                found = [(event.segment, event.run)]
            elif isinstance(event, Batch) and all(item.end == "meet" for item in event.items):
                waited = i + 1 < len(events) and events[i + 1][1] == Wait(number)
                if not event.posted or waited:  # else it is in flight while others run
                    found = [(item.seq, item.run) for item in event.items]
                    alone |= {i + 1} if event.posted else set()
            for part, run in found:
                of = None if part in self._marked else run
                parts.setdefault(of, []).append(part)
                seen.setdefault(of, []).append(i)
        for of, order in parts.items():
            between = (all(j in alone for j in range(a + 1, b)) for a, b in pairwise(seen[of]))
            yield order, [k for k, together in enumerate(between) if not together]

    def _parts(self, call: Call, cone: Sequence[str]) -> Iterator[Part]:
        """Where the results of a call, what it meets, and what it does beside that, stand."""
        yield from (self._at[v] for v in call.results)
        for value in cone:
            op = self._made.get(value)
            if op is not None and (op.name in COLLECTIVES or self._parting.beside(value)):
                yield self._at[value]

    # --- the segments of the outlined program --------------------------------------------------------------

    def _number(self) -> None:
        program = self.outlined.by_class[self.name].program
        ops = program.ops
        found: dict[str, list[int]] = {}
        place = {op.out: self._place(op) for op in ops} | self._beside(program)
        for op in reversed(ops):  # what outlining has made stands with its first reader
            for value in op.ins:
                if value in place and value not in self._at and value not in self._made:
                    place[value] = place[op.out] if place[op.out] is not None else place[value]
        for i, op in enumerate(ops):
            segment = place[op.out]
            if segment is not None:
                found.setdefault(segment, []).append(i)
            elif op.name not in COLLECTIVES | MESSAGES:
                raise FormatError(f"{op.out} {op.name} of class {self.name} has no segment")
        self.segments = {name: spans(numbers) for name, numbers in found.items()}

    def _beside(self, program: Program) -> dict[str, str | None]:
        """The segments of what stands for packed ops beside their results: those of these ops, or of what
        made an operand. Names of such values may be those of others in the flat plan."""
        named, found = {op.out for op in program.written}, dict[str, str | None]()
        waiting: list[str] = []
        made = {op.out: op for op in program.ops}
        for op in program.ops if program.rows is not None else ():
            if op.out not in named:
                waiting.append(op.out)
                continue
            operand = next((made[v] for v in op.ins if v in named and v in made), op)
            found |= dict.fromkeys(waiting, self._place(op) or self._place(operand))
            waiting.clear()
        return found

    def _compare(self) -> None:
        """In a segment of calls collectives stand in the order in which they were seen to be called: a class
        that calls them in another order than others must not be told to be safe."""
        program = self.outlined.by_class[self.name].program
        first = {call.results[0]: call for call in self._calls}
        for segment, parts in self._inside.items():
            seen = [op for p in parts for op in (self._of[p] if isinstance(p, str) else [self._meets[p]])]
            inside = [program.ops[i] for lo, hi in self.segments[segment] for i in range(lo, hi)]
            made: list[Op] = []
            for op in inside:
                call = first.get(op.out)
                made += [op] if call is None else self.outlined.body(call.function, self.name).ops
            if self._meetings(seen) != self._meetings(made):
                function = next(first[op.out].function for op in inside if op.out in first)
                raise Apart(function, f"{segment} of {self.name}, whose collectives have another order")

    def _meetings(self, ops: Iterable[Op]) -> list[tuple[str, str, str]]:
        """Collectives over ranks."""
        found = ((op.name, op.text("group"), str(op.type)) for op in ops if op.name in COLLECTIVES)
        return [m for m in found if not self.plan.groups[m[1]].steps]

    def _place(self, op: Op) -> str | None:
        """The segment of an op; none for what stands in none."""
        if op.name in MESSAGES or op.out not in self._at:
            return None
        part = self._at[op.out]
        if op.name in COLLECTIVES and self.plan.groups[op.text("group")].steps:
            return None
        return self._group.get(part, part if isinstance(part, str) else None)
