"""Masks as numbers: what is a number where a mask holds, and 0 elsewhere, is a multiple of any other such.

The gradient of a look-up is -1 where the label is, and a mask that the user's code turns into numbers is 1
there. Both are read from masks that are one, though no op has them both as operands.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

from ..cells import Cell, Unfollowable, explore
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Unrelated
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


@dataclass(frozen=True)
class Number:
    """``value`` where the mask holds, or where it does not; 0 elsewhere."""

    mask: Ref
    value: Fraction
    holds: bool


@dataclass(frozen=True)
class _First:
    """A mask as numbers that stands for itself, and the element of the mask that its elements read."""

    ref: str
    value: Fraction
    cell: Cell
    at: Forms


def number(model: Model, ref: str) -> Number | None:
    """The mask that a real tensor is made of, if it is one as numbers."""
    op = model.op(ref)
    if op is None or op.type.sort != "Real" or op.name not in ("convert", "select"):
        return None
    mask, *parts = model.operands(ref)
    if op.name == "convert":
        return Number(mask, Fraction(1), True) if model.tensors.type(mask).sort == "Bool" else None
    yes, no = map(model.literal, parts)
    if not isinstance(yes, Fraction) or not isinstance(no, Fraction) or bool(yes) == bool(no):
        return None
    return Number(mask, yes or no, bool(yes))


class Indicators:
    """Relates masks as numbers to the first one in the specification that is made of the same mask."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self._first: dict[tuple[Ref, bool], list[_First]] = defaultdict(list)

    def relate(self, ref: str) -> bool:
        """Record that a mask as numbers is another one, if there is one; whether it is so everywhere."""
        made = number(self.model, ref)
        if made is None or ref in self.k.by_lhs:
            return False
        whole = self.k.full_index(ref)
        try:
            found = explore(whole, lambda cell: self._same(made, cell))
        except (Unrelated, Unfollowable, NoDefinition):
            if ref.startswith("s:"):
                self._index(ref, made, whole)
            return False
        for cell, (first, at) in found:
            coef = made.value / first.value
            fact = make_fact(self.model, cell, ref, tuple(cell.at.values()), first.ref, at, coef)
            self.k.add(fact, LayoutRecipe(frozenset({ref, first.ref})))
        return True

    def _same(self, made: Number, cell: Cell) -> tuple[_First, Forms]:
        reading = self.k.read(made.mask, list(cell.at.values()), cell.ranges)
        for first in self._first[reading.target, made.holds]:
            values = solve(first.at, first.cell.ranges, reading.at, cell.ranges)
            if values is not None:
                return first, tuple(form.substitute(values) for form in first.cell.at.values())
        raise Unrelated(made.mask)

    def _index(self, ref: str, made: Number, whole: Cell) -> None:
        try:
            found = explore(whole, lambda cell: self.k.read(made.mask, list(cell.at.values()), cell.ranges))
        except (Unrelated, Unfollowable):
            return
        for cell, reading in found:
            first = _First(ref, made.value, cell, tuple(reading.at))
            self._first[reading.target, made.holds].append(first)
