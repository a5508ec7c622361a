"""States that ranks have under names of their own: which of the single device's they hold, as their cuts say.

Half of a fused weight, two weights in one, a parameter behind a wrapper's attribute: the names of the single
device are not theirs, but how ``parallelize`` cut them was followed. Optimizer states follow their parameter
(ADR 0195).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from certificates.plan import placements as placed
from certificates.plan.affine import Range
from certificates.plan.plan import Mesh, RankClass, Relation

from .cutting import Cut
from .errors import LayoutError
from .fitting import Sample
from .layouts import Layout
from .placing import Placement, agree, compare, forms, pieces, within

#: Kinds of states that a cut tells of: what was cut, and what the optimizer keeps for it.
_KINDS = ("params", "buffers", "opt")
_NONE = Cut(None, None, ())


@dataclass
class Renamed:
    """Tensors of the plan, by name, with those of the specification that they hold parts of.

    ``states`` are the names of the specification's inputs, ``others`` the plan's that are told otherwise.
    """

    states: Collection[str]
    others: Collection[str]
    traces: Sequence[Sample]
    #: By the plan's name and the specification's: what was cut, of which an optimizer may keep this.
    holds: dict[str, Mapping[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        names = dict.fromkeys(n for t in self.traces if t.rank is not None for n in t.layouts)
        found = {n: self._sources(n) for n in names if n not in self.states and n not in self.others}
        self.holds = {name: sources for name, sources in found.items() if sources}

    def under(self, name: str) -> list[str]:
        """The plan's names of tensors that hold parts of a state."""
        return [plan for plan, sources in self.holds.items() if name in sources]

    def complete(self, changed: Collection[str]) -> set[str]:
        """Those of which the single-device step changes all that they hold."""
        return {name for name, sources in self.holds.items() if set(sources) <= set(changed)}

    def numbers(self) -> dict[str, list[str]]:
        """What an optimizer keeps one number for, by that number's name on the ranks."""
        return {plan: [*sources] for plan, sources in self.holds.items() if self._one_number(plan)}

    def unlike(self, mesh: Mesh, boxes: Sequence[Mapping[str, Range]]) -> list[str]:
        """Axes along which ranks of one class, in these ``boxes``, hold parts of other forms."""
        found: dict[str, None] = {}
        for plan in self.holds:
            cuts = self._cuts(plan)
            for one, other in itertools.combinations(cuts, 2):
                apart = [a for a, x in mesh.coordinates(one).items() if x != mesh.coordinates(other)[a]]
                together = any(within(mesh, box, one) and within(mesh, box, other) for box in boxes)
                if len(apart) == 1 and together and forms(cuts[one]) != forms(cuts[other]):
                    found[apart[0]] = None
        return list(found)

    def relations(
        self,
        name: str,
        shape: tuple[int, ...],
        mesh: Mesh,
        classes: Sequence[RankClass],
        boxes: Sequence[Mapping[str, Range]],
        *,
        left: bool = False,
    ) -> Iterator[Relation]:
        """What tensors of other names hold of a state; with ``left``, after the step.

        A class that does not change its part, a layout that is not how it was cut, and parts that follow no
        rule are each a :class:`LayoutError`.
        """
        for plan in self.under(name):
            holders = holding(plan, f"holds {name}", classes, left=left)
            if holders and self._one_number(plan):
                yield placed.relate(name, shape, {}, mesh, holders, plan=plan)
            elif holders:
                source = self.holds[plan][name]
                cuts = {rank: _of(source, cut) for rank, cut in self._cuts(plan).items()}
                agree(plan, cuts)
                self._compare(plan, source, shape, mesh, cuts)
                yield replace(pieces(source, mesh, holders, cuts, boxes), spec=name, plan=plan)

    # --- cuts ----------------------------------------------------------------------------------------------

    def _sources(self, name: str) -> Mapping[str, str]:
        """What a tensor holds parts of; nothing if its cut does not say so at every traced rank."""
        found: dict[str, str] = {}
        if name.partition(".")[0] not in _KINDS:
            return found
        layouts, cuts = self._layouts(name), self._cuts(name)
        if any(layout.summed or cuts.get(rank, _NONE).parts is None for rank, layout in layouts.items()):
            return found
        for rank, cut in cuts.items():
            owner = layouts[rank].owner
            for source in dict.fromkeys(p.source for p in cut.parts or () if p.source is not None):
                kept = name.removesuffix(owner) + source.partition(".")[2]
                found[kept if name.startswith("opt.") else source] = source
        return found if found.keys() <= set(self.states) else {}

    def _layouts(self, name: str) -> dict[int, Layout]:
        return {t.rank: t.layouts[name] for t in self.traces if t.rank is not None and name in t.layouts}

    def _one_number(self, name: str) -> bool:
        """Whether an optimizer keeps one number for all of a parameter."""
        return name.startswith("opt.") and not any(x.local for x in self._layouts(name).values())

    def _cuts(self, name: str) -> dict[int, Cut]:
        """How a tensor was cut, or its parameter if this is one number of the optimizer."""
        found = self._layouts(name)
        if self._one_number(name):
            found = self._layouts(next(iter(found.values())).source(name))
        return {rank: layout.cut for rank, layout in found.items() if layout.cut is not None}

    def _compare(
        self, name: str, source: str, shape: tuple[int, ...], mesh: Mesh, cuts: Mapping[int, Cut]
    ) -> None:
        """A layout that a DTensor or the definition says must be how it was cut."""
        for layout in self._layouts(name).values():
            if layout.shards is not None:
                compare(source, shape, Placement(layout.shards, layout.order, layout.joint), mesh, cuts)


def holding(plan: str, what: str, classes: Sequence[RankClass], *, left: bool) -> list[RankClass]:
    """The classes that have a state; with ``left``, one that does not change it is a ``LayoutError``."""
    holders = [c for c in classes if plan in c.program.inputs]
    idle = next((c for c in holders if left and plan not in c.program.outputs), None)
    if idle is not None:
        message = f"{what}, which the single-device step changes and class {idle.name} does not"
        raise LayoutError(message, tensor=plan)
    return holders


def _of(source: str, cut: Cut) -> Cut:
    """The parts of a cut that come from one tensor."""
    return replace(cut, parts=tuple(p for p in cut.parts or () if p.source == source))
