"""How lanes wait for one another: channels in order, collectives in one order, and no circle of waiting.

A batch is done when the other ends of all its messages, and the other members of its collectives, are there
(no buffers); batches of a rank follow one another on a communicator, collectives on whatever communicator. So
a time for every event, which grows in this order and is one at both ends, is a way for all ranks to come to
the end, and any other way comes there too: which end meets which does not depend on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from ..language.plan import Group, Plan, apart
from ..language.schedule import Event, Item, When
from .lane import Unsafe, Walk, told
from .parts import wrong

Spot = tuple[str, int]
"""An event of a lane."""
ANY = ""
"""Where all collectives of a rank follow one another."""


class Transport:
    """All lanes together. `needs` are the events of its lane that an event comes after; `met` are the events
    that happen at the same time, by what they meet for; `joins` is the same by event."""

    def __init__(self, plan: Plan, walks: Mapping[str, Walk]) -> None:
        self.plan, self.walks = plan, walks
        self.space = [i for i, (a, _) in enumerate(plan.mesh) if a not in plan.time]
        self.needs = {name: [*self._needs(walk)] for name, walk in walks.items()}
        self.met: dict[Hashable, list[tuple[Spot, Hashable]]] = {}
        self._ends: dict[Hashable, str] = {}
        self._sizes: dict[Hashable, int] = {}
        self._lines: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {}
        self._meet()

    # Order within a lane ------------------------------------------------------------------------------------

    def _needs(self, walk: Walk) -> Iterator[tuple[int, ...]]:
        """For each event the last before it that the rank waits for, and on its communicators."""
        last, queue = -1, dict[str, int]()
        for i, event in enumerate(walk.lane.events):
            lines = self._lines_of(walk, event)
            before = {last, *(queue.get(line, -1) for line in lines)}
            before |= {event.run} if event.kind == "wait" else set()
            yield tuple(sorted(before - {-1}))
            queue |= dict.fromkeys(lines, i)
            last = last if event.kind == "post" else i

    def _lines_of(self, walk: Walk, event: Event) -> set[str]:
        """The communicators that an event uses, and `ANY` for collectives."""
        if event.kind == "wait":
            return set()
        if event.kind != "run":
            return {event.on} | {ANY for key, _ in event.items if key[0] == "meet"}
        meets = walk.parts[walk.at[event.items[0].run]].meets[str(event.items[0].key[1])]
        return {group for _, _, group in meets} | {ANY for _ in meets[:1]}

    # Meetings -----------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        channels: dict[tuple[str, str, str], tuple[list[tuple[Item, Spot]], list[tuple[Item, Spot]]]] = {}
        for name, walk in self.walks.items():
            for i, event in enumerate(walk.lane.events):
                batch = tuple(item for item in event.items if item.key[0] == "meet")
                for item in event.items:
                    (kind, seq), run = item
                    spot, part = (name, i), walk.parts[walk.at[run]]
                    if kind == "run":
                        meets = tuple(part.meets[str(seq)])
                        for site, number, group in meets:
                            self._collective(walk, (site, number, run), group, spot, meets)
                    elif kind == "meet":
                        group = self.plan.rendezvous[int(seq)][walk.at[run]].attrs["group"]
                        self._collective(walk, (None, seq, run), group, spot, (event.on, *batch))
                    else:
                        other = self._end(walk, item)
                        ends = (name, other) if kind == "send" else (other, name)
                        channel = channels.setdefault((*ends, event.on), ([], []))
                        channel[kind == "recv"].append((item, spot))
                        self.met.setdefault((*ends, seq, run), []).append((spot, None))
        for (source, target, on), (sent, received) in channels.items():
            self._in_order(f"from {source} to {target} on {on}", sent, received)
        for key, found in self.met.items():
            self._all_there(key, found)

    def _end(self, walk: Walk, item: Item) -> str:
        """The lane of the other end, which all ranks of this lane reach."""
        (kind, seq), run = item
        c = walk.at[run]
        op = getattr(self.plan.messages[int(seq)], kind)[c]
        forms = [op.attrs["to" if kind == "send" else "from"][i] for i in self.space]
        varies = any(not f.names().isdisjoint(self.plan.time) for f in forms)
        key = walk.lane.name, c, item.key, run if varies else -1
        if key not in self._ends:
            box = self.plan.box(c) | dict(
                zip((self.plan.mesh[i][0] for i in self.space), walk.lane.box, strict=True)
            )
            if varies:
                for axis, size in reversed(walk.time):
                    run, t = divmod(run, size)
                    box[axis] = (t, t + 1)
            spans = [f.interval(box) for f in forms]
            for name, other in self.walks.items():
                if all(lo <= a and b < hi for (a, b), (lo, hi) in zip(spans, other.lane.box, strict=True)):
                    self._ends[key] = name
                    break
            else:
                raise wrong(f"{kind} {seq} goes to ranks of several lanes: cut it alike", walk.where)
        return self._ends[key]

    def _collective(
        self, walk: Walk, key: tuple[Hashable, ...], group: str, spot: Spot, tag: Hashable
    ) -> None:
        line = self._line(self.plan.groups[group])[walk.lane.name]
        self.met.setdefault((group, line, *key), []).append((spot, tag))

    def _line(self, group: Group) -> dict[str, tuple[tuple[int, int], ...]]:
        """For each lane its box without the axes of a group: lanes with the same have members of each other's
        lists, all others have none."""
        if group.name not in self._lines:
            if not group.factorised:
                raise wrong("its lists are not the fibres of its axes", f"group {group.name}")
            rest = [j for j, i in enumerate(self.space) if self.plan.mesh[i][0] not in group.axes]
            lines = {n: tuple(walk.lane.box[j] for j in rest) for n, walk in self.walks.items()}
            kinds = list(dict.fromkeys(lines.values()))
            if any(not apart(a, b) for i, a in enumerate(kinds) for b in kinds[:i]):
                raise wrong("lanes share some of its lists, not all: cut them alike", f"group {group.name}")
            self._lines[group.name] = lines
            for line in lines.values():
                self._sizes[group.name, line] = self._sizes.get((group.name, line), 0) + 1
        return self._lines[group.name]

    def _in_order(self, where: str, sent: list[tuple[Item, Spot]], received: list[tuple[Item, Spot]]) -> None:
        """On each channel the k-th message that is sent is the k-th that is received."""
        for k in range(max(len(sent), len(received))):
            pair = [line[k] if k < len(line) else None for line in (sent, received)]
            ids = [(p[0].key[1], p[0].run) if p else None for p in pair]
            if ids[0] != ids[1]:
                said = [f"{i[0]} of run {i[1]}" if i else "nothing" for i in ids]
                marked = [p[1] for p in pair if p]
                raise Unsafe(
                    f"{where}, message {k + 1}: {said[0]} is sent, and {said[1]} is received", *marked
                )

    def _all_there(self, key: Hashable, found: list[tuple[Spot, Hashable]]) -> None:
        """Every lane of a collective takes part, alike."""
        if isinstance(key, tuple) and found[0][1] is not None:
            group, line, _, seq, run = key
            spots = [spot for spot, _ in found]
            if len(spots) < self._sizes[group, line]:
                lines, there = self._lines[group], {name for name, _ in spots}
                absent = [n for n in lines if lines[n] == line and n not in there]
                raise Unsafe(f"collective {seq}, run {run}: lane {absent[0]} does not take part", *spots)
            odd = next((spot for spot, tag in found if tag != found[0][1]), None)
            if odd is not None:
                raise Unsafe(
                    f"collective {seq}, run {run}: lanes {spots[0][0]} and {odd[0]} issue it with others, or "
                    "on another communicator",
                    spots[0],
                    odd,
                )

    # The certificate ----------------------------------------------------------------------------------------

    def check(self, when: When) -> None:
        """Times that grow, or a circle that shows that there are none."""
        if when.circle:
            self._circle(when.circle)
        events = {name: len(walk.lane.events) for name, walk in self.walks.items()}
        if {name: len(line) for name, line in when.times.items()} != events:
            raise wrong("every event has one time", "when")
        for name, needs in self.needs.items():
            line = when.times[name]
            for i, before in enumerate(needs):
                for j in before:
                    if line[j] >= line[i]:
                        raise wrong(f"event {i} is not after event {j}", f"lane {name}")
        for found in self.met.values():
            (first, i), _ = found[0]
            for (name, j), _ in found:
                if when.times[name][j] != when.times[first][i]:
                    raise wrong(
                        f"event {j} of lane {name} and event {i} of lane {first} meet at two times", "when"
                    )

    def _circle(self, circle: tuple[Spot, ...]) -> None:
        """Each event comes before the next, or meets it, and the last one before the first."""
        joins: dict[Spot, set[Hashable]] = {}
        for key, found in self.met.items():
            for spot, _ in found:
                joins.setdefault(spot, set()).add(key)
        strict = 0
        for (a, i), (b, j) in zip(circle, (*circle[1:], circle[0]), strict=True):
            for name, k in ((a, i), (b, j)):
                if name not in self.needs or k >= len(self.needs[name]):
                    raise wrong(f"there is no event {k} of lane {name}", "circle")
            if a == b and i in self.needs[a][j]:
                strict += 1
            elif joins.get((a, i), set()).isdisjoint(joins.get((b, j), set())):
                raise wrong(f"event {i} of lane {a} need not come before event {j} of lane {b}", "circle")
        if not strict:
            raise wrong("all its events may happen at the same time", "circle")
        said = [f"{n} {i} ({told(self.walks[n].lane.events[i])})" for n, i in circle[:8]]
        more = " -> ..." if len(circle) > 8 else ""
        raise Unsafe(f"{len(circle)} events wait for one another: {' -> '.join(said)}{more}", *circle)
