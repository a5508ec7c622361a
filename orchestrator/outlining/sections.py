"""What stands outside all repetitions, such as an embedding or a loss, in parts that are called once.

Calls of one repetition stand together: a *section* is what is computed between two of them. As a function it
is related and proved on its own, and an edit in it leaves the proofs of all others as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from certificates.plan.ops import CALL

from .regions import Instance, Region

#: Collectives whose summands say little, each by itself.
_SUMS = ("all_reduce", "reduce_scatter")


def sections(regions: Mapping[str, Sequence[Region]]) -> Iterator[dict[str, Region]]:
    """The sections that all programs have. ``regions`` are the repetitions of every program."""
    found = {owner: _sections(of) for owner, of in regions.items()}
    for place in sorted(set.intersection(*(set(f) for f in found.values()))):
        section = {owner: Region(of[0].flow, {0: found[owner][place]}) for owner, of in regions.items()}
        if all(region.shown() for region in section.values()):
            yield section


def _sections(regions: Sequence[Region]) -> dict[int, Instance]:
    """The sections of one program, by the number of repetitions before them."""
    flow = regions[0].flow
    position = flow.position
    members: dict[int, list[str]] = {}
    for value, place in _places(regions).items():
        members.setdefault(place, []).append(value)
    found = dict[int, Instance]()
    for place, of in members.items():
        stay = [v for v in of if flow.producer[v].name not in _SUMS] or of
        found[place] = Instance.of(flow, position[stay[-1]], of)
    return found


def _places(regions: Sequence[Region]) -> dict[str, int]:
    """How many repetitions stand before each core op outside them.

    What an op reads and who reads it bound its place; between the bounds it stays where it was executed, but
    a sum over ranks stands with its summands. An op amid the calls of one repetition has no place.
    """
    flow = regions[0].flow
    owner = {v: k for k, region in enumerate(regions) for i in region.instances.values() for v in i.members}
    outside = [op for op in flow.core if op.out not in owner and op.name != CALL]
    last = len(regions)
    first, latest = dict[str, int](), dict[str, int]()
    for op in outside:
        leaves = flow.leaves_of(op)
        first[op.out] = max((owner[v] + 1 if v in owner else first.get(v, 0) for v in leaves), default=0)
    for op in reversed(outside):
        by = flow.users.get(op.out, ())
        latest[op.out] = min((owner[u] if u in owner else latest.get(u, last) for u in by), default=last)
    begin = sorted(min(i.first for i in region.instances.values()) for region in regions)
    position = flow.position
    places = dict[str, int]()
    for op in outside:
        if first[op.out] <= latest[op.out]:
            here = 0 if op.name in _SUMS else bisect_right(begin, position[op.out])
            lowest = max((places[v] for v in flow.leaves_of(op) if v in places), default=0)
            places[op.out] = min(max(first[op.out], lowest, here), latest[op.out])
    return places
