"""Matching arithmetic ops of the plan with ops of the specification that read related elements.

For every op the matcher reads its operands at a symbolic index, looks for a specification op of the same
kind that reads the same atoms, and solves for the specification's index. A sum that covers only a part of the
specification's sum makes a *partial* fact over the mesh axes that supply the other parts. All of it is a
guess: a fact counts when its stage is proved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from .access import COMMUTATIVE, Access, access
from .joining import join
from .knowledge import Knowledge, LayoutRecipe, Reading, Unrelated
from .reordered import Rings, TooLarge, Trail
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


@dataclass(frozen=True)
class Instance:
    """A fact used at symbolic positions; ``defines`` says which side it substitutes."""

    fact: int
    values: Forms
    defines: str = "lhs"


@dataclass(frozen=True)
class Use:
    """An element that a stage speaks of, at symbolic positions."""

    ref: Ref
    at: Forms


@dataclass(frozen=True)
class Pair:
    """Operands of both sides that correspond, with the facts and atoms by which they do: ``plan = coef *
    spec``.
    """

    plan: Use
    spec: Use
    coef: Fraction
    instances: tuple[Instance, ...]
    atoms: tuple[Use, ...]


@dataclass(frozen=True)
class AlgebraRecipe:
    """All that an algebra stage needs, over cell symbols: what is unfolded, which facts, where."""

    expand: frozenset[Ref]
    instances: tuple[Instance, ...]
    uses: tuple[Use, ...]
    ranges: Mapping[str, Range]
    goal: Mapping[str, Affine]
    pairs: tuple[Pair, ...] = ()
    roots: bool = False


@dataclass(frozen=True)
class Operand:
    """One operand element of a plan op: its reading, or, if it is partial, how it gets there."""

    reading: Reading
    coef: Fraction
    partial: Reduced | None
    instances: tuple[Instance, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Candidate:
    """A specification op that one cell of a plan op may equal."""

    spec: str
    out: Forms
    summed: Forms
    coef: Fraction
    instances: tuple[Instance, ...]
    uses: tuple[Use, ...]
    opened: frozenset[Ref] = frozenset()
    pairs: tuple[Pair, ...] = ()
    #: The stage reads the specification's element and does not open it.
    atom: bool = False


@dataclass(frozen=True)
class Contribution:
    """One rank class's share of a specification element."""

    ref: str
    cells: tuple[Cell, ...]
    candidates: tuple[Candidate, ...]
    operands: tuple[tuple[Operand, ...], ...]
    left: Forms
    partial: tuple[str, ...]


#: Ranks of one axis that a sum may be taken apart into.
MAX_RANKS = 32


