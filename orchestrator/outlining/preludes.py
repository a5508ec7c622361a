"""What stands around a repetition and belongs to it alone, though in another phase: *preludes* and *sequels*.

A rank gathers a layer's weights once, before all runs. It sums the layer's gradients over its runs, and then
reduces them over ranks and takes their norms, once. That is no part of the layer's forward or backward pass,
which happen in every run: these are functions of their own. The specification has no runs. Its prelude or
sequel is all that belongs to the layer alone; where it does nothing of the kind, it hands back an operand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from certificates.plan.ops import CALL, COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Op

from .flow import Flow
from .regions import Instance, Region
from .repeats import LEAST_REPEATS

#: Number of a region, and label.
Owner = tuple[int, int]
Regions = Mapping[str, Sequence[Region]]
#: Programs that have to do the same in their calls.
Alike = Iterable[Sequence[str]]
#: What is made of fewer ops on ranks stays where it is: a call costs more than it saves.
LEAST_OPS = 8


def sequels(plan: Plan, regions: Regions, alike: Alike, after: int) -> Iterator[dict[str, Region]]:
    """The sequel of each region in every program, where all programs have one; ``after`` is their phase on
    ranks."""
    owned = {o: _following(plan, of, None if o == "s" else after) for o, of in regions.items()}
    for k in range(len(regions["s"])):
        yield from made_alike(f"sequel {k}", regions, alike, {o: _of(k, of) for o, of in owned.items()})


def preludes(
    plan: Plan, regions: Regions, alike: Alike, phases: Sequence[int]
) -> Iterator[dict[str, Region]]:
    """What leads to the repetitions of one label, in every program, that of each phase apart; in the
    specification that of the last of the ``phases``."""
    for phase in phases:
        members = {o: _leading(plan, of, phase) for o, of in regions.items() if o != "s"}
        first = _leading(plan, regions["s"], None) if phase == phases[-1] else {}
        spec = first or _nothing(plan, regions, members)
        yield from made_alike(f"prelude {phase}", regions, alike, {"s": spec, **members})


def _of(number: int, owned: Mapping[Owner, Sequence[str]]) -> dict[int, Sequence[str]]:
    return {label: values for (k, label), values in owned.items() if k == number}


def owners(regions: Sequence[Region]) -> dict[str, Owner]:
    """The repetition that each core op belongs to."""
    return {
        m: (k, label)
        for k, region in enumerate(regions)
        for label, instance in region.instances.items()
        for m in instance.members
    }


def _following(plan: Plan, regions: Sequence[Region], phase: int | None) -> dict[Owner, list[str]]:
    """The core ops that rest on one repetition alone, in order. What joins runs hands on what it joins, and
    so does what belongs to the repetition in another phase."""
    flow, owner = regions[0].flow, owners(regions)
    found: dict[Owner, list[str]] = {}
    for op in flow.core:
        of = {owner.get(leaf) for leaf in flow.leaves_of(op) if leaf in flow.producer}
        first = of.pop() if len(of) == 1 else None
        joining = joins(plan, op)
        if first is None or not (joining or free(flow, op, owner, None)):
            continue
        owner[op.out] = first
        if not joining and (phase is None or flow.phases.get(op.out) == phase):
            found.setdefault(first, []).append(op.out)
    return found


def _leading(plan: Plan, regions: Sequence[Region], phase: int | None) -> dict[int, list[str]]:
    """The core ops that repetitions of one label alone read, in order."""
    flow, owner = regions[0].flow, owners(regions)
    label = {value: n for value, (_, n) in owner.items()}
    found: dict[int, list[str]] = {}
    for op in reversed(flow.core):
        read = {label.get(user) for user in flow.users.get(op.out, ())}
        only = read.pop() if len(read) == 1 else None
        if only is not None and not joins(plan, op) and free(flow, op, owner, phase):
            label[op.out] = only
            found.setdefault(only, []).insert(0, op.out)
    return found


def free(flow: Flow, op: Op, owner: Mapping[str, Owner], phase: int | None) -> bool:
    """May an op be given to a repetition, in this phase?"""
    if op.out in owner or op.out in flow.apart or op.name in MESSAGES or op.name == CALL:
        return False
    return phase is None or flow.phases.get(op.out) == phase


def joins(plan: Plan, op: Op) -> bool:
    """Does an op join runs?"""
    return op.name in COLLECTIVES and plan.groups[op.text("group")].steps > 0


def made_alike(
    name: str,
    regions: Regions,
    alike: Alike,
    members: Mapping[str, Mapping[int, Sequence[str]] | Region],
) -> Iterator[dict[str, Region]]:
    """The calls of these core ops in every program, if all have some, of enough ops on ranks, and if they
    repeat."""
    made: dict[str, Region] = {}
    for these in alike:
        given = {o: members[o] for o in these}
        made |= {o: of for o, of in given.items() if isinstance(of, Region)}
        of = {o: each for o, each in given.items() if not isinstance(each, Region)}
        made |= _calls({o: regions[o][0].flow for o in of}, of)
        found = [i for o in these for i in made[o].instances.values()]
        if not found or (these != ("s",) and len(found[0].ops) < LEAST_OPS):
            return
    if "s" in made and len(made["s"].instances) < LEAST_REPEATS:
        return
    yield {owner: Region(of.flow, of.instances, name) for owner, of in made.items()}


def _calls(
    flows: Mapping[str, Flow], members: Mapping[str, Mapping[int, Sequence[str]]]
) -> dict[str, Region]:
    """The calls of these core ops, as far as they do what most of them do; on ranks to operands that may be
    made in another way."""
    made: dict[str, dict[int, Instance]] = {}
    for owner, flow in flows.items():
        position = flow.position
        made[owner] = {n: Instance.of(flow, position[of[-1]], of) for n, of in members[owner].items()}
    every = [i for of in made.values() for i in of.values()]
    seen = Counter((tuple(i.ops), tuple(i.types)) for i in every)
    usual = seen.most_common(1)[0][0] if seen else None
    first = next((i for i in every if (tuple(i.ops), tuple(i.types)) == usual), None)
    for owner, instances in made.items():
        for n, instance in instances.items() if owner != "s" else ():
            if first is not None and len(instance.members) == len(first.members):
                instances[n] = first.beside(flows[owner], instance.first, instance.members) or instance
    return {
        owner: Region(flow, {n: i for n, i in made[owner].items() if (tuple(i.ops), tuple(i.types)) == usual})
        for owner, flow in flows.items()
    }


def _nothing(plan: Plan, regions: Regions, members: Mapping[str, Mapping[int, Sequence[str]]]) -> Region:
    """Calls of the specification that do nothing, of the inputs that the calls of ranks read."""
    flow = regions["s"][0].flow
    names: dict[str, str] = {}
    for relation in plan.inputs:
        names.setdefault(relation.plan, relation.spec)
    found: dict[int, Instance] = {}
    for owner, of in members.items():
        for label, values in of.items():
            on = regions[owner][0].flow
            read = dict.fromkeys(leaf for v in values for leaf in on.leaves_of(on.producer[v]))
            sites = list(dict.fromkeys(names[leaf] for leaf in read if leaf in names))
            if sites and label not in found:
                types = [flow.program.type_of(site) for site in sites]
                found[label] = Instance(0, (), sites=sites, types=types)
    usual = Counter(tuple(i.types) for i in found.values()).most_common(1)
    return Region(flow, {n: i for n, i in found.items() if tuple(i.types) == usual[0][0]})
