"""Candidates: ops of the specification that read the same elements as an op of the plan, at solved indices.

An operand is read at a symbolic index: as an element of a specification tensor, or as one rank's summand of
such an element. All of it is a guess.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..cells import Cell, Cut, Digits, Unfollowable, divide, upwards
from .access import Access, access, adds_up, combine, commutes, same_attributes
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .recipes import Instance, Pair, Use
from .solving_facts import as_there, solve

Forms = tuple[Affine, ...]
#: Places of what is read in a tensor that has it several times, in one op of the specification.
MAX_PLACES = 8
#: Before a variable that operands determine in part: the rest is as in the plan, or at its first place.
_PARTLY, _FIRST = "?", "0"


@dataclass(frozen=True)
class Operand:
    """One operand element of a plan op: its reading, or, if it is partial, how it gets there."""

    reading: Reading
    coef: Fraction
    partial: Reduced | None
    instances: tuple[Instance, ...]
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Read:
    """Elements that both sides read in one place: ``plan = coef * spec``, or with any factor (``None``)."""

    plan: Use
    spec: Use
    coef: Fraction | None


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
    #: Operands of both sides, literals too, that correspond.
    reads: tuple[Read, ...] = ()
    #: The stage reads the specification's element and does not open it.
    atom: bool = False
    #: Some coordinate of it is that of the plan, because no operand says which.
    guessed: bool = False
    #: Both sides are products with zero, and equal up to any factor.
    zero: bool = False


class Candidates:
    """The specification's ops by what they read, and which of them one op of the plan may equal."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self._readers: dict[tuple[str, Ref], list[str]] = {}
        #: Variables of specification ops of which the result does not depend: it is read at 0 there.
        self.free: dict[str, frozenset[str]] = {}
        #: A split of the box that would have let an operand be what a partner reads, where it was not.
        self.split: Cut | None = None

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

    def twice(self, ref: str) -> bool:
        """Whether a tensor may hold elements of another one twice: it is put together from parts of it."""
        sources = [self.k.facts[i].rhs for i in self.k.facts_for(ref)]
        return any(self.model.literal(r) is None and sources.count(r) > 1 for r in sources)

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
        except Unfollowable:
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
        if not targets or not adds_up(op, [o.partial for o in operands]):
            return []
        pools = [self.readers(op.name, t) for t in targets]
        owner = split_ref(ref)[0]
        summed = frozenset(s for n, _ in pattern.summed for s in cell.at[f"{owner}.{n}"].symbols)
        out, cut = [], None
        for spec in dict.fromkeys(pools[0]):
            if spec == ref or not all(spec in pool for pool in pools[1:]):
                continue
            other = self.model.ops[spec]
            if not same_attributes(op, other):
                continue
            for order in orders(op, operands):
                try:
                    found = self.match(spec, op, order, cell)
                except (Cut, Digits) as part:
                    cut = cut or part
                    continue
                # A sum of elements of which each is of another result is none of these results.
                if found is not None and not any(summed.intersection(f.symbols) for f in found.out):
                    out.append(found)
                    break
        upwards((f for c in out for f in c.out if pattern.summed or c.coef != 1), cell)
        if cut is not None and not out:
            raise cut  # one reads it in a part of the cell, or by digits, and none in all of it
        if op.name in ("maximum", "minimum") or (op.name == "reduce" and op.text("kind") != "add"):
            # Of the specification's own, one that is a multiple of another is better read as itself.
            out = [c for c in out if c.coef == 1 or not ref.startswith("s:")]
            out.sort(key=lambda c: c.coef != 1)
        return out

    def match(
        self,
        spec: str,
        op: Op,
        operands: Sequence[Operand],
        cell: Cell,
        like: Mapping[str, Affine] | None = None,
    ) -> Candidate | None:
        """One op of the specification as a candidate, if its index can be solved for from these operands.

        A coordinate that none of them determines is as in ``like``, by default as in the plan.
        """
        pattern = self.access(spec)
        if pattern is None or len(pattern.operands) != len(operands):
            return None
        parts = list(zip(self.model.operands(spec), pattern.operands, operands, strict=True))
        numbers = {i for i, o in enumerate(operands) if self.model.literal(o.reading.target) is not None}
        like_plan = {name.rpartition(".")[2]: form for name, form in cell.at.items()}
        read = [(i, p) for i, p in enumerate(parts) if i not in numbers]
        zero = _vanishes(self.model, op, operands)
        for known, factors in itertools.islice(self._placed(read, {}, cell.ranges, like_plan), MAX_PLACES):
            guessed = self._guessed(spec, op, pattern, known, like or cell.at)
            if guessed is None or not _inside(self.model.ops[spec].type.shape, pattern, known, cell.ranges):
                continue
            with suppress(Unrelated):
                for i in sorted(numbers):
                    v, names, operand = parts[i]
                    there = self.k.read(v, [known[n] for n in names], cell.ranges)
                    factors[i] = _of_numbers(self.model, operand, there)
                coef = combine(op.name, [factors[i] for i in range(len(parts))])
                if coef or zero:
                    break
        else:
            return None
        instances: list[Instance] = []
        uses: list[Use] = []
        pairs: list[Pair] = []
        reads: list[Read] = []
        for i, (v, names, operand) in enumerate(parts):
            here = Use(v, tuple(known[n] for n in names))
            uses.append(here)
            reads.append(Read(operand.uses[0], here, factors[i]))
            if operand.reading.target == v and not self.k.repeats(v):
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
        return Candidate(
            *(spec, out, summed, coef or Fraction(1), tuple(instances), tuple(uses)),
            pairs=tuple(pairs), reads=tuple(reads), guessed=guessed, zero=zero,
        )  # fmt: skip

    def _guessed(
        self, spec: str, op: Op, pattern: Access, known: dict[str, Affine], like: Mapping[str, Affine]
    ) -> bool | None:
        """Add the coordinates that no operand determines; whether there is a choice, ``None`` if no guess.

        What is summed is guessed only where ``like`` says so.
        """
        free, shape, guessed = self.free.get(spec, frozenset()), self.model.ops[spec].type.shape, False
        for name, size in zip(pattern.out, shape, strict=True):
            if name in known:
                continue
            if name in free:
                known[name] = known.get(_FIRST + name, Affine())
            elif _PARTLY + name in known:
                known[name], guessed = known[_PARTLY + name], True
            elif name in like and len(pattern.out) == len(op.type.shape):
                known[name] = like[name]
                guessed = guessed or size > 1
            else:
                return None
        known.update({name: like[name] for name, _ in pattern.summed if name not in known and name in like})
        return guessed

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

    def _placed(
        self,
        parts: Sequence[tuple[int, tuple[str, tuple[str, ...], Operand]]],
        known: Mapping[str, Affine],
        ranges: Mapping[str, Range],
        like: Mapping[str, Affine],
    ) -> Iterator[tuple[dict[str, Affine], dict[int, Fraction | None]]]:
        """Variables under which all operands are what the specification reads, and their factors.

        Where a tensor holds an element twice, the others say which of both is read.
        """
        if not parts:
            yield dict(known), {}
            return
        (i, (v, names, operand)), *rest = parts
        for coef, more in self.solutions(v, names, operand.reading, known, ranges, like):
            for found, factors in self._placed(rest, more, ranges, like):
                yield found, factors | {i: operand.coef / coef}

    def solutions(
        self,
        ref: str,
        names: Sequence[str],
        reading: Reading,
        known: Mapping[str, Affine],
        ranges: Mapping[str, Range],
        like: Mapping[str, Affine],
    ) -> Iterator[tuple[Fraction, dict[str, Affine]]]:
        """For each place of an operand: the specification's own factor, the variables that it determines.

        An element that is there many times, as a sum of two positions is, is read first where ``like`` says.
        """
        if ref == reading.target and not self.k.repeats(ref):
            trial = dict(known)
            if self._assign(trial, zip(names, reading.at, strict=True), ranges):
                yield Fraction(1), trial
            return
        if ref not in self.k.by_lhs and self.k.is_atom(ref):
            return
        for number in self.k.facts_for(ref):
            fact = self.k.facts[number]
            if fact.rhs != reading.target:
                continue
            values = as_there(fact, dict(zip(names, fact.lhs_index, strict=True)), reading.at, ranges, like)
            values = values or solve(fact.rhs_index, fact.ranges, reading.at, ranges)
            if values is None:
                continue
            fixed = {s for f in fact.rhs_index for s in f.symbols}
            here = list(zip(names, fact.lhs_index, strict=True))
            pairs = [(name, form.substitute(values)) for name, form in here if set(form.symbols) <= fixed]
            there = {s for f in reading.at for s in f.symbols}
            for name, form in here:
                if name in like and fixed.intersection(form.symbols) and not fixed.issuperset(form.symbols):
                    loose = _copies(form, fact.ranges, fixed, like[name], ranges, there)
                    pairs += [(_PARTLY + name, form.substitute(values | loose))] if loose else []
                    pairs.append((_FIRST + name, form.substitute(values | _firsts(form, fact.ranges, fixed))))
            trial = dict(known)
            if self._assign(trial, pairs, ranges):
                yield fact.coef, trial

    def _assign(
        self, known: dict[str, Affine], pairs: Iterable[tuple[str, Affine]], ranges: Mapping[str, Range]
    ) -> bool:
        for name, form in pairs:
            if known.setdefault(name, form) != form:
                self.split = self.split or _first_met(known[name], form, ranges)
                return False
        return True


