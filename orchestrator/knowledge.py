"""What is known of each tensor: declared facts, guessed facts with the way to prove them, and data movement.

A plan tensor is *related* when facts tie every one of its elements to a specification tensor that is not data
movement itself (an *atom*) or to a literal. Facts guessed here are proved by layout stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.affine import Affine, Range
from certificates.facts import Fact, Reduced, Ref, relation_facts, split_ref
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from .cells import Cell, Cut, Digits, Unfollowable, explore, quotient, within
from .trace import moves, step


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


@dataclass
class Knowledge:
    """All facts of one problem; fact numbers are positions in ``facts``."""

    model: Model
    facts: list[Fact] = field(default_factory=list)
    recipes: dict[int, object] = field(default_factory=dict)
    by_lhs: dict[Ref, list[int]] = field(default_factory=dict)
    partials: dict[str, list[Reduced]] = field(default_factory=dict)
    hops: dict[str, list[int]] = field(default_factory=dict)
    nested: Callable[[Reduced], list[int]] = lambda _: []
    deep: Callable[[Ref], list[int]] = lambda _: []
    _known: dict[Fact, int] = field(default_factory=dict)
    _movement: dict[Ref, list[int]] = field(default_factory=dict)
    _asking: set[Ref] = field(default_factory=set)
    _links: dict[str, list[int] | None] = field(default_factory=dict)

    def declare_inputs(self) -> None:
        """The facts of the input relation."""
        for number, relation in enumerate(self.model.plan.inputs):
            for fact in relation_facts(self.model.plan, relation, "input", number):
                self.add(fact, None)

    def add(self, fact: Fact, recipe: object | None, *, relates: bool = True) -> int:
        """Record a fact (once); ``relates`` makes it usable as a relation of its left side."""
        if fact in self._known:
            return self._known[fact]
        number = len(self.facts)
        self.facts.append(fact)
        self._known[fact] = number
        if recipe is not None:
            self.recipes[number] = recipe
        if relates:
            self.by_lhs.setdefault(fact.lhs, []).append(number)
            if isinstance(fact.lhs, Reduced):
                for member in fact.lhs.of:
                    known = self.partials.setdefault(member, [])
                    if fact.lhs not in known:
                        known.append(fact.lhs)
        return number

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
                    found = [*self.nested(ref), *self._reduced_facts(ref)]
                elif self.moves(ref):
                    found = self._moved_facts(ref)
                else:
                    found = []
            except (Unrelated, Unfollowable, NoDefinition):
                found = []
            if not found and isinstance(ref, Reduced):
                found = self.deep(ref)
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
        for number in self.facts_for(ref):
            fact = self.facts[number]
            values = solve(fact.lhs_index, fact.ranges, index, ranges)
            if values is None:
                continue
            at = tuple(fold(f.substitute(values), ranges) for f in fact.rhs_index)
            return Reading(fact.coef, fact.rhs, at, number, tuple(values[s] for s, _, _ in fact.symbols))
        raise Unrelated(ref)

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
                factor, following, moved = self._hop(current, at, ranges)
            else:
                factor, following, moved = step(self.model, current, at, ranges)
            if isinstance(following, Reduced) and not across:
                return coef, current, at
            coef, at = coef * factor, moved
            if isinstance(following, Reduced):
                return coef, following, at
            current = following
        return coef, current, at

    def _hop(
        self, ref: str, index: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> tuple[Fraction, Ref, list[Affine]]:
        for number in self.hops[ref]:
            fact = self.facts[number]
            values = solve(fact.lhs_index, fact.ranges, index, ranges)
            if values is not None:
                return fact.coef, fact.rhs, [f.substitute(values) for f in fact.rhs_index]
        raise Unfollowable(f"{ref}: no hop covers {index}")

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
        return [self.add(fact, LayoutRecipe()) for fact in merge(pieces)]

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
            found = [self.add(fact, LayoutRecipe(), relates=False) for fact in merge(pieces)]
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


# --- solving and normal forms ------------------------------------------------------------------------


def solve(
    forms: Sequence[Affine],
    symbols: Mapping[str, Range],
    index: Sequence[Affine],
    ranges: Mapping[str, Range],
) -> dict[str, Affine] | None:
    """Values of ``symbols`` (in range) with ``forms = index`` on the whole box; ``None`` if there are none.

    Raises a split where only a part of the box has a solution. Symbols that no form mentions get their
    smallest value: such a fact holds for all of them.
    """
    values: dict[str, Affine] = {}
    rests: list[Affine] = []
    for form, target in zip(forms, index, strict=True):
        rest = target - form.const
        terms = sorted(form.terms, key=lambda t: -t[1])
        if any(c < 0 for _, c in terms):
            raise Unfollowable(f"index form {form} runs downwards")
        for n, (symbol, coef) in enumerate(terms):
            if symbol in values:
                rest = rest - values[symbol].scale(coef)
                continue
            try:
                values[symbol], rest = quotient(rest, coef, ranges)
            except (Cut, Digits):
                # Cut off what is out of reach first: its digits belong to other facts.
                first, last = Affine.of(0, terms[n:]).interval(symbols)
                if not within(rest, first, last + 1, ranges):
                    return None
                raise
        rests.append(rest)
    wanted = [(v, *symbols[s]) for s, v in values.items()] + [(r, 0, 1) for r in rests]
    # A box that has no solution at all must not be split in search of one.
    for form, lo, hi in wanted:
        first, last = form.interval(ranges)
        if last < lo or first >= hi:
            return None
    if not all([within(form, lo, hi, ranges) for form, lo, hi in wanted]):
        return None
    return {s: values.get(s, Affine(lo)) for s, (lo, _) in symbols.items()}


def fold(form: Affine, ranges: Mapping[str, Range]) -> Affine:
    """Replace symbols that have one value only."""
    single = {s: Affine(ranges[s][0]) for s in form.symbols if ranges[s][1] - ranges[s][0] == 1}
    return form.substitute(single) if single else form


def make_fact(
    model: Model,
    cell: Cell,
    lhs: Ref,
    left: Sequence[Affine],
    rhs: Ref,
    right: Sequence[Affine],
    coef: Fraction,
) -> Fact:
    """A fact over a cell, in normal form: digits joined where they can be, mesh axes by name, then ``z0,
    z1, …``.
    """
    axes = model.tensors.mesh_axes(lhs)
    forms, ranges = [*left, *right], dict(cell.ranges)
    mesh = {
        f.symbols[0]: a for f, a in zip(left, axes, strict=False) if len(f.terms) == 1 and f.terms[0][1] == 1
    }
    used = {s for f in forms for s in f.symbols}
    fixed = {s: Affine(ranges[s][0]) for s in used if ranges[s][1] - ranges[s][0] == 1 and s not in mesh}
    forms = [f.substitute(fixed) for f in forms]
    forms, ranges = _join_digits(forms, ranges, set(mesh))
    count = len(left)
    # A digit that is a coordinate of the left side takes that coordinate's values.
    shift = {}
    for f in forms[:count]:
        if len(f.terms) == 1 and f.terms[0][1] == 1 and f.const and f.terms[0][0] not in mesh:
            s = f.terms[0][0]
            shift[s] = Affine.symbol(s) - f.const
            ranges[s] = (ranges[s][0] + f.const, ranges[s][1] + f.const)
    forms = [f.substitute(shift) for f in forms]
    names: dict[str, str] = {}
    for f, a in zip(forms, axes, strict=False):
        if len(f.terms) == 1 and f.terms[0][0] in mesh:
            names[f.terms[0][0]] = a
    for f in forms:
        for s, _ in sorted(f.terms, key=lambda t: -abs(t[1])):
            if s not in names:
                names[s] = f"z{sum(n.startswith('z') for n in names.values())}"
    renaming = {s: Affine.symbol(n) for s, n in names.items()}
    forms = [f.substitute(renaming) for f in forms]
    symbols = sorted(names, key=lambda s: (names[s].startswith("z"), list(names).index(s)))
    return Fact(
        lhs,
        rhs,
        tuple((names[s], *ranges[s]) for s in symbols),
        tuple(forms[:count]),
        tuple(forms[count:]),
        coef,
    )


def _join_digits(
    forms: list[Affine], ranges: dict[str, Range], mesh: set[str]
) -> tuple[list[Affine], dict[str, Range]]:
    """Replace ``b*u + v`` by one symbol wherever two digits only ever occur so."""
    while True:
        symbols = sorted({s for f in forms for s in f.symbols} - mesh)
        for v in symbols:
            lo, hi = ranges[v]
            if lo != 0:
                continue
            pairs = [u for u in symbols if u != v and all(f.coef(u) == hi * f.coef(v) for f in forms)]
            if pairs:
                u = pairs[0]
                joined = f"{u}|{v}"
                first, last = ranges[u]
                ranges = ranges | {joined: (first * hi, last * hi)}
                one = Affine.symbol(joined)
                forms = [f.substitute({u: Affine(), v: Affine()}) + one.scale(f.coef(v)) for f in forms]
                break
        else:
            return forms, ranges


def merge(pieces: Sequence[Fact]) -> list[Fact]:
    """Join facts that differ in one symbol's range only, where the ranges touch."""
    out: list[Fact] = []
    for fact in pieces:
        while True:
            partner = next((f for f in out if _joined(f, fact) is not None), None)
            if partner is None:
                break
            joined = _joined(partner, fact)
            out.remove(partner)
            fact = joined if joined is not None else fact
        out.append(fact)
    return out


