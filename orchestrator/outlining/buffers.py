"""Buffers of a layer that is cut in parts: weights gathered, or gradients reduced, for several parts at once.

FSDP has one buffer for all weights of a layer. A part of the ranks' layer would then have operands and
results that the part of the single device has not, so the collective stays outside, and the part is handed
what it reads of it as it is cut out of the buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from certificates.plan.ops import COLLECTIVES

from .flow import Flow
from .regions import Instance, Region
from .repeats import LEAST_REPEATS


def fed(chosen: Mapping[str, Sequence[Region]]) -> dict[str, list[Region]]:
    """Repetitions that are handed what they read of buffers outside of them as it is cut out of these; but
    those left out that are given less on ranks than on the single device, whose function could say nothing
    of the rest.

    So it is where ranks have norms of a layer's experts beside those of its other weights.
    """
    kept: dict[str, list[Region]] = {owner: [] for owner in chosen}
    if not any(region.flow.buffers for of in chosen.values() for region in of):
        return {owner: list(of) for owner, of in chosen.items()}
    for k in range(len(chosen["s"])):
        made = {owner: _alike(of[k]) for owner, of in chosen.items()}
        labels = set.intersection(*(set(r.instances) for r in made.values()))
        if len(labels) < LEAST_REPEATS:
            continue
        least = _computed(made["s"], next(iter(labels)))
        for region in made.values():
            region.instances = {n: i for n, i in region.instances.items() if n in labels}
        if all(_computed(region, next(iter(labels))) >= least for region in made.values()):
            for owner, region in made.items():
                kept[owner].append(region)
    return kept


def _alike(region: Region) -> Region:
    """A repetition that is handed what it reads of buffers; calls that then do something else stay out."""
    flow, made = region.flow, dict[int, Instance]()
    for label, instance in region.instances.items():
        handed = instance.handed | _pieces(flow, instance.members)
        same = handed == instance.handed
        made[label] = instance if same else Instance.of(flow, instance.first, instance.members, handed)
    usual = Counter((tuple(i.ops), tuple(i.types)) for i in made.values()).most_common(1)
    alike = {n: i for n, i in made.items() if (tuple(i.ops), tuple(i.types)) == usual[0][0]}
    return Region(flow, alike, region.name)


def _computed(region: Region, label: int) -> int:
    """How many operands of a call are no inputs of the program."""
    return len(set(region.instances[label].sites) - region.flow.program.inputs.keys())


def _pieces(flow: Flow, members: Sequence[str]) -> frozenset[str]:
    """What ops read of buffers that stand outside of parts, as it is cut out of these."""
    found, work = set[str](), [v for m in members for v in flow.producer[m].ins]
    while work:
        value = work.pop()
        if value in flow.cheap and value not in found:
            leaves = flow.leaves(value)
            if leaves and flow.buffers.issuperset(leaves):
                found.add(value)
            else:
                work += flow.producer[value].ins
    return frozenset(found)


def buffers(flow: Flow, members: Sequence[str]) -> set[str]:
    """Collectives before and behind all else of a part that have tensors of several parts in one buffer.

    Of weights that are gathered for another part, or gradients that another part computed, the part of the
    single device has none: a function could say nothing of them.
    """
    joint = {m for m in members if len(flow.leaves_of(flow.producer[m])) > 1}
    part, early, late = set(members), set[str](), set[str]()
    for member in members:
        if flow.producer[member].name in COLLECTIVES and early.issuperset(_read(flow, member, part)):
            early.add(member)
    for member in reversed(members):
        if flow.producer[member].name in COLLECTIVES and late.issuperset(
            part.intersection(flow.users.get(member, ()))
        ):
            late.add(member)
    found = (early | late) & joint | early & late
    for member in members:
        if member in late and not found.isdisjoint(_read(flow, member, part)):
            found.add(member)
    for member in reversed(members):
        if member in found & early:
            found |= _read(flow, member, part)
    return found


def _read(flow: Flow, member: str, part: set[str]) -> set[str]:
    return part.intersection(flow.leaves_of(flow.producer[member]))
