"""Tensors of literals that are not one literal: valid labels and padding, weights and zeros.

Nobody but who counts them has to tell the parts apart, so they are no relations of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Fact, Ref, split_ref

from ..cells import Cell, Unfollowable
from .access import Access
from .joining import join
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading
from .recipes import AlgebraRecipe, Instance, Use
from .solving_facts import Literal, literal_ref, make_fact, solve

#: Ranges, and an operand there, where it is read and what is read.
Place = tuple[Mapping[str, Range], str, tuple[Affine, ...], Reading | None]


@dataclass(frozen=True)
class View:
    """One part of a result: operand indices and readings, its value if literal, the operand it passes on."""

    indices: tuple[tuple[Affine, ...], ...] = ()
    readings: tuple[Reading | None, ...] = ()
    literal: Literal | None = None
    position: int | None = None
    coef: Fraction = Fraction(1)
    #: Ops of integers, beside its own, whose definitions the literal follows from.
    opened: frozenset[Ref] = frozenset()


class Patches:
    """Tensors of which every element is a literal, by the facts that say which."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self.facts: dict[str, list[int]] = {}
        #: What is opened to see that.
        self._opened: dict[str, frozenset[str]] = {}

    def read(self, ref: str, index: Sequence[Affine], ranges: Mapping[str, Range]) -> Reading | None:
        """The literal at an index, if the tensor is one of these; may raise a split of the box."""
        return self.k.through(self.facts.get(ref, ()), index, ranges)

    def note(self, ref: str, pattern: Access, parts: Sequence[tuple[Cell, View]], layout: bool) -> bool:
        """Note what an op is whose parts are all literals; whether they are one, which relates it.

        With ``layout`` its stage is a layout stage.
        """
        groups: dict[tuple[Affine, ...], list[tuple[Cell, View]]] = {}
        for cell, view in parts:
            if view.literal is None:
                return False
            left = tuple(cell.at[s] for s in self.k.full_index(ref).ranges)
            groups.setdefault(left, []).append((cell, view))
        whole = math.prod(n for _, n in pattern.summed)
        if any(sum(summands(ref, pattern, cell) for cell, _ in group) != whole for group in groups.values()):
            return False
        ins = self.model.operands(ref)
        opened = frozenset((ref,)).union(*(self._opened.get(v, ()) for v in ins))
        pieces: dict[Fact, AlgebraRecipe | LayoutRecipe] = {}
        for left, group in groups.items():
            target = literal_ref(self.model.tensors.type(ref).sort, _total([v.literal for _, v in group]))
            fact = make_fact(self.model, group[0][0], ref, left, target, (), Fraction(1))
            pieces[fact] = (
                LayoutRecipe(opened) if layout else recipe_of(fact, ref, left, places_of(ins, group))
            )
        joined = join(self.model, list(pieces))
        alike = len(joined) == 1
        numbers = [self.k.add(f, recipe, relates=alike and f in joined) for f, recipe in pieces.items()]
        if not alike:
            self.facts[ref], self._opened[ref] = numbers, opened
        elif joined[0] not in pieces:
            self.k.add(joined[0], LayoutRecipe(parts=tuple(numbers)))
        return alike


def places_of(operands: Sequence[str], group: Sequence[tuple[Cell, View]]) -> list[Place]:
    """What each part of a result reads, and where."""
    return [
        (cell.ranges, v, index, reading)
        for cell, view in group
        for v, index, reading in zip(operands, view.indices, view.readings, strict=True)
    ]


def recipe_of(
    fact: Fact, ref: Ref, left: Sequence[Affine], places: Sequence[Place], opened: Ref | None = None
) -> AlgebraRecipe:
    """How a fact about an op is proved from what is known of its operands at these places; ``opened`` is the
    op whose definition is used, if it is another one.
    """
    instances, uses, ranges = [], [Use(ref, tuple(left))], dict[str, Range]()
    if not fact.rhs_index:
        uses.append(Use(fact.rhs, ()))
    for here, v, index, reading in places:
        ranges.update(here)
        uses.append(Use(v, index))
        if reading is not None and reading.fact is not None:
            instances.append(Instance(reading.fact, reading.values))
            uses.append(Use(reading.target, reading.at))
    goal = solve(fact.lhs_index, fact.ranges, left, ranges)
    if goal is None:
        raise Unfollowable(f"{ref}: goal does not cover its own cell")
    return AlgebraRecipe(frozenset((opened or ref,)), tuple(instances), tuple(uses), ranges, goal)


def summands(ref: str, pattern: Access, cell: Cell) -> int:
    """How many summands of one result a part has."""
    owner = split_ref(ref)[0]
    symbols = {s for name, _ in pattern.summed for s in cell.at[f"{owner}.{name}"].symbols}
    return math.prod(hi - lo for lo, hi in (cell.ranges[s] for s in symbols))


def _total(values: Sequence[Literal | None]) -> Literal:
    """What the parts of one sum add up to; a truth value is none."""
    if isinstance(values[0], bool):
        return values[0]
    return sum((Fraction(v or 0) for v in values), Fraction(0))
