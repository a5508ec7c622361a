"""Repeated code of a flat plan becomes functions: a layer's forward, its backward, its optimizer update.

A run of core ops that repeats becomes a function of its leaves; the repetitions of all programs are paired by
the number in the names of the tensors that they use. Work that stands elsewhere but belongs to one repetition
alone, such as the norm of a gradient, joins it. What comes out computes the same, value for value
(:func:`certificates.plan.functions.inline` and :func:`expressions` say so).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from certificates.errors import FormatError
from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Function, Plan
from certificates.plan.program import Program
from certificates.plan.schedule import Batch, Wait
from certificates.plan.timing import has_messages

from ..scheduling import when
from .buffers import fed
from .calling import body, called
from .flow import Flow, executed, head
from .growth import Growth, grown
from .layers import layers, side_by_side
from .packing import apart, packed, parts, read_again, written
from .regions import Region, Signature
from .repeats import LEAST_REPEATS
from .sections import sections
from .slices import Role, along, one_each, roles, sliced
from .stacks import flattened, gathered, grouped, spread
from .timetable import Apart, rescheduled

#: A plan of so many ops is tried without functions, too.
FEW_OPS = 2_000


def in_order(program: Program) -> Program:
    """The same program in an order, and with stacks in a form, that do not depend on where its code stood:
    what each collective needs, then what each output needs.
    """
    program = spread(flattened(program))
    producer = {op.out: op for op in program.ops}
    read = {v for op in program.ops for v in op.ins} | set(program.outputs.values())
    meetings = [
        op.out
        for op in program.ops
        if op.name in MESSAGES or (op.name in COLLECTIVES and (op.name != "all_gather" or op.out not in read))
    ]
    order = executed(((op.out, op.ins) for op in program.ops), (*meetings, *program.outputs.values()))
    ops = tuple(producer[value] for value in order if value in producer)
    return Program(program.inputs, ops, program.outputs)


def outline(plan: Plan, accept: Callable[[Plan], bool] | None = None) -> Plan:
    """The plan with its repeated code in functions; itself where the programs do not repeat alike.

    What stands between the repetitions is in functions too, called once each, if the plan is accepted so; one
    of few ops stays flat if it is accepted in no other way. In a pipeline the functions are at slices, its
    schedule speaks of calls, and it must be accepted as a whole. With packed rows there are functions of what
    stands around these, and it must be accepted as well.
    """
    if plan.functions:
        return plan
    if has_messages(plan):
        return next((made for made in _pipelines(plan) if accept is None or accept(made)), plan)
    owners = {"s": written(plan.specification)} | {c.name: written(c.program) for c in plan.classes}
    unlike = packed(plan) and accept is not None  # a guess: taken if it is accepted, else the plan stays flat
    programs, regions = _near(owners, lambda these: _common_regions(plan, these, unlike))
    if not any(regions.values()):
        return plan
    each = one_each(plan)
    if packed(plan):
        outlined = _outlined(plan, programs, regions, each)
        return outlined if accept is None or accept(outlined) else plan
    if accept is not None:
        between = [section for section in sections(regions) if _meet(plan, section, each)]
        both = {owner: [*of, *(section[owner] for section in between)] for owner, of in regions.items()}
        outlined = _outlined(plan, programs, both, each)
        if accept(outlined):
            return outlined
    bare = _outlined(plan, programs, regions, each)
    ops = len(plan.specification.ops) + sum(len(c.program.ops) for c in plan.classes)
    flat = accept is not None and ops <= FEW_OPS and not accept(bare) and accept(plan)
    return plan if flat else bare


def _pipelines(plan: Plan) -> Iterator[Plan]:
    """Plans with functions at slices: with what stands around a layer in functions too, and without; with
    collectives in flight waited for at once, if nothing waits for ever then, and as they were seen."""
    for axis in along(plan):
        seen: list[Plan] = []
        for around, early in product((True, False), (True, False) if _in_flight(plan) else (False,)):
            found = _pipeline(plan, axis, around, early)
            if found is None or found in seen or (early and _circle(found)):
                continue
            seen.append(found)
            yield found


def _in_flight(plan: Plan) -> bool:
    """Is a collective of a schedule waited for later than at once?"""
    lanes = plan.schedule.lanes if plan.schedule else ()
    return any(
        isinstance(event, Batch)
        and event.posted
        and all(item.end == "meet" for item in event.items)
        and lane.events[i + 1 : i + 2] != (Wait(i),)
        for lane in lanes
        for i, event in enumerate(lane.events)
    )


def _circle(plan: Plan) -> bool:
    """Does something in a schedule wait for ever?"""
    found = when(plan)
    return found is not None and bool(found.circle)


def _pipeline(plan: Plan, axis: str, around: bool, early: bool) -> Plan | None:
    """A plan whose stages lie along this axis with functions at its slices, if its layers repeat."""
    owners = {"s": written(plan.specification)} | {c.name: written(c.program) for c in plan.classes}
    found = roles(plan, axis)
    dropped: set[str] = set()

    def common(programs: Mapping[str, Program]) -> dict[str, list[Region]]:
        regions = sliced(plan, programs, found, axis, around, dropped)
        kept = [
            k
            for k in range(len(regions.get("s", ())))
            if _meet(plan, {owner: of[k] for owner, of in regions.items()}, found)
        ]
        return {owner: [of[k] for k in kept] for owner, of in regions.items()} if kept else {}

    while True:
        programs, regions = _near(owners, common)
        while any(regions.values()):
            try:
                outlined = _outlined(replace(plan, schedule=None), programs, regions, found, (axis,))
                return outlined if plan.schedule is None else rescheduled(plan, outlined, programs, early)
            except Apart as apart:  # what the ranks were seen to do leaves no place for these calls
                name = regions["s"][int(apart.function[1:])].name
                if name:
                    dropped.add(name)
                    break
                regions = {owner: _without(of, apart.function) for owner, of in regions.items()}
            except FormatError:
                return None
        else:
            return None


def _without(regions: Sequence[Region], function: str) -> list[Region]:
    return [region for k, region in enumerate(regions) if f"f{k}" != function]


def _near(
    owners: Mapping[str, Program], common: Callable[[Mapping[str, Program]], dict[str, list[Region]]]
) -> tuple[Mapping[str, Program], dict[str, list[Region]]]:
    """The programs, neighbours in a stack that come from one repetition concatenated first, and what they
    have in ``common``."""
    wide = {owner: spread(program) for owner, program in owners.items()}
    regions = common(wide)
    near = {owner: _grouped(r) for owner, r in regions.items() if r}
    programs = near if any(near[owner] != wide[owner] for owner in near) else owners
    return programs, common(programs) if programs != wide else regions


def _outlined(
    plan: Plan,
    programs: Mapping[str, Program],
    regions: Mapping[str, Sequence[Region]],
    found: Sequence[Role],
    axes: tuple[str, ...] = (),
) -> Plan:
    """The plan whose programs are these, with calls in place of the regions; functions at slices along
    ``axes``, if any."""
    signatures: dict[str, list[Signature]] = {owner: [] for owner in regions}
    functions = {}
    for k, region in enumerate(regions["s"]):
        label, instance = next(iter(region.instances.items()))
        signatures["s"].append(Signature.of([region], ()))
        callers = [[regions[c][k] for c in role.classes if regions[c][k].instances] for role in found]
        seqs = [next(tuple(r.instances[label].seqs) for r in of if label in r.instances) for of in callers]
        bodies = {}
        for role, of, pattern in zip(found, callers, _pattern(seqs), strict=True):
            signature = Signature.of(of, pattern)
            for c in role.classes:
                signatures[c].append(signature)
            bodies[role.name] = body(next(iter(of[0].instances.values())), signature)
        boxes = {role.name: role.box for role in found} if axes else {}
        functions[f"f{k}"] = Function(body(instance, signatures["s"][k]), bodies, axes, boxes)
    made = {owner: called(programs[owner], of, signatures[owner]) for owner, of in regions.items()}
    outlined = replace(
        plan,
        specification=made["s"],
        classes=tuple(replace(c, program=made[c.name]) for c in plan.classes),
        functions=functions,
    )
    outlined = read_again(outlined)
    check_plan(outlined)
    known: dict[object, int] = {}
    if expressions(_normal(inline(outlined)), known) != expressions(_normal(plan), known):
        raise AssertionError("outlining changed what the plan computes")
    return outlined


def _normal(plan: Plan) -> Plan:
    """The plan with its stacks flat and elementwise work on them whole: what :func:`spread` undid."""
    classes = tuple(replace(c, program=gathered(flattened(c.program))) for c in plan.classes)
    return replace(plan, specification=gathered(flattened(plan.specification)), classes=classes)


def _common_regions(plan: Plan, programs: Mapping[str, Program], unlike: bool) -> dict[str, list[Region]]:
    """The repetitions that all programs have, grown; none where the programs do not repeat alike, unless
    these may be ``unlike`` and are paired by their layers."""
    regions = {
        owner: layers(Flow(program, apart=apart(program)), owner != "s")
        for owner, program in programs.items()
    }
    chosen: dict[str, list[Region]] = {owner: [] for owner in programs}
    each = one_each(plan)
    if not unlike and len({len(r) for r in regions.values()}) != 1:
        return chosen
    for row in side_by_side(regions):
        labels = set.intersection(*(set(r.instances) for r in row.values()))
        common = {
            owner: Region(r.flow, {n: i for n, i in r.instances.items() if n in labels})
            for owner, r in row.items()
        }
        for part in parts(common) if len(labels) >= LEAST_REPEATS else ():
            if _meet(plan, part, each):
                for owner, region in part.items():
                    chosen[owner].append(region)
    return fed(grown(chosen))


def _grouped(regions: Sequence[Region]) -> Program:
    """The program with neighbours in a stack that come from one repetition concatenated first."""
    growth = Growth(regions)
    flow = growth.flow

    def kin(value: str) -> Hashable:
        owners = {growth.owner.get(leaf, (-1, 0, 0))[:2] for leaf in flow.leaves(value)}
        return owners.pop() if len(owners) == 1 and (-1, 0) not in owners else None

    return grouped(flow.program, kin)


def _meet(plan: Plan, region: Mapping[str, Region], found: Sequence[Role]) -> bool:
    """Whether the collectives of every instance meet those of the same instance in the other classes."""
    takes_part: dict[int, set[str]] = {}
    for cls in plan.classes:
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                takes_part.setdefault(op.integer("seq"), set()).add(cls.name)
    of_role = {c: role.name for role in found for c in role.classes}
    shape: dict[int, dict[str, tuple[int, ...]]] = {}
    for cls in plan.classes:
        for label, instance in region[cls.name].instances.items():
            shape.setdefault(label, {})[of_role[cls.name]] = tuple(instance.seqs)
    for seqs in shape.values():
        inside = Counter(s for of_class in seqs.values() for s in of_class)
        if any(inside[s] != len(takes_part[s]) for s in inside):
            return False
    return len({_pattern([seqs[role.name] for role in found]) for seqs in shape.values()}) == 1


def _pattern(seqs: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The rendezvous of one instance, numbered by first occurrence over the roles."""
    number: dict[int, int] = {}
    return tuple(tuple(number.setdefault(s, len(number)) for s in of) for of in seqs)


