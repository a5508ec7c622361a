"""Repetitions of a program that belong to numbered layers: which ops, and of which layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from .flow import CHEAP, Flow
from .regions import Instance, Region
from .repeats import LEAST_REPEATS, Run, runs

_NUMBER = re.compile(r"(?:^|\.)([0-9]+)(?:\.|$)")


class Labels:
    """The number of a layer at every core op that shows one: in the names of inputs and outputs it touches,
    or by results of repetitions that are labelled already.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.inherited: dict[str, int] = {}
        self._outputs: dict[str, set[int]] = {}
        self._moved: dict[str, int] = {}
        for name, value in flow.program.outputs.items():
            number = _number(name)
            for leaf in flow.leaves(value) if number is not None else ():
                self._outputs.setdefault(leaf, set()).add(number if number is not None else -1)
        for op in flow.core:  # a weight that is gathered, moved or cast shows the layer that it is of
            if op.name == "all_gather" or op.name in CHEAP:
                seen = self.of([op.out])
                if len(seen) == 1:
                    self._moved[op.out] = next(iter(seen))

    def between(self, first: int, last: int) -> Counter[int]:
        """Labels seen by the core ops in ``[first, last)``, and how often."""
        return self.of([op.out for op in self.flow.core[first:last]])

    def of(self, members: Sequence[str]) -> Counter[int]:
        """Labels seen by these core ops, and how often."""
        ops = [self.flow.producer[m] for m in members]
        own = set(members)
        leaves = {leaf for op in ops for leaf in self.flow.leaves_of(op)} - own
        direct = [_number(v) for v in leaves if v in self.flow.program.inputs]
        direct += [self._moved[v] for v in leaves if v in self._moved]
        direct += [n for op in ops for n in self._outputs.get(op.out, ())]
        found = Counter(n for n in direct if n is not None)
        return found or Counter(self.inherited[v] for v in leaves if v in self.inherited)

    def give(self, instance: Instance, label: int) -> None:
        self.inherited |= dict.fromkeys(instance.members, label)


def layers(flow: Flow, handed: bool) -> list[Region]:
    """The repetitions of a program that belong to numbered layers, in order.

    ``handed``: an operand of a call may be a cheap value. In the specification it may not, as facts about the
    plan's operands are in terms of the leaves there.
    """
    position = flow.position
    labels = Labels(flow)
    found = []
    everywhere = runs([flow.token(op) for op in flow.core])
    for k, run in enumerate(everywhere):
        first = _best_cut(flow, position, labels, run)
        starts = range(first, run.stop - run.period + 1, run.period)
        numbers = [labels.between(s, s + run.period) for s in starts]
        seen = [n.most_common(1)[0][0] if n else -1 for n in numbers]
        usable = [s for s, n in zip(starts, seen, strict=True) if n >= 0 and seen.count(n) == 1]
        if len(usable) < LEAST_REPEATS:
            continue
        names = {s: [op.out for op in flow.core[s : s + run.period]] for s in usable}
        instances = {seen[starts.index(s)]: Instance.of(flow, s, names[s]) for s in usable}
        usual = Counter(tuple(i.ops) for i in instances.values()).most_common(1)[0][0]
        region = Region(flow, {n: i for n, i in instances.items() if tuple(i.ops) == usual})
        low = everywhere[k - 1].stop if k else 0
        high = everywhere[k + 1].start if k + 1 < len(everywhere) else len(flow.core)
        for start in (first - run.period, starts[-1] + run.period) if handed else ():
            if low <= start and start + run.period <= high:
                _join(region, start, labels.between(start, start + run.period))
        found.append(region)
        for label, instance in region.instances.items():
            labels.give(instance, label)
    return found


def side_by_side(regions: Mapping[str, Sequence[Region]]) -> list[dict[str, Region]]:
    """The repetitions that all programs have, in order: of one program each, those of the same layers.

    What one of them lacks is left out: a layer's backward pass, say, may repeat on the single device, and on
    ranks be made in another way in each layer, as what is fetched ahead lies.
    """
    owners = list(regions)
    rows = [{owners[0]: region} for region in regions[owners[0]]]
    for owner in owners[1:]:
        rows = [rows[i] | {owner: regions[owner][k]} for i, k in _paired(rows, regions[owner])]
    return rows


def _paired(rows: Sequence[Mapping[str, Region]], of: Sequence[Region]) -> list[tuple[int, int]]:
    """Which of one list goes with which of the other, in order, with as many layers in common as can be."""
    if len(rows) == len(of):
        return [(i, i) for i in range(len(of))]
    labels = [set.intersection(*(set(r.instances) for r in row.values())) for row in rows]
    best: dict[tuple[int, int], tuple[int, list[tuple[int, int]]]] = {}
    for i in range(len(rows), -1, -1):
        for k in range(len(of), -1, -1):
            if i == len(rows) or k == len(of):
                best[i, k] = 0, []
                continue
            common = len(labels[i].intersection(of[k].instances))
            total, pairs = best[i + 1, k + 1]
            with_both = (total + common, [(i, k), *pairs]) if common >= LEAST_REPEATS else (-1, [])
            best[i, k] = max(best[i + 1, k], best[i, k + 1], with_both, key=lambda found: found[0])
    return best[0, 0][1]


def _join(region: Region, start: int, seen: Counter[int]) -> None:
    """Add what stands beside a repetition, if it is one more instance, given what is made in another way."""
    usual = next(iter(region.instances.values()))
    label = seen.most_common(1)[0][0] if seen else -1
    if label >= 0 and label not in region.instances:
        members = [op.out for op in region.flow.core[start : start + len(usual.members)]]
        instance = usual.beside(region.flow, start, members)
        if instance is not None:
            region.instances[label] = instance


def _best_cut(flow: Flow, position: Mapping[str, int], labels: Labels, run: Run) -> int:
    """Where in its period a repetition begins: one layer in each, and as few values handed on as can be."""

    def cost(first: int) -> tuple[int, int, int]:
        cut = first + run.period * (run.count // 2)
        if cut + run.period > run.stop:
            cut -= run.period
        passed = {
            leaf
            for op in flow.core[cut : cut + run.period]
            for leaf in flow.leaves_of(op)
            if cut - run.period <= position.get(leaf, -1) < cut
        }
        return len(labels.between(cut, cut + run.period)), len(passed), first

    return min(range(run.start, run.start + run.period), key=cost)


def _number(name: str) -> int | None:
    found = _NUMBER.search(name)
    return int(found[1]) if found else None
