"""What is known of each tensor: declared facts, guessed facts with the way to prove them, and data movement.

A plan tensor is *related* when facts tie every one of its elements to a specification tensor that is not data
movement itself (an *atom*) or to a literal. Facts guessed here are proved by layout stages.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, Reduced, Ref, relation_facts, split_ref
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..cells import Cell, Cut, Unfollowable, explore
from .joining import join
from .movement import moves, step
from .solving_facts import fold, make_fact, solve


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

    ``parts`` are facts about pieces of the same tensors, which prove the whole.
    """

    expand: frozenset[Ref] = frozenset()
    lifts: tuple[Lift, ...] = ()
    parts: tuple[int, ...] = ()


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
class Knowledge:
    """All facts of one problem; fact numbers are positions in ``facts``."""

    model: Model
    facts: list[Fact] = field(default_factory=list)
    recipes: dict[int, object] = field(default_factory=dict)
    by_lhs: dict[Ref, list[int]] = field(default_factory=dict)
    partials: dict[str, list[Reduced]] = field(default_factory=dict)
    hops: dict[str, list[int]] = field(default_factory=dict)
    #: Concatenations of the specification, which facts may speak of as a whole.
    landmarks: dict[str, None] = field(default_factory=dict)
    #: Facts that one fact stands for, by their left side.
    restated: dict[Ref, tuple[int, ...]] = field(default_factory=dict)
    #: Further ways to relate a tensor: sums of sums over ranks, and what only a whole cone of ops shows.
    nested: Callable[[Reduced], list[int]] = lambda _: []
    masked: Callable[[Ref], list[int]] = lambda _: []
    #: Sums over ranks of what is one number.
    counted: Callable[[Reduced], list[int]] = lambda _: []
    _known: dict[Fact, int] = field(default_factory=dict)
    _movement: dict[Ref, list[int]] = field(default_factory=dict)
    _asking: set[Ref] = field(default_factory=set)
    _links: dict[str, list[int] | None] = field(default_factory=dict)
    _parts: dict[tuple[int, int, int], tuple[int, list[Span]] | None] = field(default_factory=dict)

    def declare_inputs(self) -> None:
        """The facts of the input relation."""
        for number, relation in enumerate(self.model.plan.inputs):
            for fact in relation_facts(self.model.plan, relation, "input", number):
                self.add(fact, None)

    def add(self, fact: Fact, recipe: object | None, *, relates: bool = True) -> int:
        """Record a fact (once); ``relates`` makes it usable as a relation of its left side."""
        if fact in self._known:
            number = self._known[fact]
            if recipe is not None and self.recipes.get(number) == LayoutRecipe():
                self.recipes[number] = recipe  # a claim, for which a way was found since
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

    def restate(self, facts: Sequence[Fact]) -> None:
        """Let facts stand for all that is known of their left side, which proves them."""
        lhs = facts[0].lhs
        parts = self.restated[lhs] = tuple(self.facts_for(lhs))
        self.by_lhs[lhs] = []
        for fact in facts:
            self.add(fact, LayoutRecipe(expand=frozenset((fact.rhs,)), parts=parts))

    def drop(self, number: int) -> None:
        """Forget a guess that has no proof: made again in another way, it is a new fact."""
        fact = self.facts[number]
        if self._known.get(fact) == number and number not in self.by_lhs.get(fact.lhs, ()):
            del self._known[fact]

    def is_atom(self, ref: Ref) -> bool:
        """A specification tensor that stands for itself, or a literal."""
        if self.model.literal(ref) is not None:
            return True
        return isinstance(ref, str) and ref.startswith("s:") and not self.moves(ref)

    def moves(self, ref: Ref) -> bool:
        """Data movement, scaling by a literal, or a *hop*: an op proved to pass on or scale one operand."""
        return ref in self.hops or moves(self.model, ref)

    def facts_for(self, ref: Ref) -> list[int]:
        """Facts with this left side that cover it; empty if it is unrelated."""
        if ref in self.by_lhs:
            return self.by_lhs[ref]
        if ref not in self._movement:
            outermost = not self._asking
            self._asking.add(ref)
            self._movement[ref] = []
            try:
                if isinstance(ref, Reduced):
                    found = [*self.nested(ref), *self._reduced_facts(ref), *self._repeated(ref)]
                elif self.moves(ref):
                    found = self._moved_facts(ref)
                else:
                    found = []
            except (Unrelated, Unfollowable, NoDefinition):
                found = []
            if not found and isinstance(ref, Reduced):
                found = self.masked(ref) or self.counted(ref)
            self._asking.discard(ref)
            if not found and not outermost:
                # Not known while something else is being asked: that something may be what it needs.
                del self._movement[ref]
                return []
            self._movement[ref] = found
        return self._movement[ref]

    def forget_failures(self) -> None:
        """What had no relation may have one now."""
        self._movement = {ref: found for ref, found in self._movement.items() if found}

    def read(self, ref: Ref, index: Sequence[Affine], ranges: Mapping[str, Range]) -> Reading:
        """The relation of one element on a box; raises :class:`Unrelated` or a split of the box."""
        if self.is_atom(ref) and ref not in self.by_lhs:
            return Reading(Fraction(1), ref, tuple(fold(f, ranges) for f in index))
        found = self.through(self.facts_for(ref), index, ranges)
        if found is None:
            raise Unrelated(ref)
        return replace(found, at=tuple(fold(f, ranges) for f in found.at))

    def through(
        self, numbers: Sequence[int], index: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> Reading | None:
        """What the first of some facts that covers an index says there; may raise a split of the box."""
        for number in self.near(numbers, index, ranges):
            fact = self.facts[number]
            if any(f.is_const and g.is_const and f != g for f, g in zip(fact.lhs_index, index, strict=True)):
                continue
            values = solve(fact.lhs_index, fact.ranges, index, ranges)
            if values is not None:
                at = tuple(f.substitute(values) for f in fact.rhs_index)
                return Reading(fact.coef, fact.rhs, at, number, tuple(values[s] for s, _, _ in fact.symbols))
        return None

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

    def summed(self, ref: Reduced, index: Sequence[Affine], ranges: Mapping[str, Range]) -> Reading:
        """The relation of a sum that a stage opens: its fact then says what the right side is.

        So the right side must determine all of the left. Ranks that hold equal sums are told apart, one by
        one.
        """
        reading = self.read(ref, index, ranges)
        if reading.fact is None:
            return reading
        fact = self.facts[reading.fact]
        determined = {s for f in fact.rhs_index for s in f.symbols}
        open_symbols = [s for s, lo, hi in fact.symbols if hi - lo > 1 and s not in determined]
        if not open_symbols:
            return reading
        values = dict(zip((s for s, _, _ in fact.symbols), reading.values, strict=True))
        for s in open_symbols:
            for symbol in values[s].symbols:
                lo, hi = ranges[symbol]
                if hi - lo > 1:
                    raise Cut(symbol, lo + 1)
        left = tuple(fold(f, ranges) for f in index)
        one = make_fact(self.model, Cell(ranges, {}), ref, left, fact.rhs, reading.at, fact.coef)
        number = self.add(one, LayoutRecipe(parts=(reading.fact,)), relates=False)
        at = solve(one.lhs_index, one.ranges, left, ranges)
        if at is None:
            raise Unrelated(ref)
        return Reading(
            reading.coef, reading.target, reading.at, number, tuple(at[s] for s, _, _ in one.symbols)
        )

    def full_index(self, ref: Ref) -> Cell:
        """The box of all coordinates of a REF: mesh axes by name, dimensions ``o0, o1, …`` (0 if of size
        1).
        """
        axes = self.model.tensors.mesh_axes(ref)
        ranges = self.model.tensors.ranges(ref)
        names = [*axes, *(f"o{d}" for d in range(len(ranges) - len(axes)))]
        cell = Cell.whole(dict(zip(names, ranges, strict=True)))
        fixed = {n: Affine(lo) for n, (lo, hi) in cell.ranges.items() if hi - lo == 1 and n not in axes}
        return Cell(cell.ranges, {n: fixed.get(n, form) for n, form in cell.at.items()})

    # --- data movement -------------------------------------------------------------------------------------

    def source(
        self, ref: str, index: Sequence[Affine], ranges: Mapping[str, Range], *, across: bool = True
    ) -> tuple[Fraction, Ref, list[Affine]]:
        """Follow data movement until a tensor that is not moved, is reduced, or has facts of its own.

        Without ``across`` the way ends at the result of a reduction over ranks, not at the reduced tensor.
        """
        coef, current, at = Fraction(1), ref, list(index)
        while self.moves(current) and (current == ref or current not in self.by_lhs):
            following: Ref
            if current in self.hops:
                hop = self.through(self.hops[current], at, ranges)
                if hop is None:
                    raise Unfollowable(f"{current}: no hop covers {at}")
                factor, following, moved = hop.coef, hop.target, list(hop.at)
            else:
                factor, following, moved = step(self.model, current, at, ranges)
            if isinstance(following, Reduced) and not across:
                return coef, current, at
            coef, at = coef * factor, moved
            if isinstance(following, Reduced):
                return coef, following, at
            current = following
        return coef, current, at

    def _moved_facts(self, ref: str) -> list[int]:
        """Facts of the parts whose sources are related; padding, say, stays open."""

        def compute(cell: Cell) -> tuple[Fraction, Ref, tuple[Affine, ...]] | None:
            coef, current, at = self.source(ref, list(cell.at.values()), cell.ranges)
            try:
                reading = self.read(current, at, cell.ranges)
            except Unrelated:
                return None
            return coef * reading.coef, reading.target, reading.at

        whole = self.full_index(ref)
        pieces = [
            make_fact(self.model, cell, ref, tuple(cell.at.values()), found[1], found[2], found[0])
            for cell, found in explore(whole, compute)
            if found is not None
        ]
        return [self.add(fact, LayoutRecipe()) for fact in join(self.model, pieces)]

    def links(self, ref: str) -> list[int] | None:
        """Facts that tie a moved plan tensor to the unmoved plan tensors of its own rank it comes from.

        ``None`` if the tensor is not moved; raises ``Unfollowable`` where it crosses ranks.
        """
        if ref in self._links:
            return self._links[ref]
        found: list[int] | None = None
        if self.moves(ref):
            mesh = len(self.model.tensors.mesh_axes(ref))

            def compute(cell: Cell) -> tuple[Fraction, Ref, tuple[Affine, ...]]:
                index = list(cell.at.values())
                coef, current, at = self.source(ref, index, cell.ranges, across=False)
                if isinstance(current, Reduced) or current == ref or at[:mesh] != index[:mesh]:
                    raise Unfollowable(f"{ref} crosses ranks")
                return coef, current, tuple(at)

            pieces = [
                make_fact(self.model, cell, ref, tuple(cell.at.values()), current, at, coef)
                for cell, (coef, current, at) in explore(self.full_index(ref), compute)
            ]
            found = [self.add(fact, LayoutRecipe(), relates=False) for fact in join(self.model, pieces)]
        self._links[ref] = found
        return found

    def _reduced_facts(self, ref: Reduced) -> list[int]:
        """Relate a reduced tensor through the data movement of its members."""
        model = self.model
        axes = list(model.plan.mesh.axes)
        whole = self.full_index(ref)
        extra: dict[str, Range] = {}
        for m in ref.of:
            owner = split_ref(m)[0]
            extra |= {f"{owner}.{a}": model.plan.by_class[owner].box[a] for a in ref.axes}
        start = Cell.whole(dict(whole.ranges) | extra)

        def compute(
            cell: Cell,
        ) -> tuple[Fraction, Ref, tuple[Affine, ...], list[tuple[Fraction, Ref, list[Affine]]]] | None:
            sources: list[tuple[Fraction, Ref, list[Affine]]] = []
            index = [cell.at[s] for s in whole.ranges]
            kept: list[Affine] | None = None
            for m in ref.of:
                owner = split_ref(m)[0]
                mine = {f"{owner}.{a}" for a in ref.axes}
                if any(cell.at[s] != Affine.symbol(s) for s in mine):
                    raise Unfollowable(f"{ref}: the movement of {m} depends on the rank")
                at = list(index)
                for a in ref.axes:
                    at.insert(axes.index(a), Affine.symbol(f"{owner}.{a}"))
                coef, current, source = self.source(m, at, cell.ranges, across=False)
                same = [source[i] == at[i] for i, a in enumerate(axes) if a in ref.axes]
                if isinstance(current, Reduced) or not all(same):
                    raise Unfollowable(f"{ref}: {m} crosses ranks")
                rest = [f for i, f in enumerate(source) if i >= len(axes) or axes[i] not in ref.axes]
                if any(s in mine for f in rest for s in f.symbols):
                    raise Unfollowable(f"{ref}: the movement of {m} depends on the rank")
                if kept is not None and rest != kept:
                    raise Unfollowable(f"{ref}: members move differently")
                kept = rest
                sources.append((coef, current, source))
            if kept is None or len({c for c, _, _ in sources}) != 1:
                raise Unfollowable(f"{ref}: members are scaled differently")
            coef = sources[0][0]
            family = {split_ref(g)[0]: g for _, g, _ in sources if isinstance(g, str)}
            inner = model.reduced_of(next(iter(family)), family, ref.axes, ref.kind)
            try:
                if inner != ref and (inner in self.by_lhs or self.facts_for(inner)):
                    reading = self.read(inner, kept, cell.ranges)
                    return coef * reading.coef, reading.target, reading.at, sources
                return *self._replicated(ref, coef, sources, cell), sources
            except Unrelated:
                return None

        pieces: list[tuple[Fact, Cell, list[tuple[Fraction, Ref, list[Affine]]]]] = []
        for cell, found in explore(start, compute):
            if found is None:
                continue
            coef, target, at, sources = found
            if ref.kind != "add" and coef <= 0:
                raise Unfollowable(f"{ref}: {ref.kind} under a negative factor")
            left = tuple(cell.at[s] for s in whole.ranges)
            pieces.append((make_fact(model, cell, ref, left, target, at, coef), cell, sources))
        numbers = []
        for fact, cell, sources in pieces:
            lifts: list[int] = []
            for m, (factor, g, source) in zip(ref.of, sources, strict=True):
                if g == m:
                    continue
                owner = split_ref(m)[0]
                here = [cell.at[s] for s in whole.ranges]
                for a in ref.axes:
                    here.insert(axes.index(a), Affine.symbol(f"{owner}.{a}"))
                link = make_fact(model, cell, m, here, g, source, factor)
                lifts.append(self.add(link, LayoutRecipe(), relates=False))
            if not lifts and sources[0][1] in ref.of:
                readings = [self.read(g, place, cell.ranges) for _, g, place in sources]
                lifts = [r.fact for r in readings if r.fact is not None]
            recipe = LayoutRecipe(lifts=(Lift(tuple(lifts), ref.axes, ref.kind),) if lifts else ())
            numbers.append(self.add(fact, recipe))
        return numbers

    def _repeated(self, ref: Reduced) -> list[int]:
        """Sums over fewer axes that are equal on the ranks of the others: over all axes, so many times it."""
        boxes = self.model.plan.by_class[split_ref(ref.of[0])[0]].box
        numbers = []
        for inner in self.partials.get(ref.of[0], ()):
            rest = tuple(a for a in ref.axes if a not in inner.axes)
            if inner.kind != ref.kind or inner.of != ref.of or len(rest) + len(inner.axes) != len(ref.axes):
                continue
            count = math.prod(boxes[a][1] - boxes[a][0] for a in rest) if ref.kind == "add" else 1
            for number in self.by_lhs[inner]:
                fact = self.facts[number]
                whole = all(fact.ranges.get(a) == boxes[a] for a in rest)
                if not whole or any(a in f.symbols for f in fact.rhs_index for a in rest):
                    continue
                at = [f for f in fact.lhs_index if f.symbols[:1] not in {(a,) for a in rest}]
                cell = Cell({s: (lo, hi) for s, lo, hi in fact.symbols if s not in rest}, {})
                wide = make_fact(self.model, cell, ref, at, fact.rhs, fact.rhs_index, fact.coef * count)
                numbers.append(self.add(wide, LayoutRecipe(lifts=(Lift((number,), rest, ref.kind),))))
        return numbers

    def _replicated(
        self, ref: Reduced, coef: Fraction, sources: Sequence[tuple[Fraction, Ref, list[Affine]]], cell: Cell
    ) -> tuple[Fraction, Ref, tuple[Affine, ...]]:
        """Members that all equal one specification tensor: ``n`` times it (sums), or it (max, min)."""
        found: set[tuple[Fraction, Ref, tuple[Affine, ...]]] = set()
        for _, g, place in sources:
            reading = self.read(g, place, cell.ranges)
            if any("." in s for f in reading.at for s in f.symbols):
                raise Unrelated(ref)
            found.add((reading.coef, reading.target, reading.at))
        if len(found) != 1 or any(g not in ref.of for _, g, _ in sources):
            raise Unrelated(ref)
        factor, target, at = found.pop()
        count = math.prod(self.model.plan.mesh.axes[a] for a in ref.axes) if ref.kind == "add" else 1
        return coef * factor * count, target, at
