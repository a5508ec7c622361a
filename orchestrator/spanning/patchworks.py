"""Sums of the specification that put parts together, such as the gradient of slices: padded, then added.

Every element of such a *patchwork* is one element of one part, the others are zero there. Ranks that hold
some of the parts (experts, say) are related to these; an op that reads them is related to the specification's
only if it is said that they are elements of the patchwork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.plan.affine import Range
from certificates.proof.facts import Fact, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from ..relating.knowledge import Knowledge
from ..relating.ledger import Unrelated
from ..relating.recipes import AlgebraRecipe, Instance, Use
from ..relating.solving_facts import solve
from .expansion import Expansion
from .partners import Span
from .spans import Spans
from .terms import Forms, Leaf, Sum, Term, Trace

#: Sums of one patchwork.
MAX_SUMS = 128


@dataclass(frozen=True)
class Piece:
    """``patchwork[left] = coef * target[right]`` over the ranges of some symbols."""

    left: Forms
    ranges: Mapping[str, Range]
    target: Ref
    right: Forms
    coef: Fraction


class Patchworks:
    """Says of tensors that are related to parts of a patchwork where in it they are."""

    def __init__(self, knowledge: Knowledge, spans: Spans) -> None:
        self.k, self.model, self.spans = knowledge, knowledge.model, spans
        self._sums: dict[str, frozenset[str]] | None = None
        self._pieces: dict[str, list[Piece]] = {}
        self._done: set[tuple[str, tuple[int, ...]]] = set()

    def restate(self, reader: str) -> bool:
        """Restate what is known of the operands of an op that has no relation; whether anything was."""
        name = self.model.ops[reader].name
        return any([self._restated(v, name) for v in dict.fromkeys(self.model.operands(reader))])

    def _restated(self, ref: str, name: str) -> bool:
        numbers = tuple(self.k.facts_for(ref))
        parts = {self.k.facts[n].rhs for n in numbers}
        if not parts or (ref, numbers) in self._done:
            return False
        self._done.add((ref, numbers))
        for patchwork in self._read_by(name):
            inside = self._all()[patchwork] - {patchwork}
            if not parts <= {p.target for p in self._of(patchwork)} | inside:
                continue
            stated = self._stated(ref, patchwork)
            if stated and self._kept(ref, numbers, stated):
                return True
        return False

    def _stated(self, ref: str, patchwork: str) -> list[tuple[Fact, AlgebraRecipe]]:
        """The facts that say of a tensor where a patchwork has its elements; none if it lacks one."""
        whole = self.k.full_index(ref)
        try:
            found = explore(whole, lambda cell: self._span(ref, patchwork, cell))
            return [self.spans.stated(ref, whole, cell, span) for cell, span in found]
        except (Unrelated, Unfollowable, NoDefinition):
            return []

    def _kept(self, ref: str, numbers: tuple[int, ...], stated: Sequence[tuple[Fact, AlgebraRecipe]]) -> bool:
        """Let the new facts stand for the old ones, which prove them."""
        before = self.k.by_lhs.get(ref)
        self.k.by_lhs[ref] = []
        if self.spans.record(stated):
            self.k.restated[ref] = numbers
            return True
        del self.k.by_lhs[ref]
        if before is not None:
            self.k.by_lhs[ref] = before
        return False

    def _span(self, ref: str, patchwork: str, cell: Cell) -> Span:
        """Where a patchwork has an element of a tensor, and what shows it."""
        at = tuple(cell.at[s] for s in self.k.full_index(ref).ranges)
        reading = self.k.read(ref, at, cell.ranges)
        if reading.fact is None:
            raise Unrelated(ref)
        mine = Trace(
            uses=(Use(ref, at), Use(reading.target, reading.at)),
            instances=(Instance(reading.fact, reading.values),),
        )
        terms = [Term(Fraction(1), (), {}, mine)]
        found = Piece((), {}, reading.target, reading.at, reading.coef)
        if reading.target in self._all():  # a sum that this one goes on from
            below, opened = self._alone(str(reading.target), reading.at, cell)
            if below is None:
                raise Unrelated(ref)
            terms += opened
            found = replace(below, coef=reading.coef * below.coef)
        for piece in self._of(patchwork):
            values = None
            if piece.target == found.target and piece.coef:
                values = solve(piece.right, piece.ranges, found.right, cell.ranges)
            if values is None:
                continue
            there = tuple(f.substitute(values) for f in piece.left)
            theirs = self._opened(patchwork, there, cell)
            return Span(patchwork, there, found.coef / piece.coef, (*terms, *theirs))
        raise Unrelated(ref)

    # --- the specification ---------------------------------------------------------------------------------

    def _read_by(self, name: str) -> list[str]:
        """Patchworks that an op of some name reads."""
        readers = {
            f"s:{v}": op for op in self.model.plan.specification.ops if op.name == name for v in op.ins
        }
        return [p for p in self._all() if p in readers]

    def _all(self) -> dict[str, frozenset[str]]:
        """Sums in which a padded part is added, with the sums that they go on from."""
        if self._sums is None:
            self._sums = {}
            for op in self.model.plan.specification.ops:
                ref = f"s:{op.out}"
                if op.name != "add" or op.type.sort != "Real" or not self.k.is_atom(ref):
                    continue
                ins = self.model.operands(ref)
                if any(map(self._padded, ins)):
                    inside = frozenset((ref,)).union(*(self._sums.get(v, ()) for v in ins))
                    if len(inside) <= MAX_SUMS:
                        self._sums[ref] = inside
        return self._sums

    def _padded(self, ref: str) -> bool:
        if not self.k.moves(ref):
            return False
        literals = (self.model.literal(self.k.facts[n].rhs) for n in self.k.facts_for(ref))
        return any(isinstance(v, Fraction) and not v for v in literals)

    def _of(self, patchwork: str) -> list[Piece]:
        """The parts of a sum and where they are; none if two of them meet."""
        if patchwork not in self._pieces:
            whole = self.k.full_index(patchwork)
            try:
                found = explore(whole, lambda cell: self._part(patchwork, cell))
            except (Unrelated, Unfollowable, NoDefinition):
                found = []
            self._pieces[patchwork] = [piece for _, piece in found if piece is not None]
        return self._pieces[patchwork]

    def _part(self, patchwork: str, cell: Cell) -> Piece | None:
        return self._alone(patchwork, tuple(cell.at.values()), cell)[0]

    def _alone(self, patchwork: str, at: Forms, cell: Cell) -> tuple[Piece | None, Sum]:
        """The one part that an element is of, and what shows it; none if it is zero."""
        opened = self._opened(patchwork, at, cell)
        live = [t for t in opened if t.coef]
        if not live:
            return None, opened
        if len(live) > 1 or live[0].box or len(live[0].factors) != 1:
            raise Unrelated(patchwork)
        (leaf,) = live[0].factors
        if not isinstance(leaf, Leaf):
            raise Unrelated(patchwork)
        return Piece(at, dict(cell.ranges), leaf.ref, leaf.at, live[0].coef), opened

    def _opened(self, patchwork: str, at: Forms, cell: Cell) -> Sum:
        inside = self._all()[patchwork]
        return Expansion(self.k).opened(patchwork, at, cell.ranges, lambda ref: ref not in inside)
