"""What belongs to one repetition alone, such as the norm of a layer's gradient, joins it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set

from certificates.plan.ops import CALL, COLLECTIVES
from certificates.plan.program import Op

from .regions import Instance, Region


def grown(regions: Mapping[str, Sequence[Region]]) -> dict[str, list[Region]]:
    """The same repetitions of all programs, grown.

    What stands before one joins it where all programs have it there: else the function would be given other
    tensors in one program than in another. A gradient that ranks reduce before a layer's update joins that of
    no program.
    """
    as_they_are: set[int] = set()
    while True:
        made = {o: [Region(r.flow, dict(r.instances), r.name) for r in of] for o, of in regions.items()}
        growths = [Growth(of, as_they_are) for of in made.values() if of]
        for growth in growths:
            growth.grow()
        unlike = {k for g in growths for k in range(len(g.ahead)) if g.ahead[k] != growths[0].ahead[k]}
        if not unlike:
            return made
        as_they_are |= unlike


class Growth:
    """Gives core ops of a program that stand outside all repetitions to the ones they belong to; to some
    regions only what stands behind them."""

    def __init__(self, regions: Sequence[Region], behind: Set[int] = frozenset()) -> None:
        self.regions, self.behind = regions, behind
        #: What joined a repetition of each region from before it.
        self.ahead = [Counter[str]() for _ in regions]
        self.flow = regions[0].flow
        self.position = self.flow.position
        #: Region, label and place of every core op that has an owner.
        self.owner: dict[str, tuple[int, int, int]] = {}
        for k, region in enumerate(regions):
            for label, instance in region.instances.items():
                self._own(k, label, instance)

    def _own(self, region: int, label: int, instance: Instance) -> None:
        for place, member in enumerate(instance.members):
            self.owner[member] = (region, label, place)

    def grow(self) -> None:
        """Until nothing more belongs to one repetition."""
        while any([self._extend(k) for k in range(len(self.regions))]):
            pass

    def _extend(self, number: int) -> bool:
        """Ops that every repetition of a region has, before it or behind it."""
        region = self.regions[number]
        found: dict[tuple[bool, Hashable], dict[int, list[str]]] = {}
        for op in self.flow.core:
            if op.out in self.owner or op.out in self.flow.apart or op.name in COLLECTIVES or op.name == CALL:
                continue
            ways = [(False, self._behind(op))]
            if number not in self.behind:
                ways.append((True, self._before(op)))
            for before, place in ways:
                if place is not None and place[0] == number:
                    key = before, (self.flow.token(op), place[2])
                    found.setdefault(key, {}).setdefault(place[1], []).append(op.out)
                    break
        taken = [
            (before, of_label)
            for (before, _), of_label in found.items()
            if len({len(of_label.get(n, ())) for n in region.instances}) == 1
        ]
        for before, of_label in taken:
            if before:
                names = (self.flow.producer[v].name for v in next(iter(of_label.values())))
                self.ahead[number].update(names)
        for label, instance in region.instances.items() if taken else ():
            ahead = [v for before, of_label in taken if before for v in of_label[label]]
            behind = [v for before, of_label in taken if not before for v in of_label[label]]
            ahead.sort(key=self.position.__getitem__)
            grown = Instance.of(
                self.flow, instance.first, (*ahead, *instance.members, *behind), instance.handed
            )
            region.instances[label] = grown
            self._own(number, label, grown)
        return bool(taken)

    def _behind(self, op: Op) -> tuple[int, int, Hashable] | None:
        """Region and label that all leaves of an op come from, and their places there, operand by operand."""
        owners = [self.owner.get(leaf) for leaf in self.flow.leaves_of(op)]
        found = {o[:2] for o in owners if o is not None}
        if None in owners or len(found) != 1:
            return None
        places = tuple(tuple(self.owner[leaf][2] for leaf in self.flow.leaves(v)) for v in op.ins)
        return *found.pop(), places

    def _before(self, op: Op) -> tuple[int, int, Hashable] | None:
        """Region and label of all users of an op that stands before them, and their places."""
        owners = [self.owner.get(u) for u in self.flow.users.get(op.out, ())]
        found = {o[:2] for o in owners if o is not None}
        if None in owners or len(found) != 1:
            return None
        region, label = found.pop()
        if self.position[op.out] >= self.regions[region].instances[label].first:
            return None
        if any(
            self.flow.producer[v].name == "all_gather" for v in self.flow.leaves_of(op) if v in self.position
        ):
            return None  # the gather would stand before another op then
        return region, label, tuple(sorted(o[2] for o in owners if o is not None))
