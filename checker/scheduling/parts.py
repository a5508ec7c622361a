"""What a schedule orders in one rank class: segments of its program, ends of messages, collectives.

Every op stands in exactly one of them, so that a schedule is of this plan; sums and stacks over runs stand in
none: a result is there as soon as the last run has given its operand. A segment that runs *once* for all runs
holds only what is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ..errors import Rejected
from ..language.affine import Affine
from ..language.ops import COLLECTIVES, MESSAGES, Op
from ..language.plan import Plan, Program, Site
from ..language.schedule import Key, Schedule

END = 1 << 40
"""After all ops of an event."""
VIEWS = frozenset(("reshape", "transpose", "slice", "broadcast_in_dim", "convert", "send"))
Meeting = tuple[Site | None, int, str]
"""A collective in a segment: the call that it stands in, its number, its group."""


@dataclass(frozen=True)
class Parts:
    """Of one class: its runs by number; what is ordered, and whether once; where a value is made (part, and
    number of the op from which on it is written); what a part reads, and the last op that reads it; the
    collectives of a segment in order; sums and stacks over runs by result; views of a value."""

    runs: tuple[int, ...]
    once: dict[Key, bool] = field(default_factory=dict)
    makes: dict[str, tuple[Key, int]] = field(default_factory=dict)
    reads: dict[Key, dict[str, int]] = field(default_factory=dict)
    meets: dict[str, list[Meeting]] = field(default_factory=dict)
    joins: dict[str, Op] = field(default_factory=dict)
    views: dict[str, list[str]] = field(default_factory=dict)


def wrong(detail: str, where: str) -> Rejected:
    return Rejected(23, detail[:300], where[:120])


def numbers(sides: Sequence[Iterable[int]], sizes: Sequence[int]) -> list[int]:
    """The numbers of the runs at these time coordinates, row-major."""
    found = [0]
    for side, size in zip(sides, sizes, strict=True):
        line = tuple(side)
        found = [k * size + t for k in found for t in line]
    return found


def parts(plan: Plan, schedule: Schedule, c: str) -> Parts:
    """What there is to be ordered in a class; `Rejected` where the schedule is not of its program."""
    where, program = f"class {c}", plan.program(c)
    box = [side for (a, _), side in zip(plan.mesh, plan.classes[c].box, strict=True) if a in plan.time]
    found = Parts(tuple(numbers([range(*side) for side in box], [n for a, n in plan.mesh if a in plan.time])))
    owner = _owners(schedule, c, len(program.ops))
    site = {r: (s, results) for s, (_, results) in program.calls.items() for r in results}
    number = {op.result: i for i, op in enumerate(program.ops)}
    for i, op in enumerate(program.ops):
        group = plan.groups[op.attrs["group"]] if op.name in COLLECTIVES else None
        if op.name in MESSAGES or group is not None:
            if i in owner and (group is None or group.runs):
                raise wrong(f"{op.result} {op.name} is a part of its own, not of segment {owner[i]}", where)
            if group is not None and group.runs:
                found.joins[op.result] = op
                continue
        elif i not in owner:
            raise wrong(f"{op.result} {op.name} stands in no segment", where)
        key: Key = (
            ("run", owner[i]) if i in owner else (op.name if group is None else "meet", op.attrs["seq"])
        )
        found.once[key] = False
        start = i
        if op.result in site:
            start = number[site[op.result][1][0]]
            if owner[start] != owner[i]:
                raise wrong(f"the results of the call at {op.result} stand in two segments", where)
        found.makes[op.result] = key, start
        for base in _shared(plan, c, op, site):
            found.views.setdefault(base, []).append(op.result)
        last = END if i not in owner else i
        reads = found.reads.setdefault(key, {})
        order = program.after.get(op.result)
        reads |= {o: max(last, reads.get(o, 0)) for o in (*op.operands, *([order] if order else ()))}
        if i in owner:
            meets = found.meets.setdefault(owner[i], [])
            if group is not None:
                meets.append((None, op.attrs["seq"], group.name))
            elif start == i and op.result in site:
                meets += _inside(plan, c, site[op.result][0])
    _once(plan, schedule, c, found)
    return found


def _owners(schedule: Schedule, c: str, count: int) -> dict[int, str]:
    """The segment of every op that is in one."""
    owner: dict[int, str] = {}
    for segment, spans in schedule.segments.get(c, {}).items():
        before = 0
        for low, high in spans:
            if not before <= low < high <= count:
                raise wrong(f"segment {segment} has ops {low} to {high}, of {count}", f"class {c}")
            for i in range(low, high):
                if owner.setdefault(i, segment) != segment:
                    raise wrong(f"op {i} stands in the segments {owner[i]} and {segment}", f"class {c}")
            before = high
    return owner


def _inside(plan: Plan, c: str, site: Site) -> Iterator[Meeting]:
    """The collectives of a call."""
    for op in plan.functions[site[0]].program(plan.role(site[0], c)).ops:
        if op.name in COLLECTIVES:
            if plan.groups[op.attrs["group"]].runs:
                raise wrong(f"function {site[0]} joins runs: a call is not a part of one run", f"class {c}")
            yield site, op.attrs["seq"], op.attrs["group"]


def _shared(plan: Plan, c: str, op: Op, site: Mapping[str, tuple[Site, tuple[str, ...]]]) -> Iterator[str]:
    """The values whose memory a result may share: what a view shows, what a function hands back of its
    operands, and other results of the call that show the same."""
    if op.name != "call":
        yield from op.operands[:1] if _view(op) else ()
        return
    body = _body(plan, c, op.attrs["function"])

    def root(value: str) -> str:
        while value in body.producers and _view(body.producers[value]):
            value = body.producers[value].operands[0]
        return value

    own = root(op.attrs["value"])
    if own in body.inputs:
        yield op.operands[list(body.inputs).index(own)]
    for result in site[op.result][1]:
        other = plan.program(c).producers[result].attrs["value"]
        if result != op.result and root(other) == own:
            yield result


def _body(plan: Plan, c: str, function: str) -> Program:
    """What a class runs at a call of a function."""
    return plan.functions[function].program(plan.role(function, c))


def _view(op: Op) -> bool:
    return op.name in VIEWS and op.ins[0].dtype == op.type.dtype


def _once(plan: Plan, schedule: Schedule, c: str, found: Parts) -> None:
    """Marks what happens once, and sees that it is the same in all runs."""
    where, program = f"class {c}", plan.program(c)
    for name in schedule.once.get(c, ()):
        kinds = ("run",) if isinstance(name, str) else ("send", "recv", "meet")
        keys: list[Key] = [(kind, name) for kind in kinds if (kind, name) in found.once]
        if not keys:
            raise wrong(f"{name} is to happen once, and is no segment and no meeting outside of one", where)
        found.once.update(dict.fromkeys(keys, True))
    every = {g for g, group in plan.groups.items() if set(group.axes) == set(plan.time)}
    inside = cache(lambda f: any(_mentions(plan, o) for o in _body(plan, c, f).ops))
    for op in program.ops:
        key = found.makes[op.result][0] if op.result in found.makes else None
        if key is None or not found.once[key]:
            continue
        if _mentions(plan, op) or (op.name == "call" and inside(op.attrs["function"])):
            raise wrong(f"{op.result} {op.name} happens once, and is not the same in all runs", where)
        for o in op.operands:
            alike = o in program.inputs or (
                found.joins[o].attrs["group"] in every if o in found.joins else found.once[found.makes[o][0]]
            )
            if not alike:
                raise wrong(f"{op.result} {op.name} happens once, and reads {o} of one run", where)


def _mentions(plan: Plan, op: Op) -> bool:
    """Does an op depend on its time? A message keeps its own, which its first forms say."""
    forms = [v for v in op.attrs.values() if isinstance(v, Affine)]
    for name in ("start", "to", "from"):
        forms += op.attrs.get(name, ())[len(plan.time) if name != "start" else 0 :]
    return any(not f.names().isdisjoint(plan.time) for f in forms)
