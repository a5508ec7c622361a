"""When the events of a schedule happen: the longest path to each, or a circle of events that wait.

This is the certificate that ``tv-check`` tests in linear time. What a rank reads too early, or whose ends do
not fit, needs none: the checker sees it in the schedule.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import networkx as nx

from certificates.plan.affine import Range
from certificates.plan.ops import CALL, COLLECTIVES
from certificates.plan.plan import Plan, RankClass
from certificates.plan.schedule import Batch, Event, Item, Lane, Run, Schedule, Wait
from certificates.proof.when import Spot, When

#: A collective of a rank follows the one before it, whatever their communicators.
_ANY = ""


def when(plan: Plan) -> When | None:
    """The certificate of a plan's schedule, if it has one."""
    if plan.schedule is None:
        return None
    return _Lanes(plan, plan.schedule).when()


class _Lanes:
    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self.plan, self.schedule = plan, schedule
        self.runs = [plan.mesh.axes[a] for a in plan.mesh.time]
        #: Classes by lane and run, which are asked for at each event.
        self._classes: dict[tuple[str, int], str] = {}
        self.inside = {
            (c.name, segment): tuple(self._collectives(c, spans))
            for c in plan.classes
            for segment, spans in schedule.segments.get(c.name, {}).items()
        }

    def when(self) -> When:
        """Events that meet are one node."""
        spots = [(lane.name, i) for lane in self.schedule.lanes for i in range(len(lane.events))]
        meetings = nx.Graph()
        meetings.add_nodes_from(spots)
        for lane in self.schedule.lanes:
            for i, event in enumerate(lane.events):
                meetings.add_edges_from(((lane.name, i), ("", key)) for key in self._meetings(lane, event))
        node = {
            spot: number for number, part in enumerate(nx.connected_components(meetings)) for spot in part
        }
        order = nx.DiGraph()
        order.add_nodes_from(node[spot] for spot in spots)
        for lane in self.schedule.lanes:
            for before, after in self._order(lane):
                a, b = (lane.name, before), (lane.name, after)
                order.add_edge(node[a], node[b], step=(a, b))
        try:
            level: dict[int, int] = {}
            for n in nx.topological_sort(order):
                level[n] = 1 + max((level[p] for p in order.predecessors(n)), default=-1)
        except nx.NetworkXUnfeasible:
            return When({}, tuple(self._circle(order, meetings)))
        return When(
            {n.name: tuple(level[node[n.name, i]] for i in range(len(n.events))) for n in self.schedule.lanes}
        )

    @staticmethod
    def _circle(order: nx.DiGraph, meetings: nx.Graph) -> Iterator[Spot]:
        """Steps within lanes, joined by ways through meetings."""
        steps = [order.edges[edge[:2]]["step"] for edge in nx.find_cycle(order)]
        for (a, b), (after, _) in zip(steps, steps[1:] + steps[:1], strict=True):
            yield a
            yield from (spot for spot in nx.shortest_path(meetings, b, after) if spot[0] and spot != after)

    def _order(self, lane: Lane) -> Iterator[tuple[int, int]]:
        """Which event of a lane comes before which."""
        last, queue = -1, dict[str, int]()
        for i, event in enumerate(lane.events):
            lines = self._lines(lane, event)
            before = {last, *(queue.get(line, -1) for line in lines)}
            before |= {event.event} if isinstance(event, Wait) and event.event < i else set()
            yield from ((j, i) for j in sorted(before - {-1}))
            queue |= dict.fromkeys(lines, i)
            last = last if isinstance(event, Batch) and event.posted else i

    def _lines(self, lane: Lane, event: Event) -> set[str]:
        """The communicators that an event uses."""
        match event:
            case Batch(communicator, items):
                return {communicator} | {_ANY for item in items if item.end == "meet"}
            case Run(segment, run):
                inside = self.inside.get((self._class(lane, run), segment), ())
                return {group for _, _, group in inside} | {_ANY for _ in inside[:1]}
            case Wait():
                return set()

    def _meetings(self, lane: Lane, event: Event) -> Iterator[Hashable]:
        """What an event meets for: equal keys meet."""
        if isinstance(event, Run):
            for site, seq, group in self.inside.get((self._class(lane, event.run), event.segment), ()):
                yield "collective", site, seq, event.run, self._line(lane, group)
        for item in event.items if isinstance(event, Batch) else ():
            cls = self.plan.by_class.get(self._class(lane, item.run))
            if item.end == "meet" and cls is not None:
                op = self.plan.rendezvous(item.seq).get(cls.name)
                if op is not None:
                    yield "collective", None, item.seq, item.run, self._line(lane, op.text("group"))
            elif cls is not None:
                other = self._other(lane, cls, item)
                ends = (lane.name, other) if item.end == "send" else (other, lane.name)
                yield "message", *ends, item.seq, item.run

    def _line(self, lane: Lane, group: str) -> tuple[str, tuple[Range, ...]]:
        axes = self.plan.groups[group].axes
        return group, tuple(side for axis, side in lane.box.items() if axis not in axes)

    def _other(self, lane: Lane, cls: RankClass, item: Item) -> str:
        """The lane that the first rank of this one reaches."""
        op = self.plan.messages(item.end, item.seq).get(cls.name)
        if op is None:
            return ""
        at = self._time(item.run) | {a: lo for a, (lo, _) in lane.box.items()}
        forms = zip(self.plan.mesh.axes, op.affines("to" if item.end == "send" else "from"), strict=True)
        there = {axis: form.evaluate(at) for axis, form in forms}
        return next(
            (
                n.name
                for n in self.schedule.lanes
                if all(lo <= there[a] < hi for a, (lo, hi) in n.box.items())
            ),
            "",
        )

    def _class(self, lane: Lane, run: int) -> str:
        if (lane.name, run) not in self._classes:
            self._classes[lane.name, run] = self._class_at(lane, run)
        return self._classes[lane.name, run]

    def _class_at(self, lane: Lane, run: int) -> str:
        at = self._time(run) | {a: lo for a, (lo, _) in lane.box.items()}
        if any(t >= n for t, n in zip(at.values(), self.runs, strict=False)):
            return ""
        return self.plan.class_of(at).name

    def _time(self, run: int) -> dict[str, int]:
        """The time coordinates of a run; the first is too large where there is no such run."""
        out: dict[str, int] = {}
        for axis, size in list(zip(self.plan.mesh.time, self.runs, strict=True))[:0:-1]:
            run, out[axis] = divmod(run, size)
        return {axis: out.get(axis, run) for axis in self.plan.mesh.time}

    def _collectives(self, cls: RankClass, spans: tuple[Range, ...]) -> Iterator[tuple[Hashable, int, str]]:
        """The collectives of a segment, calls written out."""
        for op in (op for low, high in spans for op in cls.program.ops[low:high]):
            if op.name in COLLECTIVES:
                yield None, op.integer("seq"), op.text("group")
            elif op.name == CALL and not op.integer("output"):
                site = op.text("function"), op.integer("instance")
                for inner in self.plan.body(site[0], cls.name).ops:
                    if inner.name in COLLECTIVES:
                        yield site, inner.integer("seq"), inner.text("group")