def _joined(a: Fact, b: Fact) -> Fact | None:
    if (a.lhs, a.rhs, a.coef, a.lhs_index) != (b.lhs, b.rhs, b.coef, b.lhs_index):
        return None
    if [s for s, _, _ in a.symbols] != [s for s, _, _ in b.symbols]:
        return None
    differing = [i for i, (x, y) in enumerate(zip(a.symbols, b.symbols, strict=True)) if x != y]
    if len(differing) != 1:
        return None
    i = differing[0]
    (name, lo, hi), (_, lo2, hi2) = a.symbols[i], b.symbols[i]
    if hi != lo2 and hi2 != lo:
        return None
    right = []
    for f, g in zip(a.rhs_index, b.rhs_index, strict=True):
        joined = _line(name, f, (lo, hi), g, (lo2, hi2))
        if joined is None:
            return None
        right.append(joined)
    symbols = (*a.symbols[:i], (name, min(lo, lo2), max(hi, hi2)), *a.symbols[i + 1 :])
    return Fact(a.lhs, a.rhs, symbols, a.lhs_index, tuple(right), a.coef)


def _line(name: str, f: Affine, here: Range, g: Affine, there: Range) -> Affine | None:
    """One form that is ``f`` on a range of a symbol and ``g`` on another;
    a single position fits any slope.
    """
    if f == g:
        return f
    if here[1] - here[0] > 1 and there[1] - there[0] > 1:
        return None
    if here[1] - here[0] > 1:
        f, here, g, there = g, there, f, here
    base = f.substitute({name: Affine(here[0])})
    if there[1] - there[0] > 1:
        return g if g.substitute({name: Affine(here[0])}) == base else None
    step = g.substitute({name: Affine(there[0])}) - base
    if not step.is_const or step.const % (there[0] - here[0]):
        return None
    slope = step.const // (there[0] - here[0])
    return base + Affine.of(-slope * here[0], {name: slope})
