"""Relations that one op does not show: masked look-ups, offsets and masks, proved in one layout stage.

A vocabulary-parallel embedding, say, subtracts an offset, masks, gathers, masks again and sums over ranks:
none of its tensors but the last is related to the specification. The cone of such a tensor, down to related
ones, is compared with every specification op that reads the same atoms; a guess is kept only if its stage is
proved.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial

from certificates.plan.affine import Affine, Range
from certificates.plan.ops import CALL
from certificates.proof.facts import Fact, Ref
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..cells import Cell, Cut, Unfollowable, explore
from .cones import AllBut, Cone, Cones, Loose, down_to_common, is_known, matches, positions, stands
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Unrelated
from .sampled import fails
from .solving_facts import make_fact
from .tries import IN_A_FILE

SIGNED = ("subtract", "negate")
#: How often what a specification reads of an atom may be masked before a rank's copy is compared with it.
MASKS = 2


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
        self.cones = Cones(knowledge)
        self._readers: dict[Ref, list[str]] | None = None

    def relate(self, ref: Ref) -> list[int]:
        """Facts about ``ref`` whose stages are proved; empty if there are none."""
        return self.k.tries.attempt(lambda: self._relate(ref), [])

    def _relate(self, ref: Ref) -> list[int]:
        return self._relate_down_to(ref, common=False) or self._relate_down_to(ref, common=True)

    def _relate_down_to(self, ref: Ref, *, common: bool) -> list[int]:
        try:
            whole = self.k.full_index(ref)
            guess = partial(self._guesses, ref, common)
            found = explore(whole, lambda cell: guess(list(cell.at.values()), cell.ranges))
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
                self.k.relate_by(number)
                return number
            self.k.drop(number)
        return None

    def _guesses(
        self, ref: Ref, common: bool, index: Sequence[Affine], ranges: Mapping[str, Range]
    ) -> tuple[frozenset[Ref], Fraction, list[Guess]]:
        cone = Cone()
        self.cones.open(ref, tuple(index), ranges, cone, first=True)
        atoms = {t for t, _ in cone.reads}
        sort = self.model.tensors.type(ref).sort
        near = [s for t in sorted(atoms, key=str) for s in self._reading(t)]
        for _ in range(MASKS):  # what is masked and masked again is one copy, with any mask in between
            near += [c for s in near if _masks(self.model, s) for c in self._reading(s) if c not in near]
        # A mask as numbers is one op further away, and so is a sum with what was looked up.
        near += [c for s in near for c in self._reading(s) if _are_numbers(self.model, c) or self._adds(c)]
        near = [s for s in dict.fromkeys(near) if self.model.ops[s].type.sort == sort]
        guesses: list[Guess] = []
        splits: list[Cut] = []

        @cache
        def ending(ends: AllBut) -> Cone:
            """The rank's, once for all that the specification may have in its place."""
            return self._cone(ref, tuple(index), ranges, ends)

        def cones(spec: str, at: Loose, both: Mapping[str, Range]) -> tuple[Cone, Cone]:
            if common:
                return down_to_common(partial(self._cone, spec, at, both), ending, self._order)
            return self._cone(spec, at, both, atoms), cone

        mesh = len(self.model.tensors.mesh_axes(ref))
        places = [*index[mesh:], *index[:mesh]]  # a copy that each of a batch has is that of the batch's own
        for spec in near:
            if self.k.tries.left:
                guesses += self._solve(spec, cones, places, ranges, splits)
        if not guesses and splits:
            raise splits[0]
        return frozenset(cone.opened), cone.scale, guesses

    def _adds(self, spec: str) -> bool:
        op = self.model.ops[spec]
        return op.name in ("add", *SIGNED) and op.type.sort == "Real"

    def _cone(self, ref: Ref, at: Loose, ranges: Mapping[str, Range], ends: Container[Ref]) -> Cone:
        cone = Cone()
        self.cones.open(ref, at, ranges, cone, first=True, stop=ends)
        return cone

    @cached_property
    def _order(self) -> dict[Ref, int]:
        """Where the specification makes its tensors."""
        return {f"s:{op.out}": i for i, op in enumerate(self.model.plan.specification.ops)}

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
        self.cones.open(fact.lhs, left, cell.ranges, mine, first=True)
        self.cones.open(fact.rhs, right, cell.ranges, theirs, first=True, stop={t for t, _ in mine.reads})
        return mine, theirs

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
        cones: Callable[[str, Loose, Mapping[str, Range]], tuple[Cone, Cone]],
        places: Sequence[Affine],
        ranges: Mapping[str, Range],
        splits: list[Cut],
    ) -> list[Guess]:
        """The index at which a specification op reads the same elements as a rank's, by ``cones`` of both.

        What these leave open is one of the rank's ``places``, in this order. If it does so on some ranks
        only, the split that tells them apart is added to ``splits``.
        """
        whole = self.k.full_index(spec)

        def compute(cell: Cell) -> tuple[Cone, Cone]:
            return cones(spec, tuple(cell.at.values()), dict(ranges) | dict(cell.ranges))

        renamed = Cell(
            {f"y{s}": r for s, r in whole.ranges.items()},
            {s: form.substitute({s: Affine.symbol(f"y{s}")}) for s, form in whole.at.items()},
        )
        try:
            parts = explore(renamed, compute)
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        guesses = []
        for cell, (mine, cone) in parts:
            fixed = {s: Affine(lo) for s, (lo, hi) in cell.ranges.items() if hi == lo + 1}
            symbols = dict.fromkeys(s for f in cell.at.values() for s in f.symbols)
            atoms = {t for t, _ in cone.reads}
            found = matches(mine, cone, ranges, splits) if {t for t, _ in mine.reads} <= atoms else ()
            for known in ({**fixed, **k} for k in found):
                for full in positions(known, [s for s in symbols if s not in known], cone, places):
                    out = tuple(f.substitute(full) for f in cell.at.values())
                    known_here = all(s in ranges for f in out for s in f.symbols)
                    if known_here and stands(self.k, spec, cell, full, ranges, splits):
                        opened = frozenset(mine.opened | cone.opened)
                        guesses.append(Guess(spec, out, opened, mine.scale))
        return guesses


def _are_numbers(model: Model, spec: str) -> bool:
    """Is it a mask as numbers, or a number where a mask holds and another elsewhere?"""
    values = [model.literal(v) for v in model.operands(spec)[1:]]
    name = model.ops[spec].name
    return name == "convert" or (name == "select" and all(isinstance(v, Fraction) for v in values))


def _masks(model: Model, spec: str) -> bool:
    """Is it its operand where a mask holds, and 0 elsewhere?"""
    op = model.ops[spec]
    if op.type.sort != "Real" or op.name not in ("select", "multiply"):
        return False
    if op.name == "multiply":
        return any(model.is_mask(v) for v in model.operands(spec))
    return any(model.literal(v) == 0 for v in model.operands(spec)[1:])


def _turns(model: Model, opened: frozenset[Ref]) -> bool:
    """May the sign of a number change in a cone, as in a logit that is subtracted from a logarithm?"""
    ops = [model.op(t) for t in opened]
    return any(op is not None and op.name in SIGNED and op.type.sort == "Real" for op in ops)
