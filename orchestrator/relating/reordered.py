"""Sums and products in another order: ops matched by their polynomials over non-ring tensors.

Frameworks add gradients, and multiply scales, in an order of their own. A plan op whose polynomial is a
multiple of a specification op's is matched with it, however both are bracketed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Reduced, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cut, Digits, Unfollowable
from .knowledge import Knowledge
from .ledger import Unrelated
from .polynomials import (
    MAX_OPENED,
    Alien,
    Inverse,
    Polynomial,
    Polynomials,
    Summand,
    TooLarge,
    Trail,
)


class Rings:
    """Partners of plan ops among the specification's, by their polynomials."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.polynomials = knowledge, Polynomials(knowledge)
        self._readers: dict[Ref, list[str]] = {}

    def index(self, ref: str, targets: Sequence[Ref]) -> None:
        """Make a specification op, which reads ``targets``, known to :meth:`partners`."""
        if self.polynomials.opens(ref):
            for target in dict.fromkeys(targets):
                self._readers.setdefault(target, []).append(ref)

    def partners(
        self, poly: Polynomial, ranges: Mapping[str, Range]
    ) -> Iterator[tuple[str, tuple[Affine, ...], Fraction, Trail]]:
        """Specification ops, where to read them, the factor by which ``poly`` is a multiple of theirs, their
        trail.
        """
        leaves = {leaf for m in poly for leaf, _ in m}
        if not leaves:
            return
        if len(poly) == 1:
            ((monomial, coef),) = poly.items()
            if len(monomial) == 1 and not isinstance(monomial[0][0], Inverse | Summand | Reduced):
                yield monomial[0][0], monomial[0][1], coef, Trail()  # nothing but the element itself
                return
        tensors = {leaf.ref if isinstance(leaf, Inverse | Summand) else leaf for leaf in leaves}
        rarest = min(tensors, key=lambda t: len(self._readers.get(t, [])))
        reached = list(self._readers.get(rarest, []))
        seen = set(reached)
        for spec in reached:
            if len(seen) > MAX_OPENED:
                return
            trail = Trail()
            try:
                found = self._partner(spec, poly, leaves, ranges, trail)
            except (Alien, TooLarge):
                continue
            if found is not None:
                yield (spec, *found, trail)
            above = [r for r in self._readers.get(spec, []) if r not in seen]
            seen.update(above)
            reached += above

    def _partner(
        self,
        spec: str,
        poly: Polynomial,
        leaves: Collection[object],
        ranges: Mapping[str, Range],
        trail: Trail,
    ) -> tuple[tuple[Affine, ...], Fraction] | None:
        cell = self.k.full_index(spec)
        own = {f"y{s}": r for s, r in cell.ranges.items()}
        try:
            theirs = self.polynomials.of_specification(
                spec, [Affine.symbol(s) for s in own], own, Trail(), leaves
            )
        except (Cut, Digits, Unrelated, Unfollowable, NoDefinition):
            return None
        if len(theirs) != len(poly):
            return None
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
        for s, (lo, hi) in own.items():
            if hi - lo == 1:
                known[s] = Affine(lo)
            if s not in known:
                return None
            first, last = known[s].interval(ranges)
            if first < lo or last >= hi:
                return None
            out.append(known[s])
        try:
            placed = self.polynomials.of_specification(spec, out, ranges, trail, leaves)
        except (Unrelated, Unfollowable, NoDefinition):
            return None
        if set(placed) != set(poly):
            return None
        ratios = {poly[m] / c for m, c in placed.items()}
        return (tuple(out), ratios.pop()) if len(ratios) == 1 else None


def _single(poly: Polynomial) -> dict[object, tuple[Affine, ...]]:
    """Leaves that occur at one index only."""
    found: dict[object, set[tuple[Affine, ...]]] = {}
    for m in poly:
        for leaf, at in m:
            found.setdefault(leaf, set()).add(at)
    return {leaf: next(iter(ats)) for leaf, ats in found.items() if len(ats) == 1}
