"""Candidates: ops of the specification that read the same elements as an op of the plan, at solved indices.

An operand is read at a symbolic index: as an element of a specification tensor, or as one rank's summand of
such an element. All of it is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable
from .access import COMMUTATIVE, Access, access
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .recipes import Instance, Pair, Use
from .solving_facts import solve

Forms = tuple[Affine, ...]


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


class Candidates:
    """The specification's ops by what they read, and which of them one op of the plan may equal."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self._readers: dict[tuple[str, Ref], list[str]] = {}

    def access(self, ref: str) -> Access | None:
        """How the op of a tensor reads its operands; ``None`` unless it is arithmetic."""
        op = self.model.op(ref)
        if op is None or self.k.moves(ref):
            return None
        return access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])

    def targets(self, ref: str) -> list[Ref]:
        """What a tensor is known to consist of."""
        if ref not in self.k.by_lhs and self.k.is_atom(ref):
            return [ref]
        return sorted({self.k.facts[i].rhs for i in self.k.facts_for(ref)}, key=str)

    def index(self, name: str, ref: str, targets: Iterable[Ref]) -> None:
        """Note a specification op as one that reads the ``targets``."""
        for target in targets:
            self._readers.setdefault((name, target), []).append(ref)

    def readers(self, name: str, target: Ref) -> Sequence[str]:
        """Ops of the specification of this name that read a target."""
        return self._readers.get((name, target), [])

    def operand(self, ref: str, index: list[Affine], ranges: Mapping[str, Range]) -> Operand:
        """An operand at an index, whole or a summand; ``Unrelated`` if it is neither."""
        use = Use(ref, tuple(index))
        try:
            reading = self.k.read(ref, index, ranges)
        except Unrelated:
            return self.partial_operand(ref, index, ranges)
        instances = () if reading.fact is None else (Instance(reading.fact, reading.values),)
        return Operand(reading, reading.coef, None, instances, (use, Use(reading.target, reading.at)))

    def partial_operand(self, ref: str, index: list[Affine], ranges: Mapping[str, Range]) -> Operand:
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

    def operand_by(self, fact: Fact, ref: str, index: Forms, cell: Cell) -> Operand | None:
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

    def find(self, ref: str, pattern: Access, operands: Sequence[Operand], cell: Cell) -> list[Candidate]:
        """Ops of the specification, of the same name and attributes, that read what these operands are."""
        op = self.model.ops[ref]
        targets = {o.reading.target for o in operands if self.model.literal(o.reading.target) is None}
        if not targets:
            return []
        pools = [self.readers(op.name, t) for t in targets]
        out = []
        for spec in dict.fromkeys(pools[0]):
            if spec == ref or not all(spec in pool for pool in pools[1:]):
                continue
            other = self.model.ops[spec]
            if not same_attributes(op, other):
                continue
            orders = [tuple(range(len(operands)))]
            if op.name in COMMUTATIVE or op.name == "dot_general":
                orders.append(tuple(reversed(orders[0])))
            for order in orders:
                found = self.match(spec, op, [operands[i] for i in order], cell)
                if found is not None:
                    out.append(found)
                    break
        return out

    def match(self, spec: str, op: Op, operands: Sequence[Operand], cell: Cell) -> Candidate | None:
        """One op of the specification as a candidate, if its index can be solved for from these operands."""
        pattern = self.access(spec)
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
            match = self.solve_operand(v, names, operand.reading, known, cell.ranges)
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

    def with_summand(
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
                    other = self.partial_operand(v, at, cell.ranges)
                except (Unrelated, Unfollowable, NoDefinition):
                    continue
                changed = (*operands[:i], other, *operands[i + 1 :])
                candidates = self.find(ref, pattern, changed, cell)
                if candidates:
                    return changed, candidates
        return operands, []

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

    def solve_operand(
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


def same_attributes(a: Op, b: Op) -> bool:
    """Attributes that change the meaning; dimension numbers are covered by the access patterns."""
    keys = ("direction", "kind") if a.name in ("compare", "reduce") else ()
    return all(a.attrs.get(k) == b.attrs.get(k) for k in keys) and a.type.sort == b.type.sort
