"""A brute-force simulator of ranks, communicators and memory: the judge of what the checker calls SAFE.

It shares nothing with the checker. Every rank is run op by op, in an interleaving drawn at random; messages
and collectives meet by the order in which they are issued, whatever the plan means them to be; memory holds
marks that say which value it is, and whoever reads a mark that he does not expect has read a wrong number.
What is in flight is read, or written, at any moment between its post and its wait.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan, RankClass
from certificates.plan.program import Op
from certificates.plan.schedule import Batch, Event, Item, Lane, Run, Wait

VIEWS = ("reshape", "transpose", "slice", "broadcast_in_dim", "send")
Mark = tuple[object, ...]


class Bad(Exception):
    """What went wrong in this interleaving."""


@dataclass(eq=False)
class Flight:
    """A batch of a rank that is issued; `left` are its items that have not met yet."""

    rank: int
    batch: Batch
    left: list[Item]


@dataclass
class Rank:
    number: int
    at: dict[str, int]
    lane: Lane
    event: int = 0
    step: int = 0
    memory: dict[object, Mark] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)
    queues: dict[str, list[Flight]] = field(default_factory=dict)


class Simulation:
    """One interleaving. With `eager`, a send is done once it is issued, as with buffers; or else both ends
    wait for each other. With `strict`, the collectives of a rank follow one another on all communicators."""

    def __init__(
        self, plan: Plan, rng: random.Random, eager: bool, strict: bool, known: dict[object, Any]
    ) -> None:
        assert plan.schedule is not None
        self.plan, self.schedule, self.rng, self.eager, self.strict = plan, plan.schedule, rng, eager, strict
        self.known = known
        self.times = list(product(*(range(plan.mesh.axes[a]) for a in plan.mesh.time)))
        space = plan.mesh.space
        self.ranks = []
        for number, where in enumerate(product(*(range(n) for n in space.values()))):
            at = dict(zip(space, where, strict=True))
            lane = next(
                n for n in self.schedule.lanes if all(lo <= at[a] < hi for a, (lo, hi) in n.box.items())
            )
            rank = Rank(number, at, lane)
            self.ranks.append(rank)
            for k in range(len(self.times)):
                for name in self.cls(rank, k).program.inputs:
                    self.write(rank, k, name)
        self.buffers: dict[object, list[tuple[object, Mark]]] = {}

    def cls(self, rank: Rank, run: int) -> RankClass:
        key = rank.number, run
        if key not in self.known:
            at = dict(zip(self.plan.mesh.time, self.times[run], strict=True)) | rank.at
            self.known[key] = self.plan.class_of(at)
        return self.known[key]

    def once(self, cls: str, name: str | int) -> bool:
        return name in self.schedule.once.get(cls, ())

    # Memory -------------------------------------------------------------------------------------------------

    def place(self, rank: Rank, run: int, value: str) -> tuple[object, Mark]:
        """Where a value lies, and the mark of what is to lie there."""
        key = rank.number, run, value
        if key not in self.known:
            self.known[key] = self._place(rank, run, value)
        return self.known[key]

    def _place(self, rank: Rank, run: int, value: str) -> tuple[object, Mark]:
        cls = self.cls(rank, run)
        slots = {(s.cls, s.value): s for s in rank.lane.slots}
        ops = {op.out: op for op in cls.program.ops}
        while value in ops and ops[value].name in VIEWS and (cls.name, value) not in slots:
            value = ops[value].ins[0]
        turn = 0 if value in cls.program.inputs else run
        mark: Mark = ("value", value, turn)
        if value in ops:
            if self.over_time(ops[value]):
                turn, mark = 0, ("sum", ops[value].integer("seq"), len(self.times))
            elif self.once(cls.name, self.part(cls, value)):
                turn, mark = 0, ("value", value, 0)
        slot = slots.get((cls.name, value))
        if value in cls.program.inputs:  # one tensor of the rank, whichever of its programs reads it
            slot = next((s for s in rank.lane.slots if s.value == value), None)
        return (slot.first + turn % slot.count if slot else (mark[:2], turn)), mark

    def part(self, cls: RankClass, value: str) -> str | int:
        """The segment of an op, or the number of its meeting."""
        number = [op.out for op in cls.program.ops].index(value)
        for name, spans in self.schedule.segments.get(cls.name, {}).items():
            if any(lo <= number < hi for lo, hi in spans):
                return name
        return cls.program.ops[number].integer("seq")

    def over_time(self, op: Op) -> bool:
        return op.name in COLLECTIVES and self.plan.groups[op.text("group")].steps > 0

    def read(self, rank: Rank, run: int, value: str) -> Mark:
        where, mark = self.place(rank, run, value)
        found = rank.memory.get(where)
        if found != mark:
            raise Bad(f"rank {rank.number} reads {value} of run {run} and finds {found}")
        return mark

    def write(self, rank: Rank, run: int, value: str) -> None:
        where, mark = self.place(rank, run, value)
        rank.memory[where] = mark
        cls = self.cls(rank, run)
        for op in cls.program.ops:
            if self.over_time(op) and op.ins[0] == value:
                there, whole = self.place(rank, run, op.out)
                before = rank.memory.get(there)
                if before is None or before[:2] != whole[:2] or before == whole:
                    before = (*whole[:2], 0)
                assert isinstance(before[2], int)
                rank.memory[there] = (*whole[:2], before[2] + 1)

    # Steps --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end, or `Bad`."""
        while True:
            moves = [*self._moves()]
            if not moves:
                break
            kind, *what = self.rng.choice(moves)
            getattr(self, kind)(*what)
        stuck = [r for r in self.ranks if r.event < len(r.lane.events)]
        if stuck:
            raise Bad(f"rank {stuck[0].number} waits for ever at event {stuck[0].event}")
        for rank in self.ranks:
            if any(flight.left for flight in rank.flights.values()):
                raise Bad(f"rank {rank.number} leaves messages behind")
            for k in range(len(self.times)):
                for value in self.cls(rank, k).program.outputs.values():
                    self.read(rank, k, value)

    def _moves(self) -> Iterator[tuple[object, ...]]:
        for rank in self.ranks:
            if rank.event < len(rank.lane.events) and self._ready(rank, rank.lane.events[rank.event]):
                yield "advance", rank
            for flight in self._heads(rank):
                for item in flight.left:
                    if self._meets(flight, item) is not None:
                        yield "transfer", flight, item
                        break  # a batch's own order within a channel

    def _ready(self, rank: Rank, event: Event) -> bool:
        match event:
            case Wait(number):
                return not rank.flights[number].left
            case Batch(posted=False):
                return rank.event not in rank.flights or not rank.flights[rank.event].left
            case Run(segment, run):
                return self._inner(rank, segment, run) is not None
            case _:
                return True

    def _ops(self, rank: Rank, segment: str, run: int) -> list[Op]:
        cls = self.cls(rank, run)
        return [op for lo, hi in self.schedule.segments[cls.name][segment] for op in cls.program.ops[lo:hi]]

    def _inner(self, rank: Rank, segment: str, run: int) -> list[Rank] | None:
        """Who does the next op of a segment with this rank; a collective waits for all its members."""
        op = self._ops(rank, segment, run)[rank.step]
        if op.name not in COLLECTIVES:
            return [rank]
        mates = self.members(rank, op.text("group"))
        for mate in mates:
            event = mate.lane.events[mate.event] if mate.event < len(mate.lane.events) else None
            if not isinstance(event, Run):
                return None
            other = self._ops(mate, event.segment, event.run)[mate.step]
            if other.name not in COLLECTIVES or other.text("group") != op.text("group"):
                return None
        return mates

    def members(self, rank: Rank, group: str) -> list[Rank]:
        axes = self.plan.groups[group].axes
        return [r for r in self.ranks if all(r.at[a] == x for a, x in rank.at.items() if a not in axes)]

    def advance(self, rank: Rank) -> None:
        event = rank.lane.events[rank.event]
        if isinstance(event, Run):
            for mate in self._inner(rank, event.segment, event.run) or []:
                self._step(mate, rank)
            return
        if isinstance(event, Batch) and rank.event not in rank.flights:
            flight = Flight(rank.number, event, list(event.items))
            rank.flights[rank.event] = flight
            for line in self._lines(event):
                rank.queues.setdefault(line, []).append(flight)
            if not event.posted:
                return
        rank.event += 1

    def _step(self, rank: Rank, other: Rank) -> None:
        """One op of a segment."""
        event, there = rank.lane.events[rank.event], other.lane.events[other.event]
        assert isinstance(event, Run)
        assert isinstance(there, Run)
        ops = self._ops(rank, event.segment, event.run)
        op = ops[rank.step]
        if op.name in COLLECTIVES:
            met = self._ops(other, there.segment, there.run)
            same = [o for o in met if o.name in COLLECTIVES and o.attrs == op.attrs]
            if event.run != there.run or not same:
                raise Bad("a collective of a segment meets another one")
        for value in op.ins:
            self.read(rank, event.run, value)
        self.write(rank, event.run, op.out)
        rank.step += 1
        if rank.step == len(ops):
            rank.step, rank.event = 0, rank.event + 1

    def _lines(self, batch: Batch) -> set[str]:
        both = self.strict and any(i.end == "meet" for i in batch.items)
        return {batch.communicator} | ({"any collective"} if both else set())

    def _heads(self, rank: Rank) -> list[Flight]:
        """Batches that may start: the first open ones on all their communicators."""
        first = {line: next((f for f in flights if f.left), None) for line, flights in rank.queues.items()}
        found = {id(f): f for f in first.values() if f is not None}
        return [f for f in found.values() if all(first[line] is f for line in self._lines(f.batch))]

    def _peer(self, rank: Rank, item: Item) -> Rank:
        op = self.plan.messages(item.end, item.seq)[self.cls(rank, item.run).name]
        at = dict(zip(self.plan.mesh.time, self.times[item.run], strict=True)) | rank.at
        forms = zip(self.plan.mesh.axes, op.affines("to" if item.end == "send" else "from"), strict=True)
        there = {a: f.evaluate(at) for a, f in forms}
        return self.ranks[self.plan.mesh.rank(there)]

    def _first(self, rank: Rank, end: str, peer: Rank, communicator: str) -> tuple[Flight, Item] | None:
        """The next item of a channel, if its batch has started."""
        for flight in self._heads(rank):
            if flight.batch.communicator == communicator:
                for item in flight.left:
                    if item.end == end and self._peer(rank, item) is peer:
                        return flight, item
        return None

    def _meets(self, flight: Flight, item: Item) -> list[tuple[Flight, Item]] | None:
        """All ends of what an item is part of, once all are there. By order: nobody looks at numbers."""
        rank, on = self.ranks[flight.rank], flight.batch.communicator
        if item.end == "meet":
            cls = self.cls(rank, item.run)
            group = self.plan.rendezvous(item.seq)[cls.name].text("group")
            found = []
            for mate in self.members(rank, group):
                nexts = [
                    (f, i)
                    for f in self._heads(mate)
                    if f.batch.communicator == on
                    for i in f.left
                    if i.end == "meet"
                    and self.plan.rendezvous(i.seq)[self.cls(mate, i.run).name].text("group") == group
                ]
                if not nexts:
                    return None
                found.append(nexts[0])
            return found
        peer = self._peer(rank, item)
        if item.end == "send":
            if self._first(rank, "send", peer, on) != (flight, item):
                return None
            if self.eager:
                return [(flight, item)]
            there = self._first(peer, "recv", rank, on)
            return None if there is None else [(flight, item), there]
        if self.eager and self._first(rank, "recv", peer, on) == (flight, item):
            return [(flight, item)] if self.buffers.get((peer.number, rank.number, on)) else None
        return None

    def transfer(self, flight: Flight, item: Item) -> None:
        ends = self._meets(flight, item)
        assert ends is not None
        for f, i in ends:
            f.left.remove(i)
        rank = self.ranks[flight.rank]
        if item.end == "meet":
            if len({(i.seq, i.run) for _, i in ends}) > 1:
                raise Bad(f"collectives {[(i.seq, i.run) for _, i in ends]} meet")
            for f, i in ends:
                mate = self.ranks[f.rank]
                op = self.plan.rendezvous(i.seq)[self.cls(mate, i.run).name]
                self.read(mate, i.run, op.ins[0])
                self.write(mate, i.run, op.out)
            return
        peer = self._peer(rank, item)
        if item.end == "send":
            op = self.plan.messages("send", item.seq)[self.cls(rank, item.run).name]
            mark = self.read(rank, item.run, op.ins[0])
            self.buffers.setdefault((rank.number, peer.number, flight.batch.communicator), []).append(
                ((item.seq, item.run), mark)
            )
            if not self.eager:
                self._receive(peer, ends[1][1], rank, flight.batch.communicator)
        else:
            self._receive(rank, item, peer, flight.batch.communicator)

    def _receive(self, rank: Rank, item: Item, source: Rank, on: str) -> None:
        which, _ = self.buffers[source.number, rank.number, on].pop(0)
        if which != (item.seq, item.run):
            raise Bad(f"rank {rank.number} receives {which} for {item.seq} of run {item.run}")
        self.write(rank, item.run, self.plan.messages("recv", item.seq)[self.cls(rank, item.run).name].out)


def trouble(plan: Plan, seed: int, interleavings: int = 12) -> str:
    """What goes wrong in one of so many interleavings, with and without buffers; or nothing."""
    rng = random.Random(seed)
    known: dict[object, Any] = {}
    for k in range(interleavings):
        try:
            Simulation(plan, rng, eager=k % 2 == 1, strict=k % 4 < 2, known=known).run()
        except Bad as error:
            return str(error)
    return ""
