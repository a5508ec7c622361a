"""What ranks contribute to elements of the specification: whole results, or parts of its sums.

Parts that cover a sum of the specification once, over all coordinates of some mesh axes, make a fact about
the tensor that is reduced over these axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .access import Access
from .candidates import Candidate, Candidates, Operand
from .joining import join
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Unrelated
from .recipes import AlgebraRecipe, Instance, Pair, Use
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


@dataclass(frozen=True)
class Contribution:
    """One rank class's share of a specification element."""

    ref: str
    cells: tuple[Cell, ...]
    candidates: tuple[Candidate, ...]
    operands: tuple[tuple[Operand, ...], ...]
    left: Forms
    partial: tuple[str, ...]


_OVER_RANKS = ("all_reduce", "reduce_scatter")
#: A cell of a sum, what it reads, and the specification's ops that it may equal.
Share = tuple[Cell, tuple[Operand, ...], tuple[Candidate, ...]]


def summed_axes(group: Sequence[Share]) -> frozenset[str]:
    """The axes over which what a piece reads is a partial sum."""
    return frozenset(a for _, operands, _ in group for o in operands if o.partial for a in o.partial.axes)


class PartialSums:
    """Facts from contributions: an op's pieces are gathered, then settled."""

    def __init__(self, knowledge: Knowledge, candidates: Candidates) -> None:
        self.k, self.model, self.candidates = knowledge, knowledge.model, candidates
        self._shares: dict[tuple[str, Fraction, str], list[Contribution]] = {}
        self._summands: set[Ref] = set()
        self._pending: list[tuple[Fact, AlgebraRecipe]] = []
        self._sums: set[Reduced] = set()

    def begin(self) -> None:
        """Forget the pieces of the op before."""
        self._pending.clear()

    def group(
        self,
        ref: str,
        pattern: Access,
        left: Forms,
        group: Sequence[Share],
        beside: frozenset[str] = frozenset(),
    ) -> bool:
        """Relate one piece of a result from all cells of its sum.

        Zeros are a partial sum over any axes: over those that the pieces ``beside`` them are one over.
        """
        done = False
        zero = all(c.zero for _, _, candidates in group for c in candidates)
        for first in group[0][2]:
            chosen = []
            for _, _, candidates in group:
                same = [
                    c for c in candidates if (c.spec, c.out, c.coef) == (first.spec, first.out, first.coef)
                ]
                if not same:
                    break
                chosen.append(same[0])
            if len(chosen) != len(group):
                continue
            partial = summed_axes(group) | (beside if zero else frozenset())
            share = Contribution(
                ref,
                tuple(c for c, _, _ in group),
                tuple(chosen),
                tuple(o for _, o, _ in group),
                left,
                tuple(a for a in self.model.plan.mesh.axes if a in partial),
            )
            if not partial and self._covers([share], ()):
                self.pointwise(share)
                return True
            done = self.partial(share, pattern.kind) or done
        return done

    def pointwise(self, share: Contribution) -> None:
        """Note the fact about a piece that equals the specification's element as it is."""
        first = share.candidates[0]
        fact = make_fact(self.model, share.cells[0], share.ref, share.left, first.spec, first.out, first.coef)
        expand = (share.ref, *([] if first.atom else [first.spec]), *first.opened)
        self._pending.append((fact, _recipe(fact, share.left, [share], expand, {})))

    def partial(self, share: Contribution, kind: str) -> bool:
        """Join shares of all classes into facts about reduced tensors."""
        owner = split_ref(share.ref)[0]
        if owner == "s" or (kind != "add" and share.candidates[0].coef <= 0):
            return False
        first = share.candidates[0]
        pool = self._shares.setdefault((first.spec, first.coef, kind), [])
        pool.append(share)
        mesh = list(self.model.plan.mesh.axes)
        made = False
        for count in range(1, len(mesh) + 1):
            for axes in itertools.combinations(mesh, count):
                if set(share.partial) <= set(axes) and not made:
                    made = self._join(share, pool, axes, kind)
        return True

    def _join(
        self, share: Contribution, pool: Sequence[Contribution], axes: tuple[str, ...], kind: str
    ) -> bool:
        mesh = list(self.model.plan.mesh.axes)

        def rest(forms: Forms) -> Forms:
            return tuple(f for i, f in enumerate(forms) if i >= len(mesh) or mesh[i] not in axes)

        if any(a in f.symbols for f in share.candidates[0].out for a in axes):
            return False
        alike: dict[str, dict[str, Contribution]] = {}
        for other in (*pool, share):
            if rest(other.left) == rest(share.left) and other.candidates[0].out == share.candidates[0].out:
                alike.setdefault(split_ref(other.ref)[0], {})[other.ref] = other
        chosen = self._beside(share, alike)
        family = {c: s.ref for c, s in chosen.items()}
        try:
            reduced = self.model.reduced_of(split_ref(share.ref)[0], family, axes, kind)
        except NoDefinition:
            return False
        shares = [chosen[split_ref(m)[0]] for m in reduced.of]
        if not self._covers(shares, axes):
            return False
        first = share.candidates[0]
        left = rest(share.left)
        renamed = [_rename_axes(s, axes) for s in shares]
        fact = make_fact(self.model, share.cells[0], reduced, left, first.spec, first.out, first.coef)
        extra = {o.partial: None for s in renamed for group in s.operands for o in group if o.partial}
        opened = frozenset().union(*(s.candidates[0].opened for s in renamed))
        spec = [] if first.atom else [first.spec]
        recipe = _recipe(fact, left, renamed, (reduced, *reduced.of, *spec, *extra, *opened), {})
        self.k.add(fact, recipe)
        self._sums.add(reduced)
        return True

    def _beside(
        self, share: Contribution, alike: Mapping[str, Mapping[str, Contribution]]
    ) -> dict[str, Contribution]:
        """One share of each class. What ranks compute twice they do in one order: the first goes with the
        first, and what is made of it on each rank is made of one sum."""
        order = {c: sorted(found, key=lambda r: self.model.order.get(r, -1)) for c, found in alike.items()}
        number = order[split_ref(share.ref)[0]].index(share.ref)
        chosen = {c: alike[c][refs[min(number, len(refs) - 1)]] for c, refs in order.items()}
        return {**chosen, split_ref(share.ref)[0]: share}

    def _covers(self, shares: Sequence[Contribution], axes: Sequence[str]) -> bool:
        """Whether the shares, over all coordinates of ``axes``, make up the specification's whole sum."""
        pattern = self.candidates.access(shares[0].candidates[0].spec)
        assert pattern is not None
        total = Fraction(0)
        images: set[tuple[object, ...]] = set()
        for share in shares:
            box = self._box(share.ref)
            moving = [a for a in axes if a not in share.partial]
            for cell, candidate in zip(share.cells, share.candidates, strict=True):
                symbols = {s for f in candidate.summed for s in f.symbols}
                symbols |= {a for a in moving}
                if any(a in symbols for a in box if a not in axes and box[a][1] - box[a][0] > 1):
                    return False
                # Ranks of two classes that sum the same part would count it twice.
                image = tuple((f.const, f.interval(cell.ranges)) for f in candidate.summed)
                if image and not share.partial and image in images:
                    return False
                images.add(image)
                owner = split_ref(share.ref)[0]
                inner = {s for f in cell.at for s in cell.at[f].symbols if f.startswith(f"{owner}.")}
                # Summands of one partial operand, on all its ranks, make up one term.
                part = Fraction(
                    math.prod(box[a][1] - box[a][0] for a in share.partial),
                    math.prod(self.model.plan.mesh.axes[a] for a in share.partial),
                )
                total += part * math.prod(
                    hi - lo for lo, hi in (*(cell.ranges[s] for s in inner), *(box[a] for a in moving))
                )
        return total == math.prod(n for _, n in pattern.summed)

    def _box(self, ref: str) -> Mapping[str, Range]:
        owner = split_ref(ref)[0]
        return {} if owner == "s" else self.model.plan.by_class[owner].box

    def find_summands(self, ref: str) -> bool:
        """Record operands that are, without an op of their own, what one rank adds to a specification's sum.

        With one of the summed heads on each rank, say, nothing is added there; or the operand is a sum over
        ranks of what is related. Whether anything was recorded.
        """
        op = self.model.op(ref)
        if op is None:
            return False
        found = False
        for v in dict.fromkeys(self.model.operands(ref)):
            for source in dict.fromkeys(t for u in self._sources(v) for t in self._added(op.name, u)):
                if source in self.k.partials or source in self._summands:
                    continue
                if self.k.facts_for(source):
                    self._summands.add(source)
                    found = self._summand(source) or found
        return found

    def _sources(self, ref: str) -> list[Ref]:
        """What an operand is moved from on its own rank; of a sum over ranks, the sum."""
        made = self.model.op(ref)
        if made is not None and made.name in _OVER_RANKS:
            return [ref]
        try:
            links = self.k.links(ref)
        except (Unfollowable, NoDefinition):
            return []  # it crosses ranks
        return [ref] if links is None else [self.k.facts[n].rhs for n in links]

    def _added(self, op: str, source: Ref) -> Sequence[str]:
        """What ranks add up in an operand of an op: there, or in a collective before it."""
        made = self.model.op(source)
        if made is not None and made.name in _OVER_RANKS:
            with suppress(NoDefinition):  # of a group that is no fibres
                return self.model.reduced(str(source), "add").of if made.text("kind") == "add" else ()
            return ()
        return (str(source),) if op in ("dot_general", "reduce") and isinstance(source, str) else ()

    def _summand(self, ref: str) -> bool:
        whole = self.k.full_index(ref)

        def compute(cell: Cell) -> tuple[Operand, list[Candidate]]:
            operand = self.candidates.operand(ref, list(cell.at.values()), cell.ranges)
            readers = self.candidates.readers("reduce", operand.reading.target)
            sums = [s for s in readers if self.model.ops[s].text("kind") == "add"]
            found = (self.candidates.match(s, self.model.ops[s], [operand], cell) for s in sums)
            return operand, [c for c in found if c is not None]

        try:
            ((cell, (operand, candidates)),) = explore(whole, compute)
        except (Unrelated, Unfollowable, NoDefinition, ValueError):
            return False
        left = tuple(cell.at[s] for s in whole.ranges)  # of what was cut into digits, in these
        shares = [Contribution(ref, (cell,), (c,), ((operand,),), left, ()) for c in candidates]
        known = len(self.k.partials)
        for share in shares:
            self.partial(share, "add")
        return len(self.k.partials) > known

    def settle(self) -> None:
        """Record the pieces found; pieces that join make one fact, proved from theirs."""
        pieces = dict.fromkeys(fact for fact, _ in self._pending)
        joined = dict.fromkeys(join(self.model, [fact for fact, _ in self._pending]))
        numbers = [self.k.add(fact, recipe, relates=fact in joined) for fact, recipe in self._pending]
        for fact in joined:
            if fact not in pieces:
                self.k.add(fact, LayoutRecipe(parts=tuple(numbers)))
        for reduced in self._sums:
            self._join_pieces(reduced)
        self._sums.clear()

    def _join_pieces(self, reduced: Reduced) -> None:
        """Facts about a sum on some ranks each, as one."""
        numbers = self.k.by_lhs[reduced]
        joined = join(self.model, [self.k.facts[n] for n in numbers])
        if len(joined) < len(numbers):
            parts = LayoutRecipe(parts=tuple(numbers))
            self.k.by_lhs[reduced] = [self.k.add(fact, parts, relates=False) for fact in joined]


