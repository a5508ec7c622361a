"""What an element of a tensor equals, as far as the facts of a ledger say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range, fold
from certificates.proof.facts import Reduced, Ref

from ..cells import Cell, Cut, Unfollowable
from .ledger import LayoutRecipe, Ledger, Reading, Unrelated
from .movement import step
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


@dataclass
class Readings(Ledger, ABC):
    """A ledger that is read element by element."""

    @abstractmethod
    def facts_for(self, ref: Ref) -> list[int]:
        """Facts with this left side that cover it; empty if it is unrelated."""

    def read(self, ref: Ref, index: Sequence[Affine], ranges: Mapping[str, Range]) -> Reading:
        """The relation of one element on a box; raises :class:`Unrelated` or a split of the box."""
        if self.is_atom(ref) and ref not in self.by_lhs:
            return Reading(Fraction(1), ref, tuple(fold(f, ranges) for f in index))
        found = self.through(self.facts_for(ref), index, ranges)
        if found is None:
            raise Unrelated(ref)
        there, here = (tuple(fold(f, ranges) for f in at) for at in (found.at, index))
        if (found.target, there) == (ref, here):  # of a tensor that repeats itself, what is repeated
            return Reading(Fraction(1), ref, here)
        if found.target in self.by_lhs and found.target != ref:  # a fact about a whole that repeats others
            beyond = self.read(found.target, there, ranges)
            if (beyond.target, beyond.at) != (found.target, there):
                return self._at(ref, here, ranges, replace(beyond, coef=found.coef * beyond.coef), found)
        return replace(found, at=there)

    def _at(
        self, ref: Ref, index: Forms, ranges: Mapping[str, Range], said: Reading, through: Reading
    ) -> Reading:
        """What is said of an element, by a fact of its own that one about more elements proves."""
        assert through.fact is not None
        one = make_fact(self.model, Cell(ranges, {}), ref, index, said.target, said.at, said.coef)
        number = self.add(one, LayoutRecipe(parts=(through.fact,)), relates=False)
        values = solve(one.lhs_index, one.ranges, index, ranges)
        if values is None:
            raise Unrelated(ref)
        forms = tuple(values[s] for s, _, _ in one.symbols)
        return Reading(said.coef, said.target, said.at, number, forms)

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
        return self._at(ref, tuple(fold(f, ranges) for f in index), ranges, reading, reading)

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
