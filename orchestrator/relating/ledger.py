"""Facts of one problem as they are recorded: declared ones, and guesses with the way to prove them."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, Reduced, Ref, relation_facts
from smtlib_emit.model import Model

from ..cells import Cell
from .movement import moves
from .solving_facts import solve


class Unrelated(Exception):
    """A tensor that has no known relation to the specification."""

    def __init__(self, ref: Ref) -> None:
        super().__init__(f"{ref} has no relation")
        self.ref = ref


@dataclass(frozen=True)
class Lift:
    """Premise of a fact about a reduced tensor: sum congruence over member facts."""

    facts: tuple[int, ...]
    axes: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class LayoutRecipe:
    """Prove by unfolding: ``expand`` lists tensors whose definitions are used besides data movement.

    ``parts`` are facts about pieces of the same tensors, which prove the whole; facts that are ``used`` say
    what their left sides are here, whatever else is known of these.
    """

    expand: frozenset[Ref] = frozenset()
    lifts: tuple[Lift, ...] = ()
    parts: tuple[int, ...] = ()
    used: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reading:
    """``ref[index] = coef * target[at]``: through ``fact`` at ``values``, or the tensor itself."""

    coef: Fraction
    target: Ref
    at: tuple[Affine, ...]
    fact: int | None = None
    values: tuple[Affine, ...] = ()


#: First and last position of a part along one coordinate, and which fact it is.
Span = tuple[int, int, int]
_FEW = 8


def _disjoint(facts: Sequence[Fact]) -> tuple[int, list[Span]] | None:
    """A coordinate along which the left sides have disjoint ranges, and these in order."""
    for place in range(len(facts[0].lhs_index)):
        spans = sorted((*f.lhs_index[place].interval(f.ranges), k) for k, f in enumerate(facts))
        if all(a[1] < b[0] for a, b in itertools.pairwise(spans)):
            return place, spans
    return None


@dataclass
class Ledger:
    """Facts of one problem; fact numbers are positions in ``facts``."""

    model: Model
    facts: list[Fact] = field(default_factory=list)
    recipes: dict[int, object] = field(default_factory=dict)
    by_lhs: dict[Ref, list[int]] = field(default_factory=dict)
    partials: dict[str, list[Reduced]] = field(default_factory=dict)
    hops: dict[str, list[int]] = field(default_factory=dict)
    #: Concatenations of the specification, which facts may speak of as a whole.
    landmarks: dict[str, None] = field(default_factory=dict)
    _known: dict[Fact, int] = field(default_factory=dict)
    #: First and last position of the left side of a fact, along each coordinate.
    _boxes: dict[int, tuple[Range, ...]] = field(default_factory=dict)
    _parts: dict[tuple[int, int, int], tuple[int, list[Span]] | None] = field(default_factory=dict)

    def declare_inputs(self) -> None:
        """The facts of the input relation."""
        for number, relation in enumerate(self.model.plan.inputs):
            for fact in relation_facts(self.model.plan, relation, "input", number):
                self.add(fact, None)

    def add(self, fact: Fact, recipe: object | None, *, relates: bool = True) -> int:
        """Record a fact (once); ``relates`` makes it usable as a relation of its left side.

        What has no recipe is taken for granted: declared facts, and no others.
        """
        if fact in self._known:
            number = self._known[fact]
            if recipe is not None and self.recipes.get(number) == LayoutRecipe():
                self.recipes[number] = recipe  # a claim, for which a way was found since
            if relates and number not in self.by_lhs.get(fact.lhs, ()):
                self.relate_by(number)
            return number
        number = len(self.facts)
        self.facts.append(fact)
        self._known[fact] = number
        if recipe is not None:
            self.recipes[number] = recipe
        if relates:
            self.relate_by(number)
        return number

    def relate_by(self, number: int) -> None:
        """Let a recorded fact be used as a relation of its left side."""
        lhs = self.facts[number].lhs
        self.by_lhs.setdefault(lhs, []).append(number)
        if isinstance(lhs, Reduced):
            for member in lhs.of:
                known = self.partials.setdefault(member, [])
                if lhs not in known:
                    known.append(lhs)

    def drop(self, number: int) -> None:
        """Forget a guess that has no proof: made again in another way, it is a new fact."""
        fact = self.facts[number]
        if self._known.get(fact) == number and number not in self.by_lhs.get(fact.lhs, ()):
            del self._known[fact]

    def repeats(self, ref: Ref) -> bool:
        """Whether a tensor is related to itself, at another place."""
        return any(self.facts[n].rhs == ref for n in self.by_lhs.get(ref, ()))

    def is_atom(self, ref: Ref) -> bool:
        """A specification tensor that stands for itself, or a literal."""
        if self.model.literal(ref) is not None:
            return True
        return isinstance(ref, str) and ref.startswith("s:") and not self.moves(ref)

    def moves(self, ref: Ref) -> bool:
        """Data movement, scaling by a literal, or a *hop*: an op proved to pass on or scale one operand."""
        return ref in self.hops or moves(self.model, ref)

    def below(self, ref: str) -> list[str]:
        """What an op reads; of a hop, such as the square of a root, what it passes on."""
        hops = dict.fromkeys(self.facts[n].rhs for n in self.hops.get(ref, ()))
        return [str(target) for target in hops] or list(self.model.operands(ref))

    def full_index(self, ref: Ref) -> Cell:
        """The box of all coordinates of a REF: mesh axes by name, dimensions ``o0, o1, …`` (0 if of
        size 1).
        """
        axes = self.model.tensors.mesh_axes(ref)
        ranges = self.model.tensors.ranges(ref)
        names = [*axes, *(f"o{d}" for d in range(len(ranges) - len(axes)))]
        cell = Cell.whole(dict(zip(names, ranges, strict=True)))
        fixed = {n: Affine(lo) for n, (lo, hi) in cell.ranges.items() if hi - lo == 1 and n not in axes}
        return Cell(cell.ranges, {n: fixed.get(n, form) for n, form in cell.at.items()})

    def through(
        self, numbers: Sequence[int], index: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> Reading | None:
        """What the first of some facts that covers an index says there; may raise a split of the box."""
        for number in self.near(numbers, index, ranges):
            fact = self.facts[number]
            if self._apart(number, index, ranges):
                continue
            values = solve(fact.lhs_index, fact.ranges, index, ranges)
            if values is not None:
                at = tuple(f.substitute(values) for f in fact.rhs_index)
                return Reading(fact.coef, fact.rhs, at, number, tuple(values[s] for s, _, _ in fact.symbols))
        return None

    def _apart(self, number: int, index: Sequence[Affine], ranges: Mapping[str, Range]) -> bool:
        """Whether a fact says nothing of an index, whatever its symbols are: no box is split to see that."""
        if number not in self._boxes:
            fact = self.facts[number]
            self._boxes[number] = tuple(f.interval(fact.ranges) for f in fact.lhs_index)
        for (lo, hi), form in zip(self._boxes[number], index, strict=True):
            if all(s in ranges for s, _ in form.terms):
                first, last = form.interval(ranges)
                if last < lo or hi < first:
                    return True
        return False

    def near(
        self, numbers: Sequence[int], index: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> Sequence[int]:
        """Those of many facts about disjoint parts of one tensor whose part an index may meet."""
        if len(numbers) <= _FEW:
            return numbers
        key = (numbers[0], numbers[-1], len(numbers))
        if key not in self._parts:
            self._parts[key] = _disjoint([self.facts[n] for n in numbers])
        found = self._parts[key]
        if found is None:
            return numbers
        place, spans = found
        if any(s not in ranges for s in index[place].symbols):
            return numbers
        lo, hi = index[place].interval(ranges)
        first = bisect_left(spans, lo, key=lambda s: s[1])
        last = bisect_right(spans, hi, key=lambda s: s[0])
        return [numbers[k] for k in sorted(s[2] for s in spans[first:last])]
