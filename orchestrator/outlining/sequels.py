"""What follows a repetition and belongs to it alone, though it stands in another phase: a *sequel*.

A rank sums a layer's gradients over its runs, and then reduces them over ranks and takes their norms, once.
That is no part of the layer's backward pass, which happens in every run. It is a function of its own, of what
the runs have given together. The specification has no runs, and its sequel is all that rests on a layer alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from certificates.plan.ops import CALL, COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan
from certificates.plan.program import Op

from .flow import Flow
from .regions import Instance, Region

#: Number of a region, and label.
Owner = tuple[int, int]


def sequels(
    plan: Plan, regions: Mapping[str, Sequence[Region]], alike: Iterable[Sequence[str]], after: int
) -> Iterator[dict[str, Region]]:
    """The sequel of each region in every program, where all programs have one.

    ``alike`` are programs that have to do the same in theirs; ``after`` is the phase of sequels on ranks.
    """
    owned = {owner: _owned(plan, of, None if owner == "s" else after) for owner, of in regions.items()}
    for k in range(len(regions["s"])):
        made: dict[str, Region] = {}
        for owners in alike:
            of = {o: {n: v for (j, n), v in owned[o].items() if j == k} for o in owners}
            made |= _calls({o: regions[o][k].flow for o in owners}, of)
        if all(any(made[o].instances for o in owners) for owners in alike):
            yield made


def _owned(plan: Plan, regions: Sequence[Region], after: int | None) -> dict[Owner, list[str]]:
    """The core ops that rest on one repetition alone, in order. What joins runs hands on what it joins."""
    flow = regions[0].flow
    owner: dict[str, Owner] = {
        m: (k, label)
        for k, region in enumerate(regions)
        for label, instance in region.instances.items()
        for m in instance.members
    }
    found: dict[Owner, list[str]] = {}
    for op in flow.core:
        if op.out in owner or op.name in MESSAGES or op.name == CALL:
            continue
        made = [leaf for leaf in flow.leaves_of(op) if leaf in flow.producer]
        of = {owner.get(leaf) for leaf in made}
        first = of.pop() if len(of) == 1 else None
        joins = _joins(plan, op)
        if first is None or not (joins or after is None or flow.phases.get(op.out) == after):
            continue
        owner[op.out] = first
        if not joins:
            found.setdefault(first, []).append(op.out)
    return found


def _joins(plan: Plan, op: Op) -> bool:
    """Does an op join runs?"""
    return op.name in COLLECTIVES and plan.groups[op.text("group")].steps > 0


def _calls(
    flows: Mapping[str, Flow], members: Mapping[str, Mapping[int, Sequence[str]]]
) -> dict[str, Region]:
    """The calls of these core ops, as far as they do what most of them do."""
    made: dict[str, dict[int, Instance]] = {}
    for owner, flow in flows.items():
        position = {op.out: i for i, op in enumerate(flow.core)}
        made[owner] = {n: Instance.of(flow, position[of[-1]], of) for n, of in members[owner].items()}
    seen = Counter((tuple(i.ops), tuple(i.types)) for of in made.values() for i in of.values())
    usual = seen.most_common(1)[0][0] if seen else None
    return {
        owner: Region(flow, {n: i for n, i in made[owner].items() if (tuple(i.ops), tuple(i.types)) == usual})
        for owner, flow in flows.items()
    }
