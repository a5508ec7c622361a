"""Backward passes that are done in two parts: what a layer hands to the next, and what is *left* for later.

Zero-bubble schedules send the gradient of a stage's input before they compute those of its weights, which
fill gaps. The two parts of a layer are then functions of their own, also where both are done at one time: in
the specification, and in stages that do not split them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from certificates.plan.plan import Plan

from .flow import Flow, head
from .preludes import Alike, free, joins, made_alike, owners
from .regions import Instance, Region


def split(
    plan: Plan, regions: Mapping[str, list[Region]], alike: Alike, each: int, number: int
) -> Iterator[dict[str, Region]]:
    """What is left of a region on ranks, in the phase of ``each`` run, and in the specification.

    The region keeps what its instances hand to one another.
    """
    short: dict[str, Region] = {}
    members: dict[str, Mapping[int, Sequence[str]]] = {}
    numbers: dict[object, int] = {}
    for of in alike:
        found = {o: regions[o][number] for o in of}
        # A stage of one layer hands nothing to another one.
        places = set[int]().union(*(chain(region) for region in found.values()))
        if not places:
            return
        short |= {o: _only(region, places) for o, region in found.items()}
        if of == ("s",):
            members["s"] = {
                n: [m for p, m in enumerate(i.members) if p not in places]
                for n, i in found["s"].instances.items()
            }
            if not all(members["s"].values()):
                return
        else:
            outside = _common({o: _left(plan, regions[o], number, each, {}) for o in of})
            if not any(outside.values()):  # no stage leaves anything for later
                return
            cut = {o: [*regions[o][:number], short[o], *regions[o][number + 1 :]] for o in of}
            members |= _common({o: _left(plan, cut[o], number, each, numbers) for o in of})
    for made in made_alike(f"left {number}", regions, alike, members):
        for owner, region in short.items():
            regions[owner][number] = region
        yield made


def incomplete(
    plan: Plan, regions: Mapping[str, Sequence[Region]], alike: Alike, each: int, number: int
) -> bool:
    """Do most repetitions of a region leave for later what those of the specification do at once, though no
    function does it? Their calls would be paired with calls that do more."""
    done = regions["s"][number]
    places = chain(done)
    at_once = {
        done.flow.producer[m].name
        for i in done.instances.values()
        for p, m in enumerate(i.members)
        if p not in places
    }
    for of in alike:
        some = [
            any(regions[o][number].flow.producer[v].name in at_once for _, v in left)
            for o in of
            if o != "s"
            for left in _left(plan, regions[o], number, each, {}).values()
        ]
        if 2 * sum(some) > len(some):
            return True
    return False


def _only(region: Region, places: set[int]) -> Region:
    """The members in these places of every instance."""
    return Region(
        region.flow,
        {
            n: Instance.of(
                region.flow, i.first, [m for p, m in enumerate(i.members) if p in places], i.handed
            )
            for n, i in region.instances.items()
        },
        region.name,
    )


def chain(region: Region) -> set[int]:
    """Places of what the instances of a region hand to one another, and of what that is made of there."""
    flow = region.flow
    owner = {m: (label, p) for label, i in region.instances.items() for p, m in enumerate(i.members)}
    found: set[int] = set()
    for label, instance in region.instances.items():
        users = ((m, flow.users.get(m, ())) for m in instance.members)
        work = [m for m, by in users if any(owner.get(u, (label,))[0] != label for u in by)]
        seen = set(work)
        while work:
            below = flow.leaves_of(flow.producer[work.pop()])
            more = {v for v in below if owner.get(v, (None,))[0] == label} - seen
            seen |= more
            work += sorted(more)
        found |= {owner[m][1] for m in seen}
    return found


#: Core ops of each label, by what they do.
_Found = dict[int, list[tuple[int, str]]]


def _left(
    plan: Plan, regions: Sequence[Region], number: int, phase: int, numbers: dict[object, int]
) -> _Found:
    """The core ops that rest on one repetition of a region, by label; equal numbers do the same to it."""
    flow, region = regions[0].flow, regions[number]
    taken = owners(regions)
    owner = {m: label for label, i in region.instances.items() for m in i.members}
    form: dict[str, Hashable] = {
        m: ("own", p) for i in region.instances.values() for p, m in enumerate(i.members)
    }
    found: _Found = {label: [] for label in region.instances}
    others: set[str] = set()  # what rests on repetitions, but on more than one, or in another phase
    for op in flow.core:
        leaves = flow.leaves_of(op)
        of = {owner[leaf] for leaf in leaves if leaf in owner}
        if op.out in owner or (not of and others.isdisjoint(leaves)):
            continue
        if (
            len(of) != 1
            or not others.isdisjoint(leaves)
            or joins(plan, op)
            or not free(flow, op, taken, phase)
        ):
            others.add(op.out)
            continue
        owner[op.out] = label = of.pop()
        key = (*head(op), tuple(_form(flow, v, form) for v in op.ins))
        form[op.out] = "left", numbers.setdefault(key, len(numbers))
        found[label].append((numbers[key], op.out))
    return found


def _form(flow: Flow, value: str, form: Mapping[str, Hashable]) -> Hashable:
    """How a value is made of a repetition, and of anything else, however that is made."""
    if value in form:
        return form[value]
    if value not in flow.cheap or form.keys().isdisjoint(flow.leaves(value)):
        return "other", str(flow.program.type_of(value))
    op = flow.producer[value]
    return (*head(op), tuple(_form(flow, v, form) for v in op.ins))


def _common(found: Mapping[str, _Found]) -> dict[str, Mapping[int, Sequence[str]]]:
    """Of each program and label what all labels have, in one order."""
    counts = [Counter(n for n, _ in of) for by_label in found.values() for of in by_label.values()]
    common = {n for n in counts[0] if all(c[n] == counts[0][n] for c in counts)} if counts else set()
    return {
        owner: {label: [v for n, v in sorted(of) if n in common] for label, of in by_label.items() if common}
        for owner, by_label in found.items()
    }
