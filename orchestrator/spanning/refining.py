"""Cutting the boxes of sums until the positions that they use are equal or apart, as axis trees need them.

The pieces of two sums, say ``x[3*tp + k]`` on each rank and ``x[i]`` over all of ``i``, cover each other in
another way. Bound symbols of both are cut at each other's edges and written in each other's digits; a symbol
of the goal cannot be, so its split is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from networkx.utils import UnionFind

from certificates.plan.affine import Affine, Range, fold
from certificates.proof.facts import Ref
from smtlib_emit.model import Model

from ..cells import Cut, Digits, Unfollowable
from ..relating.solving_facts import solve
from ..staging.algebra import Coordinate, aligned_by
from .terms import Sum, Term, grounded, split

#: Offset, and stride and number of positions per digit, major to minor.
Shape = tuple[int, tuple[tuple[int, int], ...]]
#: Pieces of one coordinate that are more than a point; points are equal or disjoint.
MAX_PIECES = 64
MAX_PARTS = 4000
#: Positions that run downwards are taken one by one, if they are no more than these.
MAX_DOWNWARDS = 32


class Refinement:
    """Refines sums of one stage, over the symbols of its goal."""

    def __init__(self, model: Model, ranges: Mapping[str, Range], fresh: Callable[[], str]) -> None:
        self.model, self.ranges, self.fresh = model, ranges, fresh
        self._fine: set[tuple[Shape, Shape]] = set()

    def of(self, sums: Sequence[Sum]) -> list[Sum]:
        """The sums over boxes whose pieces of one coordinate are equal or disjoint."""
        sums = [[grounded(t) for t in s] for s in sums]
        groups = self._groups([t for s in sums for t in s])
        while True:
            pieces: dict[object, dict[Shape, None]] = {}
            for term in (t for s in sums for t in s):
                for group, form in self._positions(term, groups):
                    pieces.setdefault(group, {})[self._shape(form, term)] = None
            wide = {group: [p for p in found if p[1]] for group, found in pieces.items()}
            if any(len(found) > MAX_PIECES for found in wide.values()):
                raise Unfollowable(f"more than {MAX_PIECES} pieces")
            refined = [[part for t in s for part in self._parts(t, groups, pieces, wide)] for s in sums]
            if [len(s) for s in refined] == [len(s) for s in sums] and all(
                a is b for x, y in zip(refined, sums, strict=True) for a, b in zip(x, y, strict=True)
            ):
                return sums
            if sum(map(len, refined)) > MAX_PARTS:
                raise Unfollowable(f"more than {MAX_PARTS} parts")
            sums = refined

    def _groups(self, terms: Sequence[Term]) -> Callable[[Coordinate], object]:
        """Which coordinates the stage gives one tree."""
        opened: dict[Ref, None] = dict.fromkeys(r for t in terms for r in t.trace.opened)
        refs: dict[Ref, None] = dict.fromkeys(u.ref for t in terms for u in t.trace.uses)
        union = UnionFind()
        for x, y in aligned_by(self.model, opened, refs):
            union.union(x, y)
        return lambda coordinate: union[coordinate]

    def _positions(
        self, term: Term, groups: Callable[[Coordinate], object]
    ) -> dict[tuple[object, Affine], None]:
        ranges = {**self.ranges, **term.box}
        return {
            (groups((use.ref, c)), fold(form, ranges)): None
            for use in term.trace.uses
            for c, form in enumerate(use.at)
        }

    def _shape(self, form: Affine, term: Term) -> Shape:
        offset, digits = form.const, []
        for symbol, coef in form.terms:
            lo, hi = term.box.get(symbol) or self.ranges[symbol]
            offset += coef * lo
            digits.append((coef, hi - lo))
        return offset, tuple(sorted(digits, reverse=True))

    def _parts(
        self,
        term: Term,
        groups: Callable[[Coordinate], object],
        pieces: Mapping[object, Iterable[Shape]],
        wide: Mapping[object, Iterable[Shape]],
    ) -> Sum:
        """The term, or parts of it where it uses a part of a piece only."""
        work, out = [term], Sum()
        while work:
            part = work.pop()
            try:
                self._check(part, groups, pieces, wide)
            except (Cut, Digits) as error:
                if error.symbol not in part.box:
                    raise
                work += [grounded(t) for t in reversed(split(part, error, self.fresh))]
                if len(work) + len(out) > MAX_PARTS:
                    raise Unfollowable(f"more than {MAX_PARTS} parts") from error
            else:
                out.append(part)
        return out

    def _check(
        self,
        term: Term,
        groups: Callable[[Coordinate], object],
        pieces: Mapping[object, Iterable[Shape]],
        wide: Mapping[object, Iterable[Shape]],
    ) -> None:
        """Raise a split of the term if one of its positions is in a piece here and out of it there."""
        ranges = {**self.ranges, **term.box}
        for group, form in self._positions(term, groups):
            self._check_steps(form, ranges)
            mine = self._shape(form, term)
            for piece in (pieces if mine[1] else wide).get(group, ()):
                if piece == mine or (mine, piece) in self._fine:
                    continue
                offset, digits = piece
                symbols = {f"p{i}": (0, n) for i, (_, n) in enumerate(digits)}
                pattern = Affine.of(offset, {f"p{i}": step for i, (step, _) in enumerate(digits)})
                solve([pattern], symbols, [form], ranges)
                self._fine.add((mine, piece))

    def _check_steps(self, form: Affine, ranges: Mapping[str, Range]) -> None:
        """Raise a split where a position runs downwards: an axis tree has steps upwards only."""
        for symbol, step in form.terms:
            lo, hi = ranges[symbol]
            if step < 0 and 1 < hi - lo <= MAX_DOWNWARDS:
                raise Cut(symbol, (lo + hi) // 2)