class Matcher:
    """Relates arithmetic ops, one at a time in execution order."""

    def __init__(self, knowledge: Knowledge, propose: Callable[[list[Fact]], bool] = lambda _: False) -> None:
        """``propose`` keeps guessed facts about one tensor if all of them are proved."""
        self.k = knowledge
        self.propose = propose
        self.model = knowledge.model
        self.rings = Rings(knowledge)
        self._readers: dict[tuple[str, Ref], list[str]] = {}
        self._shares: dict[tuple[str, Fraction, str], list[Contribution]] = {}
        self._hinted: set[Ref] = set()
        self._summands: set[Ref] = set()
        self._pending: list[tuple[Fact, AlgebraRecipe]] = []
        self._sums: set[Reduced] = set()

    # --- the specification ---------------------------------------------------------------------------------

    def index_specification(self, fold: Callable[[str], bool]) -> None:
        """Index specification ops by the atoms they read; relate duplicates to the first of their kind."""
        for op in self.model.plan.specification.ops:
            ref = f"s:{op.out}"
            if fold(ref) or self._access(ref) is None:
                continue
            self.relate(ref)
            if ref in self.k.by_lhs:
                continue
            targets = [t for v in self.model.operands(ref) for t in self._targets(v)]
            self.rings.index(ref, targets)
            landmarks = [v for v in dict.fromkeys(self.model.operands(ref)) if v in self.k.landmarks]
            for target in (*targets, *landmarks):
                self._readers.setdefault((op.name, target), []).append(ref)

    def _targets(self, ref: str) -> list[Ref]:
        if ref not in self.k.by_lhs and self.k.is_atom(ref):
            return [ref]
        return sorted({self.k.facts[i].rhs for i in self.k.facts_for(ref)}, key=str)

    def _access(self, ref: str) -> Access | None:
        op = self.model.op(ref)
        if op is None or self.k.moves(ref):
            return None
        return access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])

    # --- one op --------------------------------------------------------------------------------------------

    def relate_in_part(self, ref: str) -> bool:
        """Relate an op by what its operands add to sums of the specification, or some elements of a pointwise
        op, whose operands are related; padding, say, stays open.
        """
        if not ref.startswith("s:") and self._find_summands(ref) and self.relate(ref):
            return True
        pattern = self._access(ref)
        if pattern is None or pattern.summed or ref.startswith("s:"):
            return False
        whole = self.k.full_index(ref)
        head = list(whole.ranges)[: len(self.model.tensors.mesh_axes(ref))]

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]] | None:
            try:
                operands = tuple(
                    self._operand(v, [cell.at[s] for s in (*head, *names)], cell.ranges)
                    for v, names in zip(self.model.operands(ref), pattern.operands, strict=True)
                )
            except Unrelated:
                return None
            return operands, tuple(self._candidates(ref, pattern, operands, cell))

        try:
            found = explore(whole, compute)
        except (Unfollowable, NoDefinition):
            return False
        self._pending.clear()
        done, left = False, []
        for cell, parts in found:
            at = tuple(cell.at[s] for s in whole.ranges)
            if parts is not None and self._group(ref, pattern, at, [(cell, *parts)]):
                done = True
            else:
                left.append(cell)
        self._settle()
        return (bool(left) and self._reordered(ref, whole, left)) or done

    def relate(self, ref: str) -> bool:
        """Try to relate one arithmetic op; whether it is now related (or partial)."""
        pattern = self._access(ref)
        if pattern is None or (self.k.is_atom(ref) and not ref.startswith("s:")):
            return False
        steps = self._steps(ref, pattern)
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

        def compute(cell: Cell) -> tuple[tuple[Operand, ...], tuple[Candidate, ...]]:
            operands = tuple(
                self._operand(v, index(cell, names), cell.ranges)
                for v, names in zip(ins, pattern.operands, strict=True)
            )
            candidates = self._candidates(ref, pattern, operands, cell)
            if not candidates:
                places = [index(cell, names) for names in pattern.operands]
                operands, candidates = self._with_summand(ref, pattern, ins, places, operands, cell)
            opened = frozenset(self.model.operands(r)[0] for r, _ in through)
            passed = tuple(
                Use(self.model.operands(r)[0], tuple(index(cell, p.operands[0]))) for r, p in through
            )
            return operands, tuple(
                replace(c, opened=c.opened | opened, uses=(*c.uses, *passed)) for c in candidates
            )

        try:
            found = explore(start, compute)
        except (Unrelated, Unfollowable, NoDefinition) as problem:
            if through:
                return False
            hinted = isinstance(problem, Unrelated) and self._hint(ref, problem.ref, pattern, start, index)
            return self.relate(ref) if hinted else self._reordered(ref, whole)
        splits = len(found) > 1 and not through and not ref.startswith("s:")
        if splits and self._whole(ref, pattern, found, start, index):
            return True
        groups: dict[Forms, list[tuple[Cell, tuple[Operand, ...], tuple[Candidate, ...]]]] = {}
        for cell, (operands, candidates) in found:
            left = tuple(cell.at[s] for s in whole.ranges)
            groups.setdefault(left, []).append((cell, operands, candidates))
        self._pending.clear()
        done = all([self._group(ref, pattern, left, group) for left, group in groups.items()])
        self._settle()
        return done or self._reordered(ref, whole)

    def _steps(self, ref: str, pattern: Access) -> list[tuple[str, Access]]:
        """A reduction and the reductions of the same kind that it goes on from, innermost last."""
        steps = [(ref, pattern)]
        while self.model.ops[steps[-1][0]].name == "reduce":
            last, outer = steps[-1]
            v = self.model.operands(last)[0]
            op, inner = self.model.op(v), self._access(v)
            if op is None or inner is None or op.name != "reduce" or v.startswith("s:"):
                break
            if self.k.facts_for(v) or op.text("kind") != self.model.ops[last].text("kind"):
                break
            taken = len(outer.summed)
            names = dict(zip(inner.out, outer.operands[0], strict=True))
            names |= {n: f"k{taken + i}" for i, (n, _) in enumerate(inner.summed)}
            operand = tuple(names[n] for n in inner.operands[0])
            summed = (*outer.summed, *((names[n], size) for n, size in inner.summed))
            steps.append((v, Access(outer.out, (operand,), summed, outer.kind)))
        return steps

    def _whole(
        self,
        ref: str,
        pattern: Access,
        found: Sequence[tuple[Cell, tuple[tuple[Operand, ...], tuple[Candidate, ...]]]],
        start: Cell,
        index: Callable[[Cell, Sequence[str]], list[Affine]],
    ) -> bool:
        """Match an op with operands in pieces, if each operand as a whole is a layout of its partner."""
        if any(not candidates or any(o.partial for o in operands) for _, (operands, candidates) in found):
            return False
        specs = {candidates[0].spec for _, (_, candidates) in found}
        if len(specs) != 1:
            return False
        wholes: list[Operand] = []
        for i, (v, names) in enumerate(zip(self.model.operands(ref), pattern.operands, strict=True)):
            facts = []
            for cell, (operands, candidates) in found:
                o = operands[i]
                pair = next((p for p in candidates[0].pairs if p.plan == o.uses[0]), None)
                there, coef = (pair.spec, pair.coef) if pair else (o.uses[-1], o.coef)
                facts.append(make_fact(self.model, cell, v, index(cell, names), there.ref, there.at, coef))
            joined = join(self.model, list(dict.fromkeys(facts)))
            if len(joined) != 1:
                return False
            operand = self._tied(joined[0], v, tuple(index(start, names)), start)
            if operand is None:
                return False
            wholes.append(operand)
        op = self.model.ops[ref]
        orders = [wholes, wholes[::-1]] if op.name in COMMUTATIVE or op.name == "dot_general" else [wholes]
        for order in orders:
            candidate = self._candidate(next(iter(specs)), op, order, start)
            if candidate is not None:
                left = tuple(start.at[s] for s in self.k.full_index(ref).ranges)
                self._pending.clear()
                done = self._group(ref, pattern, left, [(start, tuple(wholes), (candidate,))])
                self._settle()
                return done
        return False

    def _tied(self, fact: Fact, ref: str, index: Forms, cell: Cell) -> Operand | None:
        """An operand that one fact ties to a specification tensor, moved or not."""
        try:
            values = solve(fact.lhs_index, fact.ranges, index, cell.ranges)
        except (Cut, Digits, Unfollowable):
            return None
        if values is None:
            return None
        number = self.k.add(fact, LayoutRecipe(), relates=False)
        at = tuple(f.substitute(values) for f in fact.rhs_index)
        forms = tuple(values[s] for s, _, _ in fact.symbols)
        reading = Reading(fact.coef, fact.rhs, at, number, forms)
        return Operand(
            reading, fact.coef, None, (Instance(number, forms),), (Use(ref, index), Use(fact.rhs, at))
        )

    def _reordered(self, ref: str, whole: Cell, parts: Sequence[Cell] = ()) -> bool:
        """Match a sum or product that is bracketed in another way than the specification's.

        Of the ``parts`` of its elements, if given, those without a partner (padding, say) stay open.
        """
        if not self.rings.adds(ref) or ref.startswith("s:"):
            return False

        def partner(cell: Cell, deep: bool) -> tuple[Trail, str, Forms, Fraction, Trail] | None:
            trail = Trail()
            poly = self.rings.of_plan(ref, list(cell.at.values()), cell.ranges, trail, deep=deep)
            poly = self.rings.over_ranks(poly, trail.partial)
            found = next(self.rings.partners(poly, cell.ranges), None)
            if found is None or (trail.partial and found[0] not in found[3].opened):
                return None
            return trail, *found

        def compute(cell: Cell) -> tuple[Candidate, tuple[Operand, ...], Mapping[str, Range]] | None:
            try:
                found = partner(cell, deep=False) or partner(cell, deep=True)
            except Unrelated:
                found = None
            if found is None:
                if parts:
                    return None
                raise Unrelated(ref)
            trail, spec, out, coef, theirs = found
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
        self._pending.clear()
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
                done = self._partial(share, "add") and done
            else:
                self._pointwise(share)
        self._settle()
        return done

    def _settle(self) -> None:
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

    def _operand(self, ref: str, index: list[Affine], ranges: Mapping[str, Range]) -> Operand:
        use = Use(ref, tuple(index))
        try:
            reading = self.k.read(ref, index, ranges)
        except Unrelated:
            return self._partial_operand(ref, index, ranges)
        instances = () if reading.fact is None else (Instance(reading.fact, reading.values),)
        return Operand(reading, reading.coef, None, instances, (use, Use(reading.target, reading.at)))

    def _partial_operand(self, ref: str, index: list[Affine], ranges: Mapping[str, Range]) -> Operand:
        """An operand that is (a layout of) a summand of a specification tensor."""
        coef, source, at = Fraction(1), ref, tuple(index)
        instances: tuple[Instance, ...] = ()
        uses = [Use(ref, at)]
        links = self.k.links(ref)
        if links is not None:
            link = self.k.through(links, index, ranges)
            if link is None or link.fact is None or not isinstance(link.target, str):
                raise Unrelated(ref)
            coef, source, at = link.coef, link.target, link.at
            instances = (Instance(link.fact, link.values),)
            uses.append(Use(source, at))
        axes = list(self.model.plan.mesh.axes)
        for reduced in self.k.partials.get(source, []):
            if reduced.kind != "add":
                continue
            rest = [f for i, f in enumerate(at) if i >= len(axes) or axes[i] not in reduced.axes]
            reading = self.k.summed(reduced, rest, ranges)
            assert reading.fact is not None
            uses += [Use(reduced, tuple(rest)), Use(reading.target, reading.at)]
            instances += (Instance(reading.fact, reading.values, "rhs"),)
            return Operand(reading, coef * reading.coef, reduced, instances, tuple(uses))
        raise Unrelated(ref)

    def _find_summands(self, ref: str) -> bool:
        """Record operands that are, without an op of their own, what one rank adds to a specification's sum.

        With one of the summed heads on each rank, say, nothing is added there. Whether anything was recorded.
        """
        op = self.model.op(ref)
        if op is None or op.name not in ("dot_general", "reduce"):
            return False
        found = False
        for v in dict.fromkeys(self.model.operands(ref)):
            try:
                links = self.k.links(v)
            except (Unfollowable, NoDefinition):
                continue
            sources = [v] if links is None else [self.k.facts[n].rhs for n in links]
            for source in dict.fromkeys(sources):
                known = isinstance(source, str) and source in self.k.by_lhs and source not in self.k.partials
                if known and source not in self._summands:
                    self._summands.add(source)
                    found = self._summand(str(source)) or found
        return found

    def _summand(self, ref: str) -> bool:
        whole = self.k.full_index(ref)
        left = tuple(whole.at[s] for s in whole.ranges)

        def compute(cell: Cell) -> tuple[Operand, list[Candidate]]:
            operand = self._operand(ref, list(cell.at.values()), cell.ranges)
            readers = self._readers.get(("reduce", operand.reading.target), [])
            sums = [s for s in readers if self.model.ops[s].text("kind") == "add"]
            found = (self._candidate(s, self.model.ops[s], [operand], cell) for s in sums)
            return operand, [c for c in found if c is not None]

        try:
            ((cell, (operand, candidates)),) = explore(whole, compute)
        except (Unrelated, Unfollowable, NoDefinition, ValueError):
            return False
        shares = [Contribution(ref, (cell,), (c,), ((operand,),), left, ()) for c in candidates]
        known = len(self.k.partials)
        for share in shares:
            self._partial(share, "add")
        return len(self.k.partials) > known

    def _with_summand(
        self,
        ref: str,
        pattern: Access,
        ins: Sequence[str],
        places: Sequence[list[Affine]],
        operands: tuple[Operand, ...],
        cell: Cell,
    ) -> tuple[tuple[Operand, ...], list[Candidate]]:
        """Candidates if one operand is read as a summand of a tensor, not as the tensor that it equals."""
        for i, (v, at) in enumerate(zip(ins, places, strict=True)):
            if operands[i].partial is None:
                try:
                    other = self._partial_operand(v, at, cell.ranges)
                except (Unrelated, Unfollowable, NoDefinition):
                    continue
                changed = (*operands[:i], other, *operands[i + 1 :])
                candidates = self._candidates(ref, pattern, changed, cell)
                if candidates:
                    return changed, candidates
        return operands, []

    def _hint(
        self,
        ref: str,
        missing: Ref,
        pattern: Access,
        start: Cell,
        index: Callable[[Cell, Sequence[str]], list[Affine]],
    ) -> bool:
        """Relate the one unrelated operand by what its siblings' partner in the specification reads there."""
        ins = self.model.operands(ref)
        if len(ins) < 2 or ins.count(str(missing)) != 1 or missing in self._hinted:
            return False
        self._hinted.add(missing)
        position = ins.index(str(missing))

        def compute(cell: Cell) -> list[tuple[str, list[Affine]]]:
            operands = [
                None if i == position else self._operand(v, index(cell, names), cell.ranges)
                for i, (v, names) in enumerate(zip(ins, pattern.operands, strict=True))
            ]
            return self._siblings(ref, operands, position, cell)

        try:
            found = explore(start, compute)
            for wanted in dict.fromkeys(v for v, _ in found[0][1]):
                pieces = []
                for cell, guesses in found:
                    at = next((at for v, at in guesses if v == wanted), None)
                    if at is None:
                        raise Unrelated(missing)
                    reading = self.k.read(wanted, at, cell.ranges)
                    left = index(cell, pattern.operands[position])
                    pieces.append(
                        make_fact(self.model, cell, missing, left, reading.target, reading.at, reading.coef)
                    )
                if self.propose(join(self.model, pieces)):
                    return True
        except (Unrelated, Unfollowable, NoDefinition):
            pass
        return False

    def _siblings(
        self, ref: str, operands: Sequence[Operand | None], position: int, cell: Cell
    ) -> list[tuple[str, list[Affine]]]:
        """What partners of ``ref`` in the specification read where it reads the missing operand."""
        op = self.model.ops[ref]
        targets = {o.reading.target for o in operands if o and self.model.literal(o.reading.target) is None}
        out: list[tuple[str, list[Affine]]] = []
        for spec in dict.fromkeys(s for t in targets for s in self._readers.get((op.name, t), [])):
            pattern = self._access(spec)
            if pattern is None or not _same_attributes(op, self.model.ops[spec]):
                continue
            orders = [tuple(range(len(operands)))]
            if op.name in COMMUTATIVE or op.name == "dot_general":
                orders.append(tuple(reversed(orders[0])))
            for order in orders:
                known: dict[str, Affine] = {}
                ins = self.model.operands(spec)
                fits = True
                for v, names, i in zip(ins, pattern.operands, order, strict=True):
                    operand = operands[i]
                    if operand is not None and self.model.literal(operand.reading.target) is None:
                        solved = self._solve_operand(v, names, operand.reading, known, cell.ranges)
                        fits = fits and solved is not None
                place = order.index(position)
                if fits and all(n in known for n in pattern.operands[place]):
                    out.append((ins[place], [known[n] for n in pattern.operands[place]]))
        return out

    # --- candidates ----------------------------------------------------------------------------------------

    def _candidates(
        self, ref: str, pattern: Access, operands: Sequence[Operand], cell: Cell
    ) -> list[Candidate]:
        op = self.model.ops[ref]
        targets = {o.reading.target for o in operands if self.model.literal(o.reading.target) is None}
        if not targets:
            return []
        pools = [self._readers.get((op.name, t), []) for t in targets]
        out = []
        for spec in dict.fromkeys(pools[0]):
            if spec == ref or not all(spec in pool for pool in pools[1:]):
                continue
            other = self.model.ops[spec]
            if not _same_attributes(op, other):
                continue
            orders = [tuple(range(len(operands)))]
            if op.name in COMMUTATIVE or op.name == "dot_general":
                orders.append(tuple(reversed(orders[0])))
            for order in orders:
                found = self._candidate(spec, op, [operands[i] for i in order], cell)
                if found is not None:
                    out.append(found)
                    break
        return out

    def _candidate(self, spec: str, op: Op, operands: Sequence[Operand], cell: Cell) -> Candidate | None:
        pattern = self._access(spec)
        if pattern is None or len(pattern.operands) != len(operands):
            return None
        known: dict[str, Affine] = {}
        factors: list[Fraction | None] = []
        pending: list[tuple[str, tuple[str, ...], Operand]] = []
        for v, names, operand in zip(self.model.operands(spec), pattern.operands, operands, strict=True):
            literal = self.model.literal(operand.reading.target)
            own = self.model.literal(v)
            if own is None and literal is None:
                pending.append((v, names, operand))
                continue
            value = own if own is not None else self._literal_of(v)
            if literal is None or value is None:
                return None
            if isinstance(literal, Fraction) and isinstance(value, Fraction) and literal and value:
                factors.append(operand.coef * literal / value)
            elif literal == value:
                factors.append(None)
            else:
                return None
        instances: list[Instance] = []
        uses: list[Use] = []
        ratio: dict[int, Fraction] = {}
        for v, names, operand in pending:
            match = self._solve_operand(v, names, operand.reading, known, cell.ranges)
            if match is None:
                return None
            ratio[id(operand)] = operand.coef / match
        types = {v: n for v, n in pattern.summed}
        shape = self.model.ops[spec].type.shape
        for d, name in enumerate(pattern.out):
            if name not in known:
                guess = cell.at.get(name)
                if guess is None or len(pattern.out) != len(op.type.shape):
                    return None
                known[name] = guess
            lo, hi = known[name].interval(cell.ranges)
            if lo < 0 or hi >= shape[d]:
                return None
        for name, n in pattern.summed:
            if name not in known:
                return None
            lo, hi = known[name].interval(cell.ranges)
            if lo < 0 or hi >= types[name] or n != types[name]:
                return None
        ordered: list[Fraction | None] = []
        literals = iter(factors)
        for operand in operands:
            literal_pair = self.model.literal(operand.reading.target) is not None
            ordered.append(next(literals) if literal_pair else ratio[id(operand)])
        coef = combine(op.name, ordered)
        if coef is None:
            return None
        pairs: list[Pair] = []
        for v, names, operand in zip(self.model.operands(spec), pattern.operands, operands, strict=True):
            here = Use(v, tuple(known[n] for n in names))
            uses.append(here)
            if operand.reading.target == v:
                continue
            reading = self.k.read(v, here.at, cell.ranges)
            if reading.fact is None:
                continue
            instance, atom = Instance(reading.fact, reading.values), Use(reading.target, reading.at)
            instances.append(instance)
            uses.append(atom)
            if operand.partial is None and self.model.literal(reading.target) is None:
                through = (*operand.instances, instance)
                pairs.append(Pair(operand.uses[0], here, operand.coef / reading.coef, through, (atom,)))
        out = tuple(known[n] for n in pattern.out)
        uses.append(Use(spec, out))
        summed = tuple(known[n] for n, _ in pattern.summed)
        return Candidate(spec, out, summed, coef, tuple(instances), tuple(uses), pairs=tuple(pairs))

    def _literal_of(self, ref: str) -> object:
        """The literal that a moved specification tensor consists of, if it is one everywhere."""
        values = set()
        for number in self.k.facts_for(ref):
            fact = self.k.facts[number]
            value = self.model.literal(fact.rhs)
            if value is None:
                return None
            values.add(fact.coef * value if isinstance(value, Fraction) else value)
        return values.pop() if len(values) == 1 else None

    def _solve_operand(
        self,
        ref: str,
        names: Sequence[str],
        reading: Reading,
        known: dict[str, Affine],
        ranges: Mapping[str, Range],
    ) -> Fraction | None:
        """Fix the variables that this operand determines; the specification's own factor, or ``None``."""
        if ref == reading.target:
            return Fraction(1) if _assign(known, zip(names, reading.at, strict=True)) else None
        if ref not in self.k.by_lhs and self.k.is_atom(ref):
            return None
        for number in self.k.facts_for(ref):
            fact = self.k.facts[number]
            if fact.rhs != reading.target:
                continue
            values = solve(fact.rhs_index, fact.ranges, reading.at, ranges)
            if values is None:
                continue
            fixed = {s for f in fact.rhs_index for s in f.symbols}
            pairs = [
                (name, form.substitute(values))
                for name, form in zip(names, fact.lhs_index, strict=True)
                if set(form.symbols) <= fixed
            ]
            trial = dict(known)
            if _assign(trial, pairs):
                known.update(trial)
                return fact.coef
        return None

    # --- facts ---------------------------------------------------------------------------------------------

    def _group(
        self,
        ref: str,
        pattern: Access,
        left: Forms,
        group: Sequence[tuple[Cell, tuple[Operand, ...], tuple[Candidate, ...]]],
    ) -> bool:
        """Relate one piece of a result from all cells of its sum."""
        done = False
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
            partial = {a for _, operands, _ in group for o in operands if o.partial for a in o.partial.axes}
            share = Contribution(
                ref,
                tuple(c for c, _, _ in group),
                tuple(chosen),
                tuple(o for _, o, _ in group),
                left,
                tuple(a for a in self.model.plan.mesh.axes if a in partial),
            )
            if not partial and self._covers([share], ()):
                self._pointwise(share)
                return True
            done = self._partial(share, pattern.kind) or done
        return done

    def _covers(self, shares: Sequence[Contribution], axes: Sequence[str]) -> bool:
        """Whether the shares, over all coordinates of ``axes``, make up the specification's whole sum."""
        pattern = self._access(shares[0].candidates[0].spec)
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

    def _pointwise(self, share: Contribution) -> None:
        first = share.candidates[0]
        fact = make_fact(self.model, share.cells[0], share.ref, share.left, first.spec, first.out, first.coef)
        expand = (share.ref, *([] if first.atom else [first.spec]), *first.opened)
        self._pending.append((fact, self._recipe(fact, share.left, [share], expand, {})))

    def _partial(self, share: Contribution, kind: str) -> bool:
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
        chosen: dict[str, Contribution] = {}
        for other in pool:
            if rest(other.left) == rest(share.left) and other.candidates[0].out == share.candidates[0].out:
                chosen[split_ref(other.ref)[0]] = other
        chosen[split_ref(share.ref)[0]] = share
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
        renamed = [self._rename_axes(s, axes) for s in shares]
        fact = make_fact(self.model, share.cells[0], reduced, left, first.spec, first.out, first.coef)
        extra = {o.partial: None for s in renamed for group in s.operands for o in group if o.partial}
        opened = frozenset().union(*(s.candidates[0].opened for s in renamed))
        spec = [] if first.atom else [first.spec]
        recipe = self._recipe(fact, left, renamed, (reduced, *reduced.of, *spec, *extra, *opened), {})
        self.k.add(fact, recipe)
        self._sums.add(reduced)
        return True

    def _rename_axes(self, share: Contribution, axes: Sequence[str]) -> Contribution:
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
                c.atom,
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
        self,
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
        return AlgebraRecipe(
            frozenset(expand), tuple(instances), tuple(uses), dict(ranges), goal, tuple(pairs)
        )

    def by_rank(self, recipe: AlgebraRecipe, axis: str) -> AlgebraRecipe | None:
        """The recipe with the ranks of a summed mesh axis one by one; ``None`` if it is not summed.

        Shards of several classes may not run over one contiguous range together, but do for one rank of an
        axis.
        """
        moving = {s: r for s, r in recipe.ranges.items() if s.endswith(f".{axis}") and r[1] - r[0] > 1}
        used = {x for f in recipe.goal.values() for x in f.symbols}
        if not moving or set(moving) & used or max(hi - lo for lo, hi in moving.values()) > MAX_RANKS:
            return None
        instances, uses = recipe.instances, recipe.uses
        for symbol, (lo, hi) in moving.items():
            values = [{symbol: Affine(v)} for v in range(lo, hi)]

            def at(forms: Forms, value: Mapping[str, Affine]) -> Forms:
                return tuple(f.substitute(value) for f in forms)

            instances = tuple(
                dict.fromkeys(replace(i, values=at(i.values, v)) for i in instances for v in values)
            )
            uses = tuple(dict.fromkeys(Use(u.ref, at(u.at, v)) for u in uses for v in values))
        ranges = {s: r for s, r in recipe.ranges.items() if s not in moving}
        return replace(recipe, instances=instances, uses=uses, ranges=ranges, pairs=())

    def direct(self, recipe: AlgebraRecipe) -> AlgebraRecipe:
        """The recipe with operands tied to operands by facts of their own, not through the tensors both
        come from.

        Trees of an algebra stage cannot cut the axes of a common source and join others of it; its layout
        stage can.
        """
        instances, uses = dict.fromkeys(recipe.instances), dict.fromkeys(recipe.uses)
        for pair in recipe.pairs:
            for instance in pair.instances:
                instances.pop(instance, None)
            for atom in pair.atoms:
                uses.pop(atom, None)
        cell = Cell(recipe.ranges, {})
        for pair in recipe.pairs:
            uses |= {pair.plan: None, pair.spec: None}
            fact = make_fact(
                self.model, cell, pair.plan.ref, pair.plan.at, pair.spec.ref, pair.spec.at, pair.coef
            )
            instances[tied(self.k, fact, pair.plan.at, recipe.ranges)] = None
        return replace(recipe, instances=tuple(instances), uses=tuple(uses), pairs=())


