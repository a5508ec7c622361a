"""Layers with packed rows: a function has none, so a repetition is cut where rows are packed and put back.

What names an order of rows, or acts on rows in it, stays where it is, and so does what shows in which range
the keys of a sort lie: that has to be evident in the program that sorts. The rest of a layer becomes several
functions, its *parts*: what is computed before its rows are packed, and each time that they were put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from certificates.plan.ops import PACKED
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.rows import lowered
from certificates.plan.timing import needed_version

from .buffers import buffers
from .flow import CHEAP, Flow
from .preludes import LEAST_OPS
from .regions import Instance, Region

#: Of these ops the results are no rows, but a row for each slot, or for each key.
_BACK = ("unpack", "ragged_outer")
#: What keeps the range of integers, as the checks of keys see it (``certificates/plan/keys.py``).
_MOVES = ("convert", "reshape", "broadcast_in_dim", "transpose", "slice", "select", "maximum", "minimum")
#: The level of what is in no part.
NOWHERE = -1
#: Of these, what is not computed again wherever it is needed.
_ONCE = ("reduce", "concatenate", "all_gather", "all_to_all")


def packed(plan: Plan) -> bool:
    """Has a program of the plan packed rows?"""
    return any(p.rows for p in (plan.specification, *(c.program for c in plan.classes)))


def written(program: Program) -> Program:
    """The program with its packed ops as a file has them."""
    return program if program.rows is None else Program(program.inputs, program.written, program.outputs)


def unread(plan: Plan) -> Plan:
    """The plan whose programs are as they are written, not lowered."""
    classes = tuple(replace(c, program=written(c.program)) for c in plan.classes)
    return replace(plan, specification=written(plan.specification), classes=classes)


def read_again(plan: Plan) -> Plan:
    """The plan whose programs are as they are written, lowered, in the version that it needs."""
    classes = tuple(replace(c, program=lowered(c.program, plan.groups, plan.mesh)) for c in plan.classes)
    plain = replace(plan, specification=lowered(plan.specification, plan.groups, None), classes=classes)
    return replace(plain, version=needed_version(plain))


def apart(program: Program) -> frozenset[str]:
    """The values of a written program that no function computes."""
    producer = {op.out: op for op in program.ops}
    rows, found, keys = set[str](), set[str](), list[str]()
    for op in program.ops:
        if op.name in PACKED or not rows.isdisjoint(op.ins):
            found.add(op.out)
            keys += op.ins if op.name == "sort_rows" else ()
            if op.name not in _BACK:
                rows.add(op.out)
    seen = set[str]()
    while keys:
        value = keys.pop()
        if value in producer and value not in seen and producer[value].name in (*_MOVES, *_ONCE):
            seen.add(value)
            keys += producer[value].ins[producer[value].name == "select" :]
    return frozenset(found | {value for value in seen if producer[value].name in _ONCE})


def parts(regions: Mapping[str, Region], *, timed: bool = False) -> Iterator[dict[str, Region]]:
    """What one repetition of all programs becomes: itself, or its parts, but for those of a few ops; nothing
    where some program packs rows and another does not, or not as often one after the other.

    Not all programs have instances. Where it counts when a part is computed (``timed``), what stands behind
    the packing and is not needed for it is a part with what follows, and there are no buffers.
    """
    cut = {owner: _cut(region, timed) for owner, region in regions.items()}
    levels = {len(of) for owner, of in cut.items() if regions[owner].instances}
    for level in range(levels.pop()) if len(levels) == 1 else ():
        part = {o: of[level] if of else Region(regions[o].flow, {}, regions[o].name) for o, of in cut.items()}
        some = [of for o, of in part.items() if regions[o].instances]
        sizes = [max((len(i.ops) for i in of.instances.values()), default=0) for of in some]
        if len(cut["s"]) == 1 or (min(sizes) > 0 and max(sizes) >= LEAST_OPS):
            yield part


def _cut(region: Region, timed: bool) -> list[Region]:
    """The parts of every instance, those first that need no other one."""
    flow = region.flow
    cut = {label: _members(flow, instance, timed) for label, instance in region.instances.items()}
    found: list[dict[int, Instance]] = [{} for _ in range(max(map(len, cut.values()), default=0))]
    for label, instance in region.instances.items():
        for level, of in enumerate(cut[label]):
            if of == list(instance.members):
                found[level][label] = instance
            elif of:
                found[level][label] = Instance.of(flow, flow.position[of[0]], of, instance.handed)
    return [Region(flow, of, region.name) for of in found]


def _members(flow: Flow, instance: Instance, timed: bool) -> list[list[str]]:
    """The ops of each part; buffers of a layer that has several parts are noted in the flow."""
    levels = _levels(flow, instance.members)
    if timed:
        levels = _behind(flow, instance.members, levels)
    found = [
        [m for m in instance.members if levels[m] == level and m not in flow.apart]
        for level in range(1 + max(levels.values(), default=0))
    ]
    if timed or found[0] == list(instance.members):
        return found
    flow.buffers.update(*(buffers(flow, of) for of in found))
    return [[m for m in of if m not in flow.buffers] for of in found]


def _behind(flow: Flow, members: Sequence[str], levels: Mapping[str, int]) -> dict[str, int]:
    """The levels, later ones for what stands behind the packing of its own and is needed by no such one.

    What only moves or converts a value is with what made it: a part that handed it on would be given a sum
    over runs of which nothing is known yet. What it makes of rows is :data:`NOWHERE`.
    """
    latest = dict[str, int]()
    for member in reversed(members):
        users = [u for u in flow.users.get(member, ()) if u in levels]
        needed = [levels[u] if u in flow.apart else latest[u] for u in users]
        latest[member] = min(needed, default=max(levels.values()))
    found, packed = dict[str, int](), 0
    for member in members:
        made_of = [v for v in flow.leaves_of(flow.producer[member]) if v in levels]
        if member in flow.apart:
            packed = max(packed, levels[member] + 1)
        found[member] = max(levels[member], min(packed, latest[member]))
        if flow.producer[member].name in CHEAP and made_of and member not in flow.apart:
            found[member] = max(found[v] if v not in flow.apart else NOWHERE for v in made_of)
    return found


def _levels(flow: Flow, members: Sequence[str]) -> dict[str, int]:
    """How often rows have been packed and put back, one after the other, before each member is computed."""
    levels = dict[str, int]()
    for member in members:
        here = member not in flow.apart
        below = (v for v in flow.leaves_of(flow.producer[member]) if v in levels)
        levels[member] = max((levels[v] + (here and v in flow.apart) for v in below), default=0)
    return levels
