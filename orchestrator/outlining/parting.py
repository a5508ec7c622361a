"""The parts of a class that its schedule orders: segments, cut where calls take a part of what one holds.

What happens once when runs are joined is a part of its own. So is what a call with collectives does once: it
has to stand beside these collectives, wherever the ranks were seen to do the rest of the segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import networkx as nx

from certificates.errors import FormatError
from certificates.plan.affine import Range
from certificates.plan.calls import Call
from certificates.plan.ops import COLLECTIVES
from certificates.plan.program import Op, Program

from .flow import executed
from .slices import AFTER, BEFORE

#: A segment, or the number of a collective.
Part = str | int


class Parting:
    """The parts of one class. ``near`` is the program whose parts became the ``calls``, ``flat`` are the ops
    that the segments speak of, and both name values alike; ``phase`` says when each flat value is computed.

    ``of`` has the ops of each part, ``order`` the parts of each segment, ``at`` the part of each value, and
    ``ahead`` of work beside a call's collectives whether one of these reads it.
    """

    def __init__(
        self,
        cls: str,
        flat: Sequence[Op],
        near: Program,
        calls: Sequence[Call],
        segments: Mapping[str, Sequence[Range]],
        phase: Mapping[str, int],
    ) -> None:
        self._phase = phase
        producer = {op.out: op for op in near.ops}
        self.cones = [_cone(producer, call) for call in calls]
        shared = Counter(v for cone in self.cones for v in cone)  # each call computes it anew
        self._met = {op.out for op in near.ops if op.name in COLLECTIVES}
        self._call: dict[str, tuple[int, bool]] = {}
        for k, cone in enumerate(self.cones):
            when = {phase.get(v) for v in cone if producer[v].name in COLLECTIVES}
            if len(when) == 1 and when <= {BEFORE, AFTER}:
                own = [v for v in cone if phase.get(v) in when and shared[v] == 1]
                read = _read(producer, cone)
                self._call |= {v: (k, v in read) for v in own}
        self.of: dict[str, list[Op]] = {}
        self.order: dict[str, list[str]] = {}
        self.ahead: dict[str, bool] = {}
        for segment, ranges in segments.items():
            self._part(segment, [op for lo, hi in ranges for op in flat[lo:hi]])
        if len(self.of) != sum(map(len, self.order.values())):
            raise FormatError(f"class {cls} has segments of the names of others")
        self.at: dict[str, Part] = {op.out: s for s, ops in self.of.items() for op in ops}
        for op in flat:
            if op.name in COLLECTIVES and op.out not in self.at:
                self.at[op.out] = op.integer("seq")
        for call, cone in zip(calls, self.cones, strict=True):  # what outlining has made stands with the rest
            made = [self.at[v] for v in cone if v in self.at]
            self.at |= {v: made[-1] for v in call.results if made and v not in self.at}

    def beside(self, value: str) -> bool:
        """Is a value computed beside the collectives of a call?"""
        return value in self._call and self.at[value] in self.ahead

    def anew(self, part: str) -> set[str]:
        """What a call computes that other calls, or the rest of the program, compute too: each for itself."""
        call = self._call.get(self.of[part][0].out) if part in self.ahead else None
        cone = self.cones[call[0]] if call is not None else ()
        return {v for v in cone if v not in self._call and v not in self._met}

    def _part(self, segment: str, ops: Sequence[Op]) -> None:
        """Cut a segment, its parts in an order in which they can be done.

        What is no part of a call is cut where a call's part stands amid it.
        """
        whole = any(op.name in COLLECTIVES for op in ops)
        kinds: dict[str, tuple[bool, tuple[int, bool] | None]] = {}
        level: dict[str, int] = {}
        parts: dict[object, list[Op]] = {}
        for op in ops:
            call = None if whole else self._call.get(op.out)
            kind = kinds[op.out] = (not whole and self._phase[op.out] == AFTER, call)
            made = [v for v in op.ins if v in level]
            level[op.out] = max((level[v] + (kinds[v] != kind) for v in made), default=0)
            parts.setdefault((kind, 0 if call else level[op.out]), []).append(op)
        of = {op.out: i for i, each in enumerate(parts.values()) for op in each}
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(parts)))
        graph.add_edges_from((of[v], of[op.out]) for op in ops for v in op.ins if v in of)
        graph.remove_edges_from(list(nx.selfloop_edges(graph)))
        if not nx.is_directed_acyclic_graph(graph):
            raise FormatError(f"segment {segment} has parts of calls that need one another")
        each = list(parts.values())
        names = self._names(segment, [kinds[of[0].out] for of in each])
        self.order[segment] = [names[i] for i in nx.lexicographical_topological_sort(graph)]
        for name, made_of in zip(names, each, strict=True):
            self.of[name] = made_of
            call = kinds[made_of[0].out][1]
            if call is not None:
                self.ahead[name] = call[1]

    def _names(self, segment: str, kinds: Sequence[tuple[bool, tuple[int, bool] | None]]) -> list[str]:
        """The first part of no call has the segment's name; if that is cut by phases only, then `late`."""
        first = min(range(len(kinds)), key=lambda i: (kinds[i][1] is not None, kinds[i][0], i))
        plain = len(kinds) == 2 and all(call is None for _, call in kinds)
        return [
            segment if i == first else f"{segment}_late" if plain else f"{segment}_{i}"
            for i in range(len(kinds))
        ]


def _cone(producer: Mapping[str, Op], call: Call) -> list[str]:
    """What a call computes, operands first."""
    given = set(call.ins)
    inside, work = set[str](), list(call.results)
    while work:
        value = work.pop()
        if value in producer and value not in inside and value not in given:
            inside.add(value)
            work += producer[value].ins
    reads = ((v, [w for w in producer[v].ins if w in inside]) for v in inside)
    return list(executed(reads, [v for v in call.results if v in inside]))


def _read(producer: Mapping[str, Op], cone: Sequence[str]) -> set[str]:
    """Those of a call's values that a collective of it reads, or what such a one is made of."""
    found = set[str]()
    for value in reversed(cone):
        if producer[value].name in COLLECTIVES or value in found:
            found.update(producer[value].ins)
    return found
