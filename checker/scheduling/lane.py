"""What a rank does in its own order: all of it once, after what it reads, no slot written while read.

Time stands still here: only the order of one lane counts, waits included, as another order of what different
lanes do is as good as the one that a certificate gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..errors import Undecided
from ..language.ops import Op
from ..language.plan import Plan
from ..language.schedule import Event, Item, Key, Lane, Slot
from .parts import END, Parts, numbers, wrong

MAX_WORK = 1 << 24
IN_PLACE = {
    *("add", "subtract", "multiply", "divide", "negate", "exponential", "log", "sqrt", "rsqrt", "sine"),
    *(
        "cosine",
        "tanh",
        "logistic",
        "erf",
        "abs",
        "power",
        "maximum",
        "minimum",
        "and",
        "or",
        "not",
        "select",
    ),
}
"""Ops whose element needs the same element of the operands only: they may write over one of their type."""
Place = tuple[int, int]
"""An event, and an op within it."""


class Unsafe(Exception):
    """The schedule may lose, mix up or wait for ever; `marked` are the events that show it."""

    def __init__(self, reason: str, *marked: tuple[str, int]) -> None:
        super().__init__(reason)
        self.reason, self.marked = reason, marked


def told(event: Event) -> str:
    """An event in words."""
    if event.kind == "wait":
        return f"wait for event {event.run}"
    done = ", ".join(f"{key[0] + ' ' if key[0] != 'run' else ''}{key[1]}" for key, _ in event.items[:4])
    more = f" and {len(event.items) - 4} more" if len(event.items) > 4 else ""
    run = event.items[0].run
    return f"{'post ' if event.kind == 'post' else ''}{done}{more}, run {run}"


class Walk:
    """One lane in its own order; `begun` and `ended` are the events at which an item begins and is done."""

    def __init__(self, plan: Plan, lane: Lane, parts: Mapping[str, Parts]) -> None:
        self.plan, self.lane, self.where = plan, lane, f"lane {lane.name}"
        self.time = [axis for axis in plan.mesh if axis[0] in plan.time]
        self.slotted = {(s.cls, s.value) for s in lane.slots}
        space = [i for i, (a, _) in enumerate(plan.mesh) if a not in plan.time]
        self.at: dict[int, str] = {}
        for c, cls in plan.classes.items():
            sides = list(zip(lane.box, (cls.box[i] for i in space), strict=True))
            if all(a[0] < b[1] and b[0] < a[1] for a, b in sides):
                if not all(b[0] <= a[0] and a[1] <= b[1] for a, b in sides):
                    raise wrong(f"it has ranks of class {c}, and others", self.where)
                self.at |= dict.fromkeys(parts[c].runs, c)
        self.parts = {c: parts[c] for c in dict.fromkeys(self.at.values())}
        self.begun: dict[Item, int] = {}
        self.ended: dict[Item, int] = {}
        self.waits: dict[int, int] = {}
        self._joined: dict[tuple[int, int], tuple[int, int]] = {}
        load = sum(len(p.runs) * (len(plan.program(c).ops) + 1) for c, p in self.parts.items())
        load += len(lane.slots) * len(self.at)
        if load > MAX_WORK:
            raise Undecided(f"{self.where}: more than {MAX_WORK} ops and slots of all its runs")

    def check(self) -> None:
        """Everything that one lane shows; raises `Unsafe`."""
        self._everything_once()
        self._operands()
        self._slots()

    def first(self, c: str) -> int:
        """The run in which a class does what it does once."""
        return self.parts[c].runs[0]

    def item(self, key: Key, run: int) -> Item:
        """What does the part of this run."""
        c = self.at[run]
        return Item(key, self.first(c) if self.parts[c].once[key] else run)

    def _everything_once(self) -> None:
        due = {self.item(key, run) for run, c in self.at.items() for key in self.parts[c].once}
        for i, event in enumerate(self.lane.events):
            if event.kind == "wait":
                posted = self.lane.events[event.run] if event.run < i else event
                if posted.kind != "post" or event.run in self.waits:
                    raise wrong(
                        f"event {i} waits for event {event.run}, of which nothing is open", self.where
                    )
                self.waits[event.run] = i
                self.ended |= dict.fromkeys(posted.items, i)
            for item in event.items:
                c = self.at.get(item.run)
                if c is None or item.key not in self.parts[c].once:
                    raise wrong(f"event {i} is {told(event)}: the plan has no such part or run", self.where)
                if item not in due or item in self.begun:
                    again = self.begun.get(item, self.begun.get(self.item(*item), i))
                    self.fail(i, f"{told(event)} is done again, or for no run", again)
                self.begun[item] = i
                if event.kind != "post":
                    self.ended[item] = i
        for i, event in enumerate(self.lane.events):
            if event.kind == "post" and i not in self.waits:
                self.fail(i, "nothing waits for it")
        left = sorted(due - self.begun.keys(), key=lambda item: (item.run, str(item.key)))
        if left:
            (kind, name), run = left[0]
            what = f"{kind} {name}" if kind != "run" else f"{name}"
            raise Unsafe(f"{self.where}: {what}, run {run} is never done ({len(left)} such)")

    def fail(self, i: int, reason: str, other: int | None = None) -> None:
        said = f"{self.where}: event {i} ({told(self.lane.events[i])}): {reason}"
        marked = [(self.lane.name, k) for k in dict.fromkeys((i, other)) if k is not None]
        if other is not None and other != i:
            said += f" (event {other}, {told(self.lane.events[other])})"
        raise Unsafe(said, *marked)

    # Operands -----------------------------------------------------------------------------------------------

    def there(self, value: str, run: int) -> int:
        """The event at which a value of a run is there; -1 for an input."""
        c = self.at[run]
        if value in self.plan.program(c).inputs:
            return -1
        if value in self.parts[c].joins:
            return self.joined(self.parts[c].joins[value], run)[1]
        return self.ended[self.item(self.parts[c].makes[value][0], run)]

    def joined(self, op: Op, run: int) -> tuple[int, int]:
        """The first and the last event after which an operand of a sum or stack over runs is there."""
        key = op.attrs["seq"], self.fibre(op, run)
        if key not in self._joined:
            meets = self.plan.rendezvous[key[0]]
            given = [self.there(meets[self.at[k]].operands[0], k) for k in self.mates(op, key[1])]
            self._joined[key] = min(given), max(given)
        return self._joined[key]

    def fibre(self, op: Op, run: int) -> int:
        """The first of the runs that a sum or stack joins with this one."""
        over, weight, first = self.plan.groups[op.attrs["group"]].axes, 1, 0
        for axis, size in reversed(self.time):
            run, t = divmod(run, size)
            first += 0 if axis in over else t * weight
            weight *= size
        return first

    def mates(self, op: Op, first: int) -> list[int]:
        """All of these runs, given the first."""
        over, sides = self.plan.groups[op.attrs["group"]].axes, list[range]()
        for axis, size in reversed(self.time):
            first, t = divmod(first, size)
            sides.append(range(size) if axis in over else range(t, t + 1))
        return numbers(sides[::-1], [n for _, n in self.time])

    def _operands(self) -> None:
        for i, event in enumerate(self.lane.events):
            for key, run in event.items:
                part = self.parts[self.at[run]]
                for value in part.reads.get(key, ()):
                    if value in part.makes and part.makes[value][0] == key:
                        continue  # an op before it in the same segment
                    there = self.there(value, run)
                    if there >= i:
                        self.fail(i, f"it reads {value} before that is whole", there)

    # Slots --------------------------------------------------------------------------------------------------

    def _slots(self) -> None:
        """Of two values of a slot, the first is read for the last time before the second is written."""
        held: dict[int, dict[tuple[str, str, int], list[Place]]] = {}
        home: dict[tuple[str, str, int], int] = {}
        for slot in self.lane.slots:
            for identity, number, span in self._held(slot):
                if home.setdefault(identity, number) != number:
                    raise wrong(f"{identity[1][:40]}, run {identity[2]} has two slots", self.where)
                old = held.setdefault(number, {}).setdefault(identity, list(span))
                old[:] = min(old[0], span[0]), max(old[1], span[1])
        for c, part in self.parts.items():
            received = {v for v, (key, _) in part.makes.items() if key[0] == "recv"}
            bare = sorted(v for v in received | part.joins.keys() if (c, v) not in self.slotted)
            if bare:
                raise wrong(f"{bare[0]} of class {c} is received or accumulated, and has no slot", self.where)
        for number, values in held.items():
            order = sorted(values.items(), key=lambda v: v[1])
            (_, value, run), (_, end) = order[0]
            for (_, other, later), (start, stop) in order[1:]:
                if end >= start and not self._in_place(value, other, later, end, start):
                    i = min(start[0], len(self.lane.events) - 1)
                    self.fail(
                        max(i, 0),
                        f"{other}, run {later} is written to slot {number}, from which {value}, run {run} is "
                        f"still to be read",
                        min(end[0], len(self.lane.events) - 1),
                    )
                if stop >= end:
                    value, run, end = other, later, stop

    def _held(self, slot: Slot) -> Iterator[tuple[tuple[str, str, int], int, tuple[Place, Place]]]:
        """Identity, number of the slot, and from when to when, for each tensor that a value is."""
        c, value = slot.cls, slot.value
        if c not in self.parts:
            raise wrong(f"it has no ranks of class {c}", self.where)
        part, program = self.parts[c], self.plan.program(c)
        seen = self._views(c, value)
        kept = not seen.isdisjoint(program.outputs.values())
        last = ((len(self.lane.events), 0),) if kept else ()
        readers = [(key, reads[v]) for key, reads in part.reads.items() for v in seen & reads.keys()]
        summed = [v for op in part.joins.values() for v in op.operands if v in seen]

        def read(runs: Iterable[int]) -> Iterator[Place]:
            """When one of these runs reads it."""
            yield from last
            for run in runs:
                for key, offset in readers:
                    yield self.ended[self.item(key, run)], offset if key[0] == "run" else END
                yield from ((self.there(v, run), END) for v in summed)

        if value in program.inputs:  # one tensor of the rank, whichever of its programs reads it
            shared = [d for d in self.parts if d != c and value in self.plan.program(d).inputs]
            if any((d, value) not in self.slotted for d in shared):
                raise wrong(
                    f"{value[:40]} has a slot for some of the classes {', '.join(shared)}", self.where
                )
            yield ("", value, 0), slot.first, ((-1, 0), max(read(part.runs), default=(-1, 0)))
        elif value in part.joins:
            op = part.joins[value]
            for first in dict.fromkeys(self.fibre(op, run) for run in part.runs):
                earliest, latest = self.joined(op, first)
                ours = (k for k in self.mates(op, first) if self.at[k] == c)
                last_read = max(read(ours), default=(-1, 0))
                name = ("join", f"{op.name} {op.attrs['seq']}", first)
                yield name, slot.first + first % slot.turns, ((earliest, -1), max((latest, END), last_read))
        elif value in part.makes:
            key, offset = part.makes[value]
            for run in part.runs[:1] if part.once[key] else part.runs:
                item = Item(key, run)
                begin = (self.begun[item], offset if key[0] == "run" else 0)
                done = begin if key[0] == "run" else (self.ended[item], END)
                until = max(read(part.runs if part.once[key] else (run,)), default=done)
                yield (c, value, run), slot.first + run % slot.turns, (begin, max(done, until))
        else:
            raise wrong(f"class {c} has no value {value[:40]}", self.where)

    def _views(self, c: str, value: str) -> set[str]:
        """A value and all that may share its memory, having no slot."""
        found, stack = {value}, [value]
        while stack:
            more = [v for v in self.parts[c].views.get(stack.pop(), ()) if (c, v) not in self.slotted]
            stack += [v for v in more if v not in found]
            found.update(more)
        return found

    def _in_place(self, value: str, other: str, run: int, end: Place, start: Place) -> bool:
        """Does the op that reads a value last write the other one over it, element by element?"""
        c = self.at[run] if other.startswith("%") else ""
        op = self.plan.program(c).producers.get(other) if c else None
        if op is None or end != start or op.name not in IN_PLACE or value not in op.operands:
            return False
        seen = self._views(c, value) - {value}
        return seen.isdisjoint(op.operands) and self.plan.program(c).types[value] == op.type
