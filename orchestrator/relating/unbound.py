"""Coordinates that operands do not determine: where an op of the specification repeats itself.

A mask that is computed for each row of a batch from positions alone, or the class token before the patches
of each image, is the same in all rows; which row of the specification a rank's row is, is a choice. Where all
of a tensor is so, it is read at row 0, by a fact of the specification about itself; equal parts, such as the
cosines of angles that stand twice beside each other, in the first of them. Where a part of a tensor is the
same in all rows, it lies as the rest of the tensor does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from certificates.plan.affine import Affine, fold
from certificates.proof.facts import split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore, undivided
from .access import Access, commutes
from .candidates import Candidate, Candidates, Operand
from .knowledge import Knowledge
from .ledger import Unrelated

Read = Callable[[Cell], tuple[Operand, ...]]
Found = tuple[Cell, tuple[tuple[Operand, ...], tuple[Candidate, ...]]]
Grouped = Callable[[str, Access, Cell, Sequence[Found]], bool]


class Unbound:
    """Places of what the specification computes repeatedly.

    ``grouped`` relates all pieces of a result, if it can.
    """

    def __init__(self, knowledge: Knowledge, candidates: Candidates, grouped: Grouped) -> None:
        self.k, self.model, self.candidates, self.grouped = knowledge, knowledge.model, candidates, grouped
        #: Is what repeats in some digits of a dimension read in their first place? Right where ranks have
        #: other rows of it, wrong where they have all, so it is tried where a proof without it fails.
        self.in_digits = False
        #: Was there any such op?
        self.passed_over = False

    def repeats(self, spec: str) -> None:
        """Relate an op of the specification to itself where it first computes what it computes repeatedly.

        That is at 0 along dimensions of which it does not depend, and in the first of equal parts.
        """
        pattern, whole = self.candidates.access(spec), self.k.full_index(spec)
        assert pattern is not None
        ins = self.model.operands(spec)
        inner = Cell.whole({f"s.{n}": (0, size) for n, size in pattern.summed})
        start = Cell({**whole.ranges, **inner.ranges}, {**whole.at, **inner.at})

        def read(cell: Cell) -> tuple[Operand, ...]:
            return tuple(
                self.candidates.operand(
                    v, [cell.at[n if n in whole.at else f"s.{n}"] for n in names], cell.ranges
                )
                for v, names in zip(ins, pattern.operands, strict=True)
            )

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]]:
            operands = read(cell)
            itself = self.candidates.match(spec, self.model.ops[spec], operands, cell)
            return operands, () if itself is None else (itself,)

        free, starts, in_digits = unmentioned(self.candidates, spec, pattern, start, read)
        if in_digits and not self.in_digits:
            self.passed_over = True
            free, starts = frozenset(), [start]
        if not free and not any(self.candidates.twice(v) for v in ins):
            return
        self.candidates.free[spec] = free
        with suppress(Unrelated, Unfollowable, NoDefinition):
            found = [share for cell in starts for share in explore(cell, compute)]
            elsewhere = any(
                c.out != tuple(cell.at[s] for s in whole.ranges) for cell, (_, cs) in found for c in cs
            )
            if elsewhere and self.grouped(spec, pattern, whole, found):
                return
        del self.candidates.free[spec]

    def completed(self, spec: str, found: list[Found]) -> list[Found]:
        """Parts of a specification op that no other op computes, as itself, if one computes the others."""
        if all(candidates for _, (_, candidates) in found) or not any(cs for _, (_, cs) in found):
            return found
        out: list[Found] = []
        for cell, (operands, candidates) in found:
            itself = None if candidates else self._match(spec, operands, cell)
            out.append((cell, (operands, candidates if itself is None else (itself,))))
        return out

    def _match(self, spec: str, operands: tuple[Operand, ...], cell: Cell) -> Candidate | None:
        try:
            with undivided():
                return self.candidates.match(spec, self.model.ops[spec], operands, cell)
        except (Unrelated, Unfollowable, NoDefinition):
            return None

    def alike(
        self, ref: str, found: list[Found], axes: Sequence[str], read: Callable[[Cell], tuple[Operand, ...]]
    ) -> list[Found]:
        """Parts whose place in the specification nothing determines, where the nearest that has one is."""
        owner = split_ref(ref)[0]
        leads = list(displacements(owner, found, axes, self.candidates.free))
        if not leads:
            return found
        op = self.model.ops[ref]

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]]:
            _, spec, shifts = min(leads, key=lambda lead: _distance(cell, lead[0]))
            operands, like = read(cell), displaced(owner, cell, shifts)
            orders = [operands, operands[::-1]] if commutes(op) else [operands]
            matches = (self.candidates.match(spec, op, order, cell, like) for order in orders)
            return operands, tuple(m for m in matches if m is not None)

        out: list[Found] = []
        for cell, (operands, candidates) in found:
            placed: list[Found] = []
            if not candidates or candidates[0].guessed:
                with suppress(Unrelated, Unfollowable, NoDefinition):
                    placed = explore(cell, compute)
            if placed and all(found for _, (_, found) in placed):
                out += placed
            else:
                out.append((cell, (operands, candidates)))
        return out


def scaled(found: Sequence[Found]) -> list[Found]:
    """Parts that vanish, by the factor of the others: gradients of some rows, and zeros in the other ones."""
    factors = {c.coef for _, (_, candidates) in found for c in candidates if not c.zero}
    if len(factors) != 1:
        return list(found)
    (factor,) = factors
    return [
        (cell, (operands, tuple(replace(c, coef=factor) if c.zero else c for c in candidates)))
        for cell, (operands, candidates) in found
    ]


def unmentioned(
    candidates: Candidates, spec: str, pattern: Access, start: Cell, read: Read
) -> tuple[frozenset[str], list[Cell], bool]:
    """Variables of a specification op's result of which no operand's element depends, or of some digits only;
    the parts of the result, cut after the first place of such digits; and is it digits only?

    There it is itself; a stage cannot have that element and a range that holds it.
    """
    names = {n for n in pattern.out if not start.at[n].is_const}
    if not any(candidates.k.facts_for(v) for v in candidates.model.operands(spec)):
        names.intersection_update(n for n in pattern.out if not any(n in o for o in pattern.operands))
    try:
        found = explore(start, read) if names else []
    except (Unrelated, Unfollowable, NoDefinition):
        found = []
    spread = [(cell, _mentioned(candidates, operands)) for cell, operands in found]
    whole = frozenset(
        n for n in names
        if all(cell.at[n] == start.at[n] and not used & set(cell.at[n].symbols) for cell, used in spread)
    ) if spread else frozenset[str]()  # fmt: skip
    if whole or len(spread) != 1:
        return whole, _first_apart(start, sorted(s for n in whole for s in start.at[n].symbols)), False
    ((cell, used),) = spread
    loose = {n: [s for s in cell.at[n].symbols if s not in used] for n in names}
    free = frozenset(n for n, symbols in loose.items() if symbols)
    return free, _first_apart(cell, sorted(itertools.chain(*loose.values()))), bool(free)


def _mentioned(candidates: Candidates, operands: Sequence[Operand]) -> set[str]:
    """Symbols of which elements of operands depend, but for literals."""
    read = [o.reading for o in operands if candidates.model.literal(o.reading.target) is None]
    return {s for reading in read for f in reading.at for s in f.symbols}


def _first_apart(start: Cell, symbols: Sequence[str]) -> list[Cell]:
    """A cell, cut after the first place of some symbols."""
    cells = [start]
    for symbol in symbols:
        lo, hi = start.ranges[symbol]
        cells = [part for cell in cells for part in (cell.cut(symbol, lo + 1) if hi - lo > 1 else [cell])]
    return cells


def displacements(
    owner: str, found: Sequence[Found], axes: Sequence[str], free: Mapping[str, frozenset[str]]
) -> Iterator[tuple[Cell, str, Mapping[str, Affine]]]:
    """Determined parts of a result, the specification op of each, and how far it is displaced there.

    By variable, but for those that are ``free`` there; a displacement is a number, or a multiple of the rank
    along some of the ``axes``. What an op of the ``owner`` sums is displaced, too.
    """
    for cell, (_, candidates) in found:
        if any(cell.at[a] != Affine.symbol(a) for a in axes):
            continue
        for candidate in candidates:
            names = [(f"o{d}", f"o{d}", f) for d, f in enumerate(candidate.out)]
            names += [(f"k{i}", f"{owner}.k{i}", f) for i, f in enumerate(candidate.summed)]
            unlike = free.get(candidate.spec, ())
            bound = [(n, fold(cell.at[here], cell.ranges), f) for n, here, f in names if here in cell.at]
            shifts = {n: f - here for n, here, f in bound if n not in unlike}
            if not candidate.guessed and all(set(f.symbols) <= set(axes) for f in shifts.values()):
                yield cell, candidate.spec, shifts


def _distance(a: Cell, b: Cell) -> int:
    """Twice the way between the middles of two parts of one tensor."""
    return sum(abs(sum(a.at[v].interval(a.ranges)) - sum(b.at[v].interval(b.ranges))) for v in a.at)


def displaced(owner: str, cell: Cell, shifts: Mapping[str, Affine]) -> dict[str, Affine]:
    """The variables of a specification op at this displacement from a part of the plan's tensor."""
    return {n: cell.at[f"{owner}.{n}" if n[0] == "k" else n] + shift for n, shift in shifts.items()}