def _rename_axes(share: Contribution, axes: Sequence[str]) -> Contribution:
    """Reduced mesh axes get symbols of their own per class: their ranges differ."""
    owner = split_ref(share.ref)[0]
    renaming = {a: Affine.symbol(f"{owner}.{a}") for a in axes}

    def forms(values: Forms) -> Forms:
        return tuple(f.substitute(renaming) for f in values)

    def instance(i: Instance) -> Instance:
        return Instance(i.fact, forms(i.values), i.defines)

    def uses(values: tuple[Use, ...]) -> tuple[Use, ...]:
        return tuple(Use(u.ref, forms(u.at)) for u in values)

    def pair(p: Pair) -> Pair:
        plan, spec = uses((p.plan, p.spec))
        return Pair(plan, spec, p.coef, tuple(map(instance, p.instances)), uses(p.atoms))

    cells = tuple(
        Cell(
            {(f"{owner}.{s}" if s in axes else s): r for s, r in c.ranges.items()},
            {s: f.substitute(renaming) for s, f in c.at.items()},
        )
        for c in share.cells
    )
    candidates = tuple(
        Candidate(
            c.spec,
            forms(c.out),
            forms(c.summed),
            c.coef,
            tuple(map(instance, c.instances)),
            uses(c.uses),
            c.opened,
            tuple(map(pair, c.pairs)),
            atom=c.atom,
        )
        for c in share.candidates
    )
    operands = tuple(
        tuple(
            Operand(o.reading, o.coef, o.partial, tuple(map(instance, o.instances)), uses(o.uses))
            for o in group
        )
        for group in share.operands
    )
    return Contribution(share.ref, cells, candidates, operands, forms(share.left), share.partial)


def _recipe(
    fact: Fact,
    left: Forms,
    shares: Sequence[Contribution],
    expand: Sequence[Ref],
    ranges: dict[str, Range],
) -> AlgebraRecipe:
    instances: dict[Instance, None] = {}
    uses: dict[Use, None] = {Use(fact.lhs, left): None, Use(fact.rhs, shares[0].candidates[0].out): None}
    pairs: dict[Pair, None] = {}
    for share in shares:
        for cell, candidate, operands in zip(share.cells, share.candidates, share.operands, strict=True):
            ranges.update(cell.ranges)
            uses[Use(share.ref, share.left)] = None
            pairs.update(dict.fromkeys(candidate.pairs))
            parts: list[Candidate | Operand] = [candidate, *operands]
            for part in parts:
                instances.update(dict.fromkeys(part.instances))
                uses.update(dict.fromkeys(part.uses))
    goal = solve(fact.lhs_index, fact.ranges, left, ranges)
    if goal is None:
        raise Unfollowable(f"{fact.lhs}: goal does not cover its own cell")
    return AlgebraRecipe(frozenset(expand), tuple(instances), tuple(uses), dict(ranges), goal, tuple(pairs))