def _copies(
    form: Affine,
    sizes: Mapping[str, Range],
    fixed: AbstractSet[str],
    like: Affine,
    ranges: Mapping[str, Range],
    read: AbstractSet[str],
) -> dict[str, Affine]:
    """Which of equal copies: digits of ``form`` that are not ``fixed``, as those of ``like`` that do not say
    what is ``read``."""
    here = [s for s in form.symbols if s not in fixed]
    there = [s for s in like.symbols if s not in read]
    alike = [sizes[s] for s in here] == [ranges[s] for s in there]
    return dict(zip(here, map(Affine.symbol, there), strict=True)) if alike else {}


def _firsts(form: Affine, ranges: Mapping[str, Range], fixed: AbstractSet[str]) -> dict[str, Affine]:
    """Digits of ``form`` that are not ``fixed``, at their first values."""
    return {s: Affine(ranges[s][0]) for s in form.symbols if s not in fixed}


def _inside(
    shape: Sequence[int], pattern: Access, known: Mapping[str, Affine], ranges: Mapping[str, Range]
) -> bool:
    """Whether all coordinates of a result of this shape are known and in range."""
    for name, size in (*zip(pattern.out, shape, strict=True), *pattern.summed):
        form = known.get(name)
        if form is None or not ranges.keys() >= set(form.symbols):  # of another rank's coordinates
            return False
        lo, hi = form.interval(ranges)
        if lo < 0 or hi >= size:
            return False
    return True


