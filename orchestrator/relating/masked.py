"""Relations that one op does not show: masked look-ups, offsets and masks, proved in one layout stage.

A vocabulary-parallel embedding, say, subtracts an offset, masks, gathers, masks again and sums over ranks:
none of its tensors but the last is related to the specification. The cone of such a tensor, down to related
ones, is compared with every specification op that reads the same atoms; a guess is kept only if its stage is
proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from certificates.plan.affine import Affine, Range
from certificates.plan.ops import CALL, ELEMENTWISE
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from .cones import Cone, Loose, is_known, matches, positions, stands
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Unrelated
from .sampled import fails
from .solving_facts import fold, make_fact, solve
from .tries import IN_A_FILE

MAX_CONE = 64
SIGNED = ("subtract", "negate")
#: An element behind a related one, if there is one, and how many times it that is.
Related = tuple[tuple[Ref, Loose] | None, Fraction]


@dataclass(frozen=True)
class Guess:
    """A specification element that may equal a plan element, and what is opened to see it."""

    spec: str
    out: tuple[Affine, ...]
    opened: frozenset[Ref]
    scale: Fraction


class DeepMatcher:
    """Guesses multi-op layout facts; ``prove`` decides which to keep."""

    def __init__(self, knowledge: Knowledge, prove: Callable[[int], bool]) -> None:
        self.k, self.model, self.prove = knowledge, knowledge.model, prove
        self._readers: dict[Ref, list[str]] | None = None

    def relate(self, ref: Ref) -> list[int]:
        """Facts about ``ref`` whose stages are proved; empty if there are none."""
        return self.k.tries.attempt(lambda: self._relate(ref), [])

    def _relate(self, ref: Ref) -> list[int]:
        try:
            whole = self.k.full_index(ref)
            found = explore(whole, lambda cell: self._guesses(ref, list(cell.at.values()), cell.ranges))
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        numbers: list[int] = []
        for cell, (opened, scale, guesses) in found:
            number = self._first_proved(ref, cell, opened, scale, guesses)
            if number is None:
                return []
            numbers.append(number)
        return numbers

    def _first_proved(
        self, ref: Ref, cell: Cell, opened: frozenset[Ref], scale: Fraction, guesses: Sequence[Guess]
    ) -> int | None:
        turning = [g for g in guesses if _turns(self.model, opened | g.opened)]
        tries = [(Fraction(1), g) for g in guesses] + [(Fraction(-1), g) for g in turning]
        for coef, guess in dict.fromkeys(tries + [(scale / g.scale, g) for g in guesses]):
            fact = make_fact(self.model, cell, ref, tuple(cell.at.values()), guess.spec, guess.out, coef)
            if fails(self.k, fact):
                self.k.tries.step(len(opened))
                continue
            number = self._guess(fact, opened | guess.opened)
            if self.k.tries.left and self.prove(number):
                self.k.by_lhs.setdefault(ref, []).append(number)
                return number
            self.k.drop(number)
        return None

    def _guesses(
        self, ref: Ref, index: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> tuple[frozenset[Ref], Fraction, list[Guess]]:
        cone = Cone()
        self._open(ref, tuple(index), ranges, cone, first=True)
        atoms = {t for t, _ in cone.reads}
        sort = self.model.tensors.type(ref).sort
        near = [s for t in sorted(atoms, key=str) for s in self._reading(t)]
        # A mask as numbers is one op further away.
        near += [c for s in near for c in self._reading(s) if _are_numbers(self.model, c)]
        guesses: list[Guess] = []
        splits: list[Cut] = []
        for spec in dict.fromkeys(near):
            if self.model.ops[spec].type.sort == sort and self.k.tries.left:
                guesses += self._solve(spec, atoms, cone, index, ranges, splits)
        if not guesses and splits:
            raise splits[0]
        return frozenset(cone.opened), cone.scale, guesses

    def propose(self, facts: list[Fact], cones: frozenset[Ref] | None = None) -> bool:
        """Keep guessed facts about one tensor if all of them are proved from the cones of both sides: these,
        or what is found to be above related tensors.
        """
        return self.k.tries.attempt(lambda: self._propose(facts, cones), False)

    def _propose(self, facts: list[Fact], cones: frozenset[Ref] | None) -> bool:
        numbers = []
        try:
            for fact in facts:
                if cones is not None:
                    numbers.append(self._guess(fact, cones))
                    continue
                opened: set[Ref] = set()
                for _, (mine, theirs) in explore(Cell.whole(fact.ranges), partial(self._both, fact)):
                    if not {t for t, _ in theirs.reads} <= {t for t, _ in mine.reads}:
                        return False
                    opened |= mine.opened | theirs.opened
                numbers.append(self._guess(fact, frozenset(opened)))
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        if not all(self.prove(n) for n in numbers):
            for n in numbers:
                self.k.drop(n)
            return False
        for fact, n in zip(facts, numbers, strict=True):
            self.k.by_lhs.setdefault(fact.lhs, []).append(n)
        return True

    def _guess(self, fact: Fact, opened: frozenset[Ref]) -> int:
        """A guess that is to be proved, which costs what its file has to say."""
        self.k.tries.step(IN_A_FILE * len(opened))
        return self.k.add(fact, LayoutRecipe(opened), relates=False)

    def _both(self, fact: Fact, cell: Cell) -> tuple[Cone, Cone]:
        """Cones of both sides of a fact on a part of its range;
        the right one ends where the left one does.
        """
        mine, theirs = Cone(), Cone()
        left = tuple(f.substitute(cell.at) for f in fact.lhs_index)
        right = tuple(f.substitute(cell.at) for f in fact.rhs_index)
        self._open(fact.lhs, left, cell.ranges, mine, first=True)
        self._open(fact.rhs, right, cell.ranges, theirs, first=True, stop={t for t, _ in mine.reads})
        return mine, theirs

    # --- cones ---------------------------------------------------------------------------------------------

    def _open(
        self,
        ref: Ref,
        at: Loose,
        ranges: Mapping[str, Range],
        cone: Cone,
        *,
        first: bool = False,
        stop: set[Ref] | None = None,
    ) -> None:
        """Add an element to a cone: a read if it is related (with ``stop``, to one of these), else opened."""
        op = self.model.op(ref)
        value = self.model.literal(ref)
        if value is not None or (op is not None and op.name == "iota"):
            if isinstance(value, Fraction) and value and self.model.tensors.type(ref).sort == "Int":
                cone.offsets.add(Affine(int(value)))
            elif isinstance(value, Affine):
                axes = self.model.tensors.mesh_axes(ref)
                here = {a: f for a, f in zip(axes, at, strict=False) if f is not None}
                cone.offsets.add(value.substitute(here))
            return
        if not first:
            target, coef = self._related(ref, at, ranges)
            if target is not None and isinstance(self.model.literal(target[0]), Fraction):
                cone.opened.add(ref)
                return
            cone.scale *= coef if self.model.tensors.type(ref).sort == "Real" else 1
            if target is not None and (stop is None or target[0] in stop or self.model.op(target[0]) is None):
                cone.read(target, self.model.op(target[0]))
                return
            if target is not None:
                self._open(*target, ranges, cone, first=True, stop=stop)
                return
        if len(cone.opened) > MAX_CONE:
            raise Unfollowable(f"{ref}: cone over {MAX_CONE} tensors")
        cone.opened.add(ref)
        self.k.tries.step()
        if isinstance(ref, Reduced):
            order = list(self.model.plan.mesh.axes)
            member = ref.of[0]
            owner = split_ref(member)[0]
            cone.opened.update(ref.of)
            inner = dict(ranges)
            full = list(at)
            for a in sorted(ref.axes, key=order.index):
                name = f"{owner}.{a}"
                inner[name] = self.model.plan.by_class[owner].box[a]
                full.insert(order.index(a), Affine.symbol(name))
            for m in ref.of:
                if m != member:
                    self._open_all(m, cone)
            try:
                self._open(member, tuple(full), inner, cone, first=member not in self.k.by_lhs)
            except (Cut, Digits) as error:
                if error.symbol in ranges:
                    raise
                raise Unfollowable(f"{member}: its cone depends on the rank") from error
            return
        op = self.model.op(ref)
        if op is None:
            raise Unrelated(ref)
        ins = self.model.operands(ref)
        mesh = len(self.model.tensors.mesh_axes(ref))
        if op.name == "gather":
            axis, batch = op.integer("axis"), op.integer("batch_dims")
            free = len(self.model.tensors.type(ins[1]).shape) - batch
            body = at[mesh:]
            self._open(
                ins[1], (*at[:mesh], *body[:batch], *body[axis : axis + free]), ranges, cone, stop=stop
            )
            self._open(
                ins[0], (*at[:mesh], *body[:axis], None, *body[axis + free :]), ranges, cone, stop=stop
            )
        elif op.name in ELEMENTWISE and ref not in self.k.hops:
            cone.scale *= _factor(op, [_number(self.k, v, at, ranges) for v in ins])
            for v in ins:
                self._open(v, at, ranges, cone, stop=stop)
        else:
            self._move(ref, at, ranges, cone, stop)

    def _open_all(self, ref: str, cone: Cone) -> None:
        """Open the cone of a member on another class without following indices."""
        work = [ref]
        while work:
            v = work.pop()
            if (v in cone.opened and v != ref) or v in self.k.by_lhs or self.model.op(v) is None:
                continue
            cone.opened.add(v)
            if len(cone.opened) > MAX_CONE:
                raise Unfollowable(f"{ref}: cone over {MAX_CONE} tensors")
            work += self.model.operands(v)

    def _move(
        self, ref: Ref, at: Loose, ranges: Mapping[str, Range], cone: Cone, stop: set[Ref] | None
    ) -> None:
        if any(f is None for f in at):
            raise Unfollowable(f"{ref}: data movement of an element at an integer index")
        if isinstance(ref, Reduced):
            raise Unrelated(ref)
        scale, current, index = self.k.source(ref, [f for f in at if f is not None], ranges)
        if current == ref:
            raise Unrelated(ref)
        cone.scale *= scale
        self._open(current, tuple(index), ranges, cone, stop=stop)

    def _related(self, ref: Ref, at: Loose, ranges: Mapping[str, Range]) -> Related:
        """The atom element behind a related element, and how many times it that is."""
        one = Fraction(1)
        if None not in at:
            try:
                reading = self.k.read(ref, [f for f in at if f is not None], ranges)
            except Unrelated:
                return None, one
            return (reading.target, tuple(reading.at)), reading.coef
        if ref not in self.k.by_lhs and self.k.is_atom(ref):
            return (ref, at), one
        for number in self.k.facts_for(ref):
            fact = self.k.facts[number]
            values = _coordinates(fact, at, ranges)
            if values is None:
                continue  # it is about another piece
            loose = tuple(
                fold(form.substitute(values), ranges) if set(form.symbols) <= set(values) else None
                for form in fact.rhs_index
            )
            return (fact.rhs, loose), fact.coef
        return None, one

    # --- the specification ---------------------------------------------------------------------------------

    def _reading(self, target: Ref) -> list[str]:
        """Specification ops that read an atom, directly or through data movement."""
        if self._readers is None:
            self._readers = {}
            for op in self.model.plan.specification.ops:
                ref = f"s:{op.out}"
                if op.name == CALL or not self.k.is_atom(ref) or is_known(self.k, ref):
                    continue
                for v in self.model.operands(ref):
                    atoms = [v] if self.k.is_atom(v) and v not in self.k.by_lhs else [
                        self.k.facts[i].rhs for i in self.k.facts_for(v)
                    ]  # fmt: skip
                    for t in atoms:
                        known = self._readers.setdefault(t, [])
                        if ref not in known:
                            known.append(ref)
        return self._readers.get(target, [])

    def _solve(
        self,
        spec: str,
        atoms: set[Ref],
        cone: Cone,
        index: Sequence[Affine],
        ranges: Mapping[str, Range],
        splits: list[Cut],
    ) -> list[Guess]:
        """The index at which a specification op reads the same elements as a cone.

        If it does so on some ranks only, the split that tells them apart is added to ``splits``.
        """
        whole = self.k.full_index(spec)

        def compute(cell: Cell) -> Cone:
            mine = Cone()
            both = dict(ranges) | dict(cell.ranges)
            self._open(spec, tuple(cell.at.values()), both, mine, first=True, stop=atoms)
            return mine

        renamed = Cell(
            {f"y{s}": r for s, r in whole.ranges.items()},
            {s: form.substitute({s: Affine.symbol(f"y{s}")}) for s, form in whole.at.items()},
        )
        try:
            parts = explore(renamed, compute)
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        guesses = []
        for cell, mine in parts:
            fixed = {s: Affine(lo) for s, (lo, hi) in cell.ranges.items() if hi == lo + 1}
            symbols = dict.fromkeys(s for f in cell.at.values() for s in f.symbols)
            found = matches(mine, cone, ranges, splits) if {t for t, _ in mine.reads} <= atoms else ()
            for known in ({**fixed, **k} for k in found):
                for full in positions(known, [s for s in symbols if s not in known], cone, index):
                    out = tuple(f.substitute(full) for f in cell.at.values())
                    known_here = all(s in ranges for f in out for s in f.symbols)
                    if known_here and stands(self.k, spec, cell, full, ranges, splits):
                        guesses.append(Guess(spec, out, frozenset(mine.opened), mine.scale))
        return guesses


def _coordinates(fact: Fact, at: Loose, ranges: Mapping[str, Range]) -> dict[str, Affine] | None:
    """The symbols of a fact that the known coordinates of an element determine; ``None`` if it has none such.

    Raises a split where it has elements of a part of the box.
    """
    known = [(form, target) for form, target in zip(fact.lhs_index, at, strict=True) if target is not None]
    ranged = {s: fact.ranges[s] for form, _ in known for s in form.symbols}
    try:
        return solve([form for form, _ in known], ranged, [target for _, target in known], ranges)
    except Unfollowable:
        return {}


def _are_numbers(model: Model, spec: str) -> bool:
    """Is it a mask as numbers, or a number where a mask holds and another elsewhere?"""
    values = [model.literal(v) for v in model.operands(spec)[1:]]
    name = model.ops[spec].name
    return name == "convert" or (name == "select" and all(isinstance(v, Fraction) for v in values))


def _number(known: Knowledge, ref: Ref, at: Loose, ranges: Mapping[str, Range]) -> object:
    """The number that an element is, if it is one."""
    try:
        reading = known.read(ref, [f for f in at if f is not None], ranges) if None not in at else None
    except Unrelated:
        reading = None
    value = known.model.literal(ref if reading is None else reading.target)
    return value * reading.coef if reading is not None and isinstance(value, Fraction) else value


def _turns(model: Model, opened: frozenset[Ref]) -> bool:
    """May the sign of a number change in a cone, as in a logit that is subtracted from a logarithm?"""
    ops = [model.op(t) for t in opened]
    return any(op is not None and op.name in SIGNED and op.type.sort == "Real" for op in ops)


def _factor(op: Op, values: Sequence[object]) -> Fraction:
    """What an op multiplies by, as far as its operands are numbers: a factor of what it is a part of."""
    factor = Fraction(1)
    if op.type.sort == "Real" and op.name == "select":
        some = [v for v in values[1:] if v != 0]
        return some[0] if len(some) == 1 and isinstance(some[0], Fraction) else factor
    if op.type.sort == "Real" and op.name in ("multiply", "divide"):
        for i, value in enumerate(values):
            if isinstance(value, Fraction) and value:
                factor *= 1 / value if i and op.name == "divide" else value
    return factor
