"""Look-ups at positions that overlap: the windows of a convolution or of a pooling, biases by distance.

An element of such a tensor is one of its table at a sum of two positions, which no axis of a proof can be cut
along. So it stands for itself, and the plan's is related to the specification's as a whole: both look up the
same positions in tables that are related.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .solving_facts import make_fact

#: Where a look-up reads its table, of an index of the result.
Place = Callable[[Cell], list[Affine]]
#: What is opened to see that.
Opened = frozenset[Ref]


def overlap(form: Affine, ranges: Mapping[str, Range]) -> bool:
    """Whether a position is one for several values of its symbols."""
    span = 0
    for symbol, coef in sorted(form.terms, key=lambda t: abs(t[1])):
        if abs(coef) <= span:
            return True
        lo, hi = ranges[symbol]
        span += abs(coef) * (hi - 1 - lo)
    return False


class Windows:
    """Relates overlapping look-ups of the plan to those of the specification."""

    def __init__(self, knowledge: Knowledge, prove: Callable[[int], bool]) -> None:
        self.k, self.model, self.prove = knowledge, knowledge.model, prove
        #: Look-ups of the specification, and how each reads its table.
        self._known: dict[str, tuple[Place, Opened]] = {}

    def note(self, ref: str, place: Place, opened: Opened) -> None:
        """A look-up of the specification that stands for itself."""
        self._known[ref] = place, opened

    def relate(self, ref: str, place: Place, opened: Opened) -> bool:
        """Relate a look-up of the plan; whether one of the specification is the same."""
        for other in self._known:
            if self._alike(ref, other) and self._related(ref, other, place, opened):
                return True
        return False

    def _alike(self, ref: str, other: str) -> bool:
        mine, theirs = self.model.ops[ref], self.model.ops[other]
        return dict(mine.attrs) == dict(theirs.attrs) and len(mine.type.shape) == len(theirs.type.shape)

    def _related(self, ref: str, other: str, place: Place, opened: Opened) -> bool:
        where, more = self._known[other]
        whole = self.k.full_index(ref)
        try:
            coef, there = self._guess(ref, other, place, where)
            fact = make_fact(self.model, whole, ref, tuple(whole.at.values()), other, there, coef)
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        number = self.k.add(fact, LayoutRecipe(opened | more), relates=False)
        if not self.prove(number):
            self.k.drop(number)
            return False
        self.k.relate_by(number)
        return True

    def _guess(self, ref: str, other: str, place: Place, where: Place) -> tuple[Fraction, list[Affine]]:
        """The specification's index: equal where both are equally long, else as the tables' elements say."""
        mine, here = self._first(ref, place)
        theirs, there = self._first(other, where)
        if mine.target != theirs.target or not theirs.coef:
            raise Unrelated(ref)
        at = list(self.k.full_index(ref).at.values())[len(self.model.tensors.mesh_axes(ref)) :]
        own = list(self.k.full_index(other).at.values())
        shapes = zip(self.model.ops[ref].type.shape, self.model.ops[other].type.shape, strict=True)
        known = {d: at[d] for d, (n, m) in enumerate(shapes) if n == m}
        symbols = {f.symbols[0]: d for d, f in enumerate(own) if f.symbols}
        for form, value in zip(theirs.at, mine.at, strict=True):
            form, value = form.substitute(there), value.substitute(here)
            unknown = [s for s in form.symbols if symbols[s] not in known]
            if len(unknown) == 1:
                factor = form.coef(unknown[0])
                rest = form - Affine.symbol(unknown[0]).scale(factor)
                left = value - rest.substitute({s: known[symbols[s]] for s in rest.symbols})
                if any(n % factor for n in (left.const, *(c for _, c in left.terms))):
                    continue
                # A batch and what is convolved may be one dimension of what a table is made of.
                known[symbols[unknown[0]]] = Affine.of(
                    left.const // factor, {symbol: c // factor for symbol, c in left.terms}
                )
        if len(known) < len(at):
            raise Unrelated(ref)
        return mine.coef / theirs.coef, [known[d] for d in range(len(at))]

    def _first(self, ref: str, place: Place) -> tuple[Reading, dict[str, Affine]]:
        """What a look-up reads on its largest box without literals, and the box's symbols by the index's.

        At an edge, where a neighbour's rows or zeros are, a box may not say what each symbol is.
        """
        table, whole = self.model.operands(ref)[0], self.k.full_index(ref)
        found = explore(whole, lambda cell: self.k.read(table, place(cell), cell.ranges))
        inner = [(c, r) for c, r in found if self.model.literal(r.target) is None] or found
        by_size = sorted(inner, key=lambda box: -math.prod(hi - lo for lo, hi in box[0].ranges.values()))
        for cell, reading in by_size:
            symbols = {
                form.symbols[0]: Affine.symbol(name) - form.const
                for name, form in cell.at.items()
                if len(form.terms) == 1 and form.terms[0][1] == 1
            }
            if all(s in symbols for f in reading.at for s in f.symbols):
                return reading, symbols
        raise Unfollowable(f"{ref}: boxes of digits")