def orders(op: Op, operands: Sequence[Operand]) -> list[Sequence[Operand]]:
    """The operands, and the other way round where that is as good."""
    either = commutes(op) or op.name == "dot_general"
    return [operands, operands[::-1]] if either else [operands]


def _vanishes(model: Model, op: Op, operands: Sequence[Operand]) -> bool:
    """Whether a product is one with zero, or a sum one of zeros."""
    zeros = [model.literal(o.reading.target) == 0 for o in operands]
    sums = op.name in ("add", "subtract") or (op.name == "reduce" and op.text("kind") == "add")
    products = {"multiply": zeros, "dot_general": zeros, "divide": zeros[:1]}
    return all(zeros) if sums else any(products.get(op.name, ()))


def _of_numbers(model: Model, operand: Operand, there: Reading) -> Fraction | None:
    """The factor between numbers, ``None`` if they are equal zeros or words; else ``Unrelated``."""
    literal, value = model.literal(operand.reading.target), model.literal(there.target)
    if isinstance(literal, Fraction) and isinstance(value, Fraction) and literal and value:
        return operand.coef * literal / (there.coef * value)
    if value is None or literal != value:
        raise Unrelated(there.target)
    return None


def _first_met(known: Affine, form: Affine, ranges: Mapping[str, Range]) -> Cut | None:
    """Where a coordinate is a number on one side, and takes that value among others on the other side."""
    symbols = [*known.symbols, *form.symbols]
    if len(symbols) != 1 or not (known.is_const or form.is_const):
        return None
    try:
        divide(known - form, 0, ranges)
        divide(known - form, 1, ranges)
    except Cut as cut:
        return cut
    except Unfollowable:
        pass
    return None
