"""Sums and products in another order: ops matched by their polynomials over non-ring tensors.

Frameworks add gradients, and multiply scales, in an order of their own. An op made of ``add subtract multiply`` and
scalings is written as a polynomial over elements of tensors that are none of these; a plan op whose polynomial is a
multiple of a specification op's is matched with it, however both are bracketed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.affine import Affine, Range
from certificates.facts import Reduced, Ref
from smtlib_emit.errors import NoDefinition

from .cells import Cell, Cut, Digits, Unfollowable
from .knowledge import Knowledge, Unrelated

RING = frozenset(("add", "subtract", "multiply"))
MAX_MONOMIALS = 24

Leaf = tuple[Ref, tuple[Affine, ...]]
Monomial = tuple[Leaf, ...]
Polynomial = dict[Monomial, Fraction]


@dataclass
class Trail:
    """What was opened and used on the way to a polynomial; ``partial`` are reduced tensors of its summands."""

    opened: set[Ref] = field(default_factory=set)
    instances: list[tuple[int, tuple[Affine, ...], str]] = field(default_factory=list)
    uses: list[tuple[Ref, tuple[Affine, ...]]] = field(default_factory=list)
    partial: set[Reduced] = field(default_factory=set)


class TooLarge(Exception):
    """A polynomial over the limit; its tensor is then a leaf."""


class Rings:
    """Polynomials of specification and plan elements."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self._generic: dict[str, tuple[list[str], Polynomial] | None] = {}
        self._with_leaf: dict[Ref, list[str]] = {}

    def index(self, ref: str) -> None:
        """Make a specification op known to :meth:`partners`."""
        generic = self._of_specification(ref)
        if generic is None:
            return
        for leaf in {leaf for m in generic[1] for leaf, _ in m}:
            self._with_leaf.setdefault(leaf, []).append(ref)

    def _of_specification(self, ref: str) -> tuple[list[str], Polynomial] | None:
        """Index symbols and polynomial of a ring op at a symbolic index; ``None`` for a leaf."""
        if ref not in self._generic:
            self._generic[ref] = None
            op = self.model.op(ref)
            if op is not None and op.name in RING and op.type.sort == "Real" and self.k.is_atom(ref):
                cell = self.k.full_index(ref)
                names = {s: Affine.symbol(f"y{s}") for s in cell.ranges}
                ranges = {f"y{s}": r for s, r in cell.ranges.items()}
                at = [cell.at[s].substitute(names) for s in cell.ranges]
                try:
                    poly = self._operands(ref, at, ranges, Trail())
                    self._generic[ref] = ([f"y{s}" for s in cell.ranges], poly)
                except (Cut, Digits, Unrelated, Unfollowable, NoDefinition, TooLarge):
                    pass
        return self._generic[ref]

    def polynomial(
        self, ref: Ref, at: Sequence[Affine], ranges: Mapping[str, Range], trail: Trail, *, opening: bool = False
    ) -> Polynomial:
        """The polynomial of one element; ``opening`` opens the tensor itself even if it is related."""
        at = tuple(at)
        value = self.model.literal(ref)
        if isinstance(value, Fraction):
            return {(): value} if value else {}
        if value is not None:
            raise Unfollowable(f"{ref} is not a rational literal")
        trail.uses.append((ref, at))
        if opening and isinstance(ref, str):
            trail.opened.add(ref)
            return self._operands(ref, at, ranges, trail)
        if isinstance(ref, str) and ref.startswith("s:") and self.k.is_atom(ref) and ref not in self.k.by_lhs:
            if self._of_specification(ref) is None:
                return {((ref, at),): Fraction(1)}
            trail.opened.add(ref)
            return self._operands(ref, at, ranges, trail)
        try:
            reading = self.k.read(ref, at, ranges)
        except Unrelated:
            return self._unrelated(ref, at, ranges, trail)
        if reading.fact is not None:
            trail.instances.append((reading.fact, reading.values, "lhs"))
        inner = self.polynomial(reading.target, reading.at, ranges, trail)
        return {m: reading.coef * c for m, c in inner.items()}

    def _unrelated(self, ref: Ref, at: tuple[Affine, ...], ranges: Mapping[str, Range], trail: Trail) -> Polynomial:
        if not isinstance(ref, str) or ref.startswith("s:"):
            raise Unrelated(ref)
        op = self.model.op(ref)
        if op is not None and op.name in RING and not self.k.moves(ref) and ref not in self.k.partials:
            trail.opened.add(ref)
            return self._operands(ref, at, ranges, trail)
        links = self.k.links(ref)
        if links is not None:
            from .knowledge import solve

            for number in links:
                fact = self.k.facts[number]
                values = solve(fact.lhs_index, fact.ranges, at, ranges)
                if values is not None:
                    trail.instances.append((number, tuple(values[s] for s, _, _ in fact.symbols), "lhs"))
                    source = tuple(f.substitute(values) for f in fact.rhs_index)
                    inner = self.polynomial(fact.rhs, source, ranges, trail)
                    return {m: fact.coef * c for m, c in inner.items()}
            raise Unrelated(ref)
        axes = list(self.model.plan.mesh.axes)
        for reduced in self.k.partials.get(ref, []):
            if reduced.kind == "add":
                rest = tuple(f for i, f in enumerate(at) if i >= len(axes) or axes[i] not in reduced.axes)
                reading = self.k.read(reduced, rest, ranges)
                assert reading.fact is not None
                trail.partial.add(reduced)
                trail.uses += [(reduced, rest), (reading.target, reading.at)]
                trail.instances.append((reading.fact, reading.values, "rhs"))
                # The summand stands for the whole: ring ops treat all summands of one sum alike.
                return {((reading.target, reading.at),): reading.coef}
        raise Unrelated(ref)

    def _operands(self, ref: str, at: Sequence[Affine], ranges: Mapping[str, Range], trail: Trail) -> Polynomial:
        op = self.model.ops[ref]
        left, right = (self.polynomial(v, at, ranges, trail) for v in self.model.operands(ref))
        out: Polynomial = {}
        if op.name == "multiply":
            for m, c in left.items():
                for n, d in right.items():
                    key = tuple(sorted((*m, *n), key=str))
                    out[key] = out.get(key, Fraction(0)) + c * d
        else:
            sign = -1 if op.name == "subtract" else 1
            out = dict(left)
            for m, c in right.items():
                out[m] = out.get(m, Fraction(0)) + sign * c
        out = {m: c for m, c in out.items() if c}
        if len(out) > MAX_MONOMIALS:
            raise TooLarge(ref)
        return out

    # --- partners ------------------------------------------------------------------------------------------

    def partners(
        self, poly: Polynomial, cell: Cell, ranges: Mapping[str, Range]
    ) -> list[tuple[str, tuple[Affine, ...], Fraction]]:
        """Specification ops, where to read them, and the factor by which ``poly`` is a multiple of theirs."""
        leaves = {leaf for m in poly for leaf, _ in m}
        if not leaves:
            return []
        pools = [self._with_leaf.get(leaf, []) for leaf in leaves]
        out = []
        for spec in dict.fromkeys(pools[0]):
            if not all(spec in pool for pool in pools[1:]):
                continue
            found = self._partner(spec, poly, ranges)
            if found is not None:
                out.append((spec, *found))
        return out

    def _partner(
        self, spec: str, poly: Polynomial, ranges: Mapping[str, Range]
    ) -> tuple[tuple[Affine, ...], Fraction] | None:
        generic = self._of_specification(spec)
        if generic is None or len(generic[1]) != len(poly):
            return None
        symbols, theirs = generic
        known: dict[str, Affine] = {}
        mine = _single(poly)
        for leaf, at in _single(theirs).items():
            target = mine.get(leaf)
            if target is None:
                continue
            for form, value in zip(at, target, strict=True):
                if len(form.terms) == 1 and form.terms[0][1] == 1:
                    known.setdefault(form.terms[0][0], value - form.const)
        out = []
        for s, (lo, hi) in zip(symbols, self.model.tensors.ranges(spec), strict=True):
            if hi - lo == 1:
                known[s] = Affine(lo)
            if s not in known:
                return None
            first, last = known[s].interval(ranges)
            if first < lo or last >= hi:
                return None
            out.append(known[s])
        placed: Polynomial = {}
        for m, c in theirs.items():
            key = tuple(sorted(((leaf, tuple(f.substitute(known) for f in at)) for leaf, at in m), key=str))
            placed[key] = placed.get(key, Fraction(0)) + c
        if set(placed) != set(poly):
            return None
        ratios = {poly[m] / c for m, c in placed.items()}
        return (tuple(out), ratios.pop()) if len(ratios) == 1 else None


def _single(poly: Polynomial) -> dict[Ref, tuple[Affine, ...]]:
    """Leaves that occur at one index only."""
    found: dict[Ref, set[tuple[Affine, ...]]] = {}
    for m in poly:
        for leaf, at in m:
            found.setdefault(leaf, set()).add(at)
    return {leaf: next(iter(ats)) for leaf, ats in found.items() if len(ats) == 1}