def expressions(plan: Plan, known: dict[object, int]) -> dict[str, dict[str, int]]:
    """A number per output of every program; two plans agree in them iff they compute the same expressions.

    ``known`` holds all expressions met so far. Rendezvous are compared by what their members hand over,
    messages, which nobody has to read, by program, number and what is sent.
    """
    out: dict[str, dict[str, int]] = {}
    meets: dict[int, dict[str, int]] = {}
    sent: dict[str, int] = {}
    owners = {"s": plan.specification} | {c.name: c.program for c in plan.classes}
    for owner, program in owners.items():
        value: dict[str, int] = {}
        for name in program.inputs:
            value[name] = known.setdefault(("input", name), len(known))
        for op in program.ops:
            key: tuple[object, ...] = (*head(op), tuple(value[v] for v in op.ins))
            value[op.out] = known.setdefault(key, len(known))
            if op.name in COLLECTIVES:
                meets.setdefault(op.integer("seq"), {})[owner] = value[op.out]
            if op.name == "send":
                sent[f"{owner} {op.integer('seq')}"] = value[op.out]
        out[owner] = {name: value[v] for name, v in program.outputs.items()}
    # A collective of one class must meet the same collectives of the others.
    partners = sorted(tuple(sorted(m.items())) for m in meets.values())
    # No class has a space in its name.
    out["all messages"] = sent
    out["all rendezvous"] = {
        str(i): known.setdefault(p, len(known)) for i, p in enumerate(sorted(set(partners)))
    }
    return out
