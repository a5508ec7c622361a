"""Matching arithmetic ops of the plan with ops of the specification that read related elements.

For every op the matcher reads its operands at a symbolic index, looks for a specification op of the same
kind that reads the same atoms, and solves for the specification's index. A sum that covers only a part of the
specification's sum makes a *partial* fact over the mesh axes that supply the other parts. All of it is a
guess: a fact counts when its stage is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore, upwards
from .access import Access
from .candidates import Candidate, Candidates, Operand, Read, orders
from .joining import join
from .knowledge import Knowledge
from .ledger import Reading, Unrelated
from .partial_sums import Contribution, PartialSums, Share, summed_axes
from .polynomials import TooLarge, Trail
from .recipes import Instance, Pair, Use
from .reordered import Rings
from .siblings import Propose, Siblings, nothing
from .solving_facts import make_fact
from .unbound import Found, Unbound, scaled

Forms = tuple[Affine, ...]
#: The operands of an op on a box, and the ops of the specification that it may equal there.
Matched = tuple[tuple[Operand, ...], tuple[Candidate, ...]]


class Matcher:
    """Relates arithmetic ops, one at a time in execution order."""

    def __init__(self, knowledge: Knowledge, propose: Propose = nothing) -> None:
        self.k, self.model = knowledge, knowledge.model
        self.rings = Rings(knowledge)
        self.candidates = Candidates(knowledge)
        self.sums = PartialSums(knowledge, self.candidates)
        self.siblings = Siblings(knowledge, self.candidates, propose)
        self.unbound = Unbound(knowledge, self.candidates, self._grouped)

    def index_specification(self, fold: Callable[[str], bool]) -> None:
        """Index specification ops by the atoms they read; relate duplicates to the first of their kind."""
        for op in self.model.plan.specification.ops:
            ref = f"s:{op.out}"
            if fold(ref) or self.candidates.access(ref) is None:
                continue
            self.relate(ref)
            self.k.forget_parts([ref])  # it stands for itself
            if ref not in self.k.by_lhs:
                self.unbound.repeats(ref)
            elif not self.k.repeats(ref):
                continue
            targets = [t for v in self.model.operands(ref) for t in self.candidates.targets(v)]
            self.rings.index(ref, targets)
            landmarks = [v for v in dict.fromkeys(self.model.operands(ref)) if v in self.k.landmarks]
            self.candidates.index(op.name, ref, (*targets, *landmarks))

    def relate_in_part(self, ref: str) -> bool:
        """Relate an op by what its operands add to sums of the specification, or some elements of a pointwise
        op, whose operands are related; padding, say, stays open.
        """
        if not ref.startswith("s:") and self.sums.find_summands(ref) and self.relate(ref):
            return True
        pattern = self.candidates.access(ref)
        if pattern is None or pattern.summed or ref.startswith("s:"):
            return False
        whole = self.k.full_index(ref)
        head = list(whole.ranges)[: len(self.model.tensors.mesh_axes(ref))]

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]] | None:
            try:
                operands = tuple(
                    self.candidates.operand(v, [cell.at[s] for s in (*head, *names)], cell.ranges)
                    for v, names in zip(self.model.operands(ref), pattern.operands, strict=True)
                )
            except Unrelated:
                return None
            return operands, tuple(self.candidates.find(ref, pattern, operands, cell))

        try:
            found = explore(whole, compute)
        except (Unfollowable, NoDefinition):
            return False
        self.sums.begin()
        done, left = False, []
        for cell, parts in found:
            at = tuple(cell.at[s] for s in whole.ranges)
            if parts is not None and self.sums.group(ref, pattern, at, [(cell, *parts)]):
                done = True
            else:
                left.append(cell)
        self.sums.settle()
        return (bool(left) and self._reordered(ref, whole, left)) or done

    def relate(self, ref: str) -> bool:
        """Try to relate one arithmetic op; whether it is now related (or partial)."""
        pattern = self.candidates.access(ref)
        if pattern is None or (self.k.is_atom(ref) and not ref.startswith("s:")):
            return False
        steps = _steps(self.candidates, ref, pattern)
        return (len(steps) > 1 and self._relate(ref, steps)) or self._relate(ref, steps[:1])

    def _relate(self, ref: str, steps: Sequence[tuple[str, Access]]) -> bool:
        through, pattern = steps[:-1], steps[-1][1]
        ins = self.model.operands(steps[-1][0])
        owner, _ = split_ref(ref)
        whole = self.k.full_index(ref)
        inner = {f"{owner}.{name}": (0, n) for name, n in pattern.summed}
        start = Cell.whole(dict(whole.ranges) | inner)
        mesh = len(self.model.tensors.mesh_axes(ref))
        head = list(whole.ranges)[:mesh]

        def index(cell: Cell, names: Sequence[str]) -> list[Affine]:
            variables = [n if n in whole.ranges else f"{owner}.{n}" for n in names]
            return [cell.at[a] for a in head] + [cell.at[v] for v in variables]

        def read(cell: Cell) -> tuple[Operand, ...]:
            return tuple(
                self.candidates.operand(v, index(cell, names), cell.ranges)
                for v, names in zip(ins, pattern.operands, strict=True)
            )

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]]:
            operands = read(cell)
            candidates = self.candidates.find(ref, pattern, operands, cell)
            if not candidates:
                places = [index(cell, names) for names in pattern.operands]
                operands, candidates = self.candidates.with_summand(ref, pattern, ins, places, operands, cell)
            opened = frozenset(self.model.operands(r)[0] for r, _ in through)
            passed = tuple(
                Use(self.model.operands(r)[0], tuple(index(cell, p.operands[0]))) for r, p in through
            )
            return operands, tuple(
                replace(c, opened=c.opened | opened, uses=(*c.uses, *passed)) for c in candidates
            )

        self.candidates.split = None
        try:
            found = explore(start, compute)
        except (Unrelated, Unfollowable, NoDefinition) as problem:
            if through:
                return False
            missing = problem.ref if isinstance(problem, Unrelated) else None
            if missing is not None and self.siblings.relate(ref, missing, pattern, start, index):
                return self.relate(ref)
            return self._reordered(ref, whole)
        if self.candidates.split is not None and not all(candidates for _, (_, candidates) in found):
            found = self._divided(start, compute) or found
        if len(found) > 1 and ref.startswith("s:"):
            found = self.unbound.completed(ref, found)
        if len(found) > 1 and not through and not ref.startswith("s:"):
            found = scaled(self.unbound.alike(ref, found, head, read))
        splits = len(found) > 1 and not through and not ref.startswith("s:")
        if splits and self._whole(ref, pattern, found, start, index):
            return True
        if self._grouped(ref, pattern, whole, found) or self._reordered(ref, whole):
            return True
        if through or ref.startswith("s:"):
            return False
        return self.siblings.elsewhere(ref, pattern, start, index) and self.relate(ref)

    def _divided(self, start: Cell, compute: Callable[[Cell], Matched]) -> list[Found] | None:
        """All parts of a result, cut where an operand is what a partner reads in a part of them only."""

        def divided(cell: Cell) -> Matched:
            self.candidates.split = None
            operands, candidates = compute(cell)
            if candidates:
                return operands, candidates
            raise self.candidates.split or Unrelated(operands[0].uses[0].ref)

        try:
            return explore(start, divided)
        except (Unrelated, Unfollowable, NoDefinition):
            return None

    def _grouped(self, ref: str, pattern: Access, whole: Cell, found: Sequence[Found]) -> bool:
        """Relate all pieces of a result, each from all cells of its sum."""
        groups: dict[Forms, list[Share]] = {}
        for cell, (operands, candidates) in found:
            left = tuple(cell.at[s] for s in whole.ranges)
            groups.setdefault(left, []).append((cell, operands, candidates))
        over = {summed_axes(group) for group in groups.values()} - {frozenset()} if len(groups) > 1 else ()
        beside = next(iter(over)) if len(over) == 1 else frozenset[str]()
        self.sums.begin()
        done = all([self.sums.group(ref, pattern, left, group, beside) for left, group in groups.items()])
        self.sums.settle()
        return done

    def _whole(
        self,
        ref: str,
        pattern: Access,
        found: Sequence[Found],
        start: Cell,
        index: Callable[[Cell, Sequence[str]], list[Affine]],
    ) -> bool:
        """Match an op with operands in pieces, if each operand is a layout of its partner as a whole, or in
        fewer pieces, as where two batches stand behind each other.
        """
        if any(not candidates or any(o.partial for o in operands) for _, (operands, candidates) in found):
            return False
        specs = {candidates[0].spec for _, (_, candidates) in found}
        if len(specs) != 1:
            return False
        ins, tied = self.model.operands(ref), []
        for i, (v, names) in enumerate(zip(ins, pattern.operands, strict=True)):
            places = [index(cell, names) for cell, _ in found]
            ways = [self._tied(ref, i, found, places, literals) for literals in (False, True)]
            tied.append((v, names, min((join(self.model, facts) for facts in ways), key=len)))
        op = self.model.ops[ref]

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]]:
            operands = []
            for v, names, facts in tied:
                at = tuple(index(cell, names))
                found = (self.candidates.operand_by(fact, v, at, cell) for fact in facts)
                operand = next((o for o in found if o is not None), None)
                if operand is None:
                    raise Unrelated(v)
                operands.append(operand)
            for order in orders(op, operands):
                candidate = self.candidates.match(next(iter(specs)), op, order, cell)
                if candidate is not None:
                    upwards(candidate.out if pattern.summed or candidate.coef != 1 else (), cell)
                    return tuple(operands), (candidate,)
            raise Unrelated(ref)

        try:
            parts = explore(start, compute)
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        return len(parts) < len(found) and self._grouped(ref, pattern, self.k.full_index(ref), parts)

    def _tied(
        self, ref: str, position: int, found: Sequence[Found], places: Sequence[list[Affine]], literals: bool
    ) -> list[Fact]:
        """An operand as the partner's operand, part by part; with ``literals`` where it is a number, too."""
        pieces: list[tuple[Cell, list[Affine], Use, Fraction | None]] = []
        for (cell, (operands, candidates)), at in zip(found, places, strict=True):
            o = operands[position]
            known: Sequence[Pair | Read] = candidates[0].reads if literals else candidates[0].pairs
            pair = next((p for p in known if p.plan == o.uses[0]), None)
            pieces.append((cell, at, *((pair.spec, pair.coef) if pair else (o.uses[-1], o.coef))))
        factor = next((coef for *_, coef in pieces if coef is not None), Fraction(1))
        v = self.model.operands(ref)[position]
        return list(
            dict.fromkeys(
                make_fact(self.model, cell, v, at, there.ref, there.at, factor if coef is None else coef)
                for cell, at, there, coef in pieces
            )
        )

    def _reordered(self, ref: str, whole: Cell, parts: Sequence[Cell] = ()) -> bool:
        """Match a sum or product that is bracketed in another way than the specification's.

        Of the ``parts`` of its elements, if given, those without a partner (padding, say) stay open.
        """
        if not self.rings.polynomials.adds(ref) or ref.startswith("s:"):
            return False

        def partner(
            cell: Cell, deep: bool, unrelated: bool = False
        ) -> tuple[Trail, str, Forms, Fraction, Trail] | None:
            trail, at = Trail(), list(cell.at.values())
            poly = self.rings.polynomials.of_plan(ref, at, cell.ranges, trail, deep=deep, unrelated=unrelated)
            poly = self.rings.polynomials.over_ranks(poly, trail.partial)
            found = next(self.rings.partners(poly, cell.ranges), None)
            if found is None or (trail.partial and found[0] not in found[3].opened):
                return None
            return trail, *found

        def compute(cell: Cell) -> tuple[Candidate, tuple[Operand, ...], Mapping[str, Range]] | None:
            found = None
            try:
                found = partner(cell, deep=False) or partner(cell, deep=True)
            except Unrelated:
                with suppress(Unrelated):
                    found = partner(cell, deep=False, unrelated=True)
            if found is None:
                if parts:
                    return None
                raise Unrelated(ref)
            trail, spec, out, coef, theirs = found
            upwards(() if trail.partial else out, cell)
            candidate = Candidate(
                spec,
                out,
                (),
                coef,
                tuple(Instance(*i) for i in (*trail.instances, *theirs.instances)),
                tuple(Use(*u) for u in (*trail.uses, *theirs.uses)),
                frozenset(trail.opened | theirs.opened),
                atom=spec not in theirs.opened,
            )
            reading = Reading(coef, spec, out)
            partial = tuple(Operand(reading, coef, r, (), ()) for r in trail.partial)
            return candidate, partial, trail.ranges

        try:
            found = [share for start in parts or [whole] for share in explore(start, compute)]
        except (Unrelated, Unfollowable, NoDefinition, TooLarge):
            return False
        self.sums.begin()
        done = any(share is not None for _, share in found)
        for cell, matched in found:
            if matched is None:
                continue
            candidate, operands, ranks = matched
            axes = {a for o in operands if o.partial for a in o.partial.axes}
            share = Contribution(
                ref,
                (Cell({**cell.ranges, **ranks}, cell.at),),
                (candidate,),
                (operands,),
                tuple(cell.at[s] for s in whole.ranges),
                tuple(a for a in self.model.plan.mesh.axes if a in axes),
            )
            if axes:
                done = self.sums.partial(share, "add") and done
            else:
                self.sums.pointwise(share)
        self.sums.settle()
        return done


def _steps(candidates: Candidates, ref: str, pattern: Access) -> list[tuple[str, Access]]:
    """A reduction and the reductions of the same kind that it goes on from, innermost last."""
    model = candidates.model
    steps = [(ref, pattern)]
    while model.ops[steps[-1][0]].name == "reduce":
        last, outer = steps[-1]
        v = model.operands(last)[0]
        op, inner = model.op(v), candidates.access(v)
        if op is None or inner is None or op.name != "reduce" or v.startswith("s:"):
            break
        if candidates.k.facts_for(v) or op.text("kind") != model.ops[last].text("kind"):
            break
        taken = len(outer.summed)
        names = dict(zip(inner.out, outer.operands[0], strict=True))
        names |= {n: f"k{taken + i}" for i, (n, _) in enumerate(inner.summed)}
        operand = tuple(names[n] for n in inner.operands[0])
        summed = (*outer.summed, *((names[n], size) for n, size in inner.summed))
        steps.append((v, Access(outer.out, (operand,), summed, outer.kind)))
    return steps