def tied(knowledge: Knowledge, fact: Fact, at: Forms, ranges: Mapping[str, Range]) -> Instance:
    """A fact of data movement, recorded, and its instance at the index that it was made for."""
    number = knowledge.add(fact, LayoutRecipe(), relates=False)
    values = solve(fact.lhs_index, fact.ranges, at, ranges)
    if values is None:
        raise Unfollowable(f"{fact.lhs}: a fact does not cover its own cell")
    return Instance(number, tuple(values[s] for s, _, _ in fact.symbols))


def combine(name: str, factors: Sequence[Fraction | None]) -> Fraction | None:
    """Factor of a result whose operands are ``factor`` times the specification's (``None``: zero or
    fixed).
    """
    given = [f for f in factors if f is not None]
    equal = given[0] if given and all(f == given[0] for f in given) else None
    match name:
        case "add" | "subtract":
            return equal
        case "multiply" | "dot_general":
            return math.prod(given, start=Fraction(1))
        case "divide":
            if len(given) != 2 or given[1] == 0:
                return None
            return given[0] / given[1]
        case "maximum" | "minimum":
            return equal if equal is not None and equal > 0 and len(given) == len(factors) else None
        case "reduce":
            return equal
        case "select":
            branches = [f for f in factors[1:] if f is not None]
            if factors[0] not in (None, Fraction(1)) or any(f != branches[0] for f in branches):
                return None
            return branches[0] if branches else Fraction(1)
        case _:
            return Fraction(1) if all(f in (None, Fraction(1)) for f in factors) else None


def _assign(known: dict[str, Affine], pairs: Iterable[tuple[str, Affine]]) -> bool:
    return all(known.setdefault(name, form) == form for name, form in pairs)


def _same_attributes(a: Op, b: Op) -> bool:
    """Attributes that change the meaning; dimension numbers are covered by the access patterns."""
    keys = ("direction", "kind") if a.name in ("compare", "reduce") else ()
    return all(a.attrs.get(k) == b.attrs.get(k) for k in keys) and a.type.sort == b.type.sort
