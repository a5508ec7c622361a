"""Parts of the specification's masked tensors on which the mask is one number.

The specification multiplies all pairs by -1, but each row with itself by 1; a rank that holds none of its own
rows multiplies by -1. Its block is the specification's, though none of its ops reads a mask. So is a block
that a causal mask shows whole. What the specification makes of such a block it makes of the masked tensor:
the block is restated as a part of that one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from certificates.plan.affine import Affine, Range
from certificates.plan.ops import CALL, ELEMENTWISE
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from ..relating.joining import join
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe, Reading, Unrelated
from ..relating.literals import Folder
from ..relating.patches import Place, recipe_of
from ..relating.positions import Positions
from ..relating.recipes import AlgebraRecipe
from ..relating.solving_facts import Literal, literal_ref, make_fact, solve
from .spans import Spans

Forms = tuple[Affine, ...]
#: Ops that pass on one operand, up to a factor, where the others are numbers.
MASKING = frozenset(("add", "subtract", "multiply", "divide", "select"))
#: Masks that are put on one another, and places of one that are tried.
MAX_MASKS, MAX_PLACES = 3, 64


@dataclass(frozen=True)
class Copy:
    """A masked tensor, and the operand of it that is masked."""

    ref: str
    masked: int


@dataclass(frozen=True)
class Shown:
    """The number that an element is on a box: what is read to see it, and the ops that are opened."""

    value: Literal
    places: tuple[Place, ...]
    opened: frozenset[Ref] = frozenset()


class MaskedCopies:
    """Says of tensors that are related to what is masked where in the masked tensor they are."""

    def __init__(self, knowledge: Knowledge, folder: Folder, positions: Positions, spans: Spans) -> None:
        self.k, self.model, self.spans = knowledge, knowledge.model, spans
        self.folder, self.positions = folder, positions
        self._copies: dict[Ref, list[Copy]] | None = None
        #: Names of the ops that read a tensor of the specification.
        self._readers: dict[Ref, set[str]] = defaultdict(set)
        self._done: set[tuple[str, tuple[int, ...]]] = set()
        #: Whether a tensor is made of numbers and positions alone.
        self._numbers: dict[str, bool] = {}

    def restate(self, reader: str) -> bool:
        """Restate what is known of the operands of an op that has no relation; whether anything was."""
        name = self.model.ops[reader].name
        return any([self._restated(v, name) for v in dict.fromkeys(self.model.operands(reader))])

    def _restated(self, ref: str, name: str) -> bool:
        numbers = tuple(self.k.facts_for(ref))
        if not numbers or (ref, numbers) in self._done:
            return False
        self._done.add((ref, numbers))
        before, earlier = self.k.by_lhs.get(ref), self.k.restated.get(ref)
        for copies in self._chains({self.k.facts[n].rhs for n in numbers}, name):
            if all(self._follows(ref, copy) for copy in copies):
                return True
            self.k.by_lhs.pop(ref, None)
            self.k.restated.pop(ref, None)
            if before is not None:
                self.k.by_lhs[ref] = before
            if earlier is not None:
                self.k.restated[ref] = earlier
        return False

    def _follows(self, ref: str, copy: Copy) -> bool:
        """Let facts about a masked tensor stand for those about what is masked, which prove them; whether
        there are any."""
        numbers = tuple(self.k.facts_for(ref))
        try:
            found = explore(self.k.full_index(ref), partial(self._piece, ref, copy, numbers))
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        pieces = dict(piece for _, piece in found)
        self.k.by_lhs[ref] = []
        moved = [fact for fact, recipe in pieces.items() if isinstance(recipe, LayoutRecipe)]
        if moved:
            for fact in join(self.model, moved):
                self.k.add(fact, pieces[moved[0]])
        elif not self.spans.record([(f, r) for f, r in pieces.items() if isinstance(r, AlgebraRecipe)]):
            return False
        self.k.restated[ref] = numbers
        self.k.forget_movement()
        return True

    # --- one box -------------------------------------------------------------------------------------------

    def _piece(
        self, ref: str, copy: Copy, numbers: tuple[int, ...], cell: Cell
    ) -> tuple[Fact, AlgebraRecipe | LayoutRecipe]:
        """Where a masked tensor has an element, and what shows it; raises :class:`Unrelated`.

        Of places that differ by a factor, such as biases of heads with slopes of their own, it is the one
        where the element stands as it is, if there is one.
        """
        reading = self.k.read(ref, tuple(cell.at[s] for s in self.k.full_index(ref).ranges), cell.ranges)
        found: tuple[Fact, AlgebraRecipe | LayoutRecipe] | None = None
        for there in self._places(copy, reading, cell.ranges):
            with suppress(Unrelated):
                piece = self._piece_at(ref, copy, numbers, cell, reading, there)
                if piece[0].coef == 1:
                    return piece
                found = found or piece
        if found is None:
            raise Unrelated(ref)
        return found

    def _piece_at(
        self, ref: str, copy: Copy, numbers: tuple[int, ...], cell: Cell, reading: Reading, there: Forms
    ) -> tuple[Fact, AlgebraRecipe | LayoutRecipe]:
        at, ranges = tuple(cell.at[s] for s in self.k.full_index(ref).ranges), cell.ranges
        op, ins = self.model.ops[copy.ref], self.model.operands(copy.ref)
        link = self.k.read(ins[copy.masked], there, ranges)
        shown = [None if i == copy.masked else self._shown(v, there, ranges) for i, v in enumerate(ins)]
        passed, factor = self.folder.passed(op, [s.value if s else None for s in shown])
        if reading.fact is None or passed != copy.masked or not factor * link.coef:
            raise Unrelated(ref)
        fact = make_fact(self.model, cell, ref, at, copy.ref, there, reading.coef / (factor * link.coef))
        if op.name == "select":
            opened = frozenset((copy.ref,)).union(*(s.opened for s in shown if s))
            return fact, LayoutRecipe(opened, parts=numbers)
        places = [(ranges, copy.ref, there, None), (ranges, ins[copy.masked], there, link)]
        places += [place for s in shown if s for place in s.places]
        return fact, recipe_of(fact, ref, at, [(ranges, ref, at, reading), *places], opened=copy.ref)

    def _places(self, copy: Copy, reading: Reading, ranges: Mapping[str, Range]) -> Iterator[Forms]:
        """Where a masked tensor reads an element of what is masked; first there where nothing says where."""
        whole, masked = self.k.full_index(copy.ref), self.model.operands(copy.ref)[copy.masked]
        for cell, theirs in explore(whole, lambda c: self.k.read(masked, tuple(c.at.values()), c.ranges)):
            values = None
            if theirs.target == reading.target:
                values = solve(theirs.at, cell.ranges, reading.at, ranges)
            open_symbols = {s for f in cell.at.values() for s in f.symbols}
            if values is None or not open_symbols <= values.keys():
                continue
            yield tuple(form.substitute(values) for form in cell.at.values())
            free = sorted(open_symbols.difference(*(f.symbols for f in theirs.at)))
            low, high = cell.ranges[free[0]] if len(free) == 1 else (0, 0)
            for value in range(low + 1, min(high, low + MAX_PLACES)):
                there = {**values, free[0]: Affine(value)}
                yield tuple(form.substitute(there) for form in cell.at.values())
            return
        raise Unrelated(copy.ref)

    def _shown(self, ref: str, at: Forms, ranges: Mapping[str, Range]) -> Shown | None:
        """The number that an element is on a whole box, if it is one; raises a split of the box.

        It is seen where it stands, though the same may be known of it elsewhere: a mask that is alike in all
        rows is read in row 0, but a stage does not speak of that row and of others.
        """
        try:
            reading = self.k.read(ref, at, ranges)
        except Unrelated:
            return None
        value = self.folder.value(reading)
        if value is not None:
            return Shown(value, ((ranges, ref, at, reading),))
        op = self.model.op(ref)
        if op is not None and op.name in ELEMENTWISE:
            return self._computed(ref, op, at, ranges)
        factor, source, there = self.k.source(ref, list(at), ranges)
        found = (
            self._shown(source, tuple(there), ranges) if isinstance(source, str) and source != ref else None
        )
        if found is None:
            return None
        link = make_fact(self.model, Cell(ranges, {}), ref, at, source, tuple(there), factor)
        value = factor * found.value if isinstance(found.value, Fraction) else found.value
        return replace(
            found, value=value, places=(self._read(link, LayoutRecipe(), at, ranges), *found.places)
        )

    def _computed(self, ref: str, op: Op, at: Forms, ranges: Mapping[str, Range]) -> Shown | None:
        """The number that an op of the specification makes of numbers, or of positions."""
        opened: set[Ref] = {ref}
        places = list[Place]()
        value: Literal | None = None
        if op.name == "compare":
            with suppress(Unrelated):
                value = self.positions.truth(ref, at, ranges, opened)
        else:
            shown = [self._shown(v, at, ranges) for v in self.model.operands(ref)]
            value = self.folder.combined(op, [s.value if s else None for s in shown])
            for s in shown:
                opened |= s.opened if s else set()
                places += s.places if s else ()
        if value is None:
            return None
        number = literal_ref(op.type.sort, value)
        fact = make_fact(self.model, Cell(ranges, {}), ref, at, number, (), Fraction(1))
        layout = op.name == "select" or op.type.sort != "Real"
        recipe = LayoutRecipe(frozenset(opened)) if layout else recipe_of(fact, ref, at, places)
        return Shown(value, (self._read(fact, recipe, at, ranges),), frozenset(opened))

    def _read(
        self, fact: Fact, recipe: AlgebraRecipe | LayoutRecipe, at: Forms, ranges: Mapping[str, Range]
    ) -> Place:
        """An element through a fact that is made for it."""
        number = self.k.add(fact, recipe, relates=False)
        assert isinstance(fact.lhs, str)
        return ranges, fact.lhs, at, self.k.through((number,), at, ranges)

    # --- the specification ---------------------------------------------------------------------------------

    def _chains(self, masked: set[Ref], name: str) -> Iterator[tuple[Copy, ...]]:
        """Masked copies of tensors, and of these, up to one that an op of some name reads."""
        chains = deque[tuple[Copy, ...]]((copy,) for ref in sorted(masked, key=str) for copy in self._of(ref))
        while chains:
            chain = chains.popleft()
            if name in self._readers[chain[-1].ref]:
                yield chain
            elif len(chain) < MAX_MASKS:
                chains += ((*chain, copy) for copy in self._of(chain[-1].ref))

    def _of(self, masked: Ref) -> Sequence[Copy]:
        """The masked copies of a tensor."""
        if self._copies is None:
            self._copies = {}
            for op in self.model.plan.specification.ops:
                ref = f"s:{op.out}"
                self._of_numbers(ref)  # in their order: no further than to the operands
                if op.name == CALL:
                    continue
                for i, v in enumerate(self.model.operands(ref)):
                    atom = v not in self.k.by_lhs and self.k.is_atom(v)
                    for target in [v] if atom else [self.k.facts[n].rhs for n in self.k.facts_for(v)]:
                        self._readers[target].add(op.name)
                        alone = self.k.is_atom(ref) and ref not in self.k.by_lhs
                        if op.name in MASKING and alone and self._masks(ref, i):
                            self._copies.setdefault(target, []).append(Copy(ref, i))
        return self._copies.get(masked, ())

    def _masks(self, ref: str, position: int) -> bool:
        """Are the operands that say what an op does with this one made of numbers and positions?"""
        ins = self.model.operands(ref)
        if self.model.ops[ref].name == "select":
            return position > 0 and self._of_numbers(ins[0])
        return all(self._of_numbers(v) for i, v in enumerate(ins) if i != position)

    def _of_numbers(self, ref: str) -> bool:
        if ref not in self._numbers:
            op = self.model.op(ref)
            made = op is not None and bool(op.ins) and (op.name in ELEMENTWISE or self.k.moves(ref))
            counted = self.model.literal(ref) is not None or (op is not None and op.name == "iota")
            self._numbers[ref] = counted or (made and all(map(self._of_numbers, self.model.operands(ref))))
        return self._numbers[ref]
