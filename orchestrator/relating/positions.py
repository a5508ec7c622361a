"""Integers that are positions: what is counted along a dimension, and sums of that with numbers of ranks.

Rows of a causal mask, labels that a rank makes itself (``arange(n) + rank * n``) and offsets of shards have
no input behind them: such a tensor is an affine form of its own index and the rank. It equals the
specification's positions at that index, by a layout stage like all others. What is looked up at positions is
moved.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, divide, explore, within
from .joining import join
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .solving_facts import literal_ref, make_fact
from .windows import Windows, overlap

#: Boxes that a comparison is taken apart into: ranks times ranks, not rows times columns.
MAX_BOXES = 64
ARITHMETIC = frozenset(("add", "subtract", "multiply"))


class Positions:
    """Relates tensors of positions to the specification's iotas."""

    def __init__(self, knowledge: Knowledge, windows: Windows) -> None:
        self.k, self.model, self.windows = knowledge, knowledge.model, windows
        #: The specification's first iota of each sort and size.
        self._first: dict[tuple[str, int], str] = {}

    def declare(self) -> None:
        """Positions along a dimension of one size are one vector: the specification's first such iota."""
        for ref, op in self.model.ops.items():
            if op.name != "iota":
                continue
            key = (op.type.sort, op.type.shape[op.integer("dim")])
            if ref.startswith("s:"):
                self._first.setdefault(key, ref)
            if self._first.get(key) != ref or len(op.type.shape) > 1:
                self._state(ref)

    def relate(self, ref: str) -> bool:
        """Relate sums and multiples of positions and rank numbers, inside an iota, and look-ups at them."""
        op = self.model.op(ref)
        if op is None or self.k.moves(ref):
            return False
        if op.name == "gather":
            return self._looked_up(ref)
        return op.name in ARITHMETIC and op.type.sort == "Int" and self._state(ref)

    def decide(self, ref: str) -> bool:
        """Relate a comparison of positions to truth values, box by box; whether it is one, of few boxes.

        A rank that marks its own row among all ranks' compares the row with its number.
        """
        op = self.model.op(ref)
        if op is None or op.name != "compare" or ref in self.k.by_lhs:
            return False
        opened: set[Ref] = {ref}
        tried = itertools.count()

        def truth(cell: Cell) -> bool:
            if next(tried) >= MAX_BOXES:
                raise Unfollowable(f"{ref}: more than {MAX_BOXES} boxes")
            return self.truth(ref, tuple(cell.at.values()), cell.ranges, opened)

        try:
            found = explore(self.k.full_index(ref), truth)
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        facts = [
            make_fact(self.model, c, ref, tuple(c.at.values()), literal_ref("Bool", value), (), Fraction(1))
            for c, value in found
        ]
        for fact in join(self.model, facts):
            self.k.add(fact, LayoutRecipe(frozenset(opened)))
        return True

    def truth(self, ref: str, at: Sequence[Affine], ranges: Mapping[str, Range], opened: set[Ref]) -> bool:
        """Whether a comparison of positions holds everywhere on a box, or nowhere; raises a split of the box,
        and :class:`Unrelated` where something else is compared. ``opened`` grows by the sums it is seen by.
        """
        left, right = (self._form(v, at, ranges, opened) for v in self.model.operands(ref))
        return _holds(self.model.ops[ref].text("direction"), left - right, ranges)

    def bounds(self, reading: Reading, ranges: Mapping[str, Range]) -> tuple[Fraction, Fraction] | None:
        """The least and the greatest value of an element that was read, if it is a position."""
        op = self.model.op(reading.target)
        if op is None or op.name != "iota":
            return None
        form = reading.at[len(self.model.tensors.mesh_axes(reading.target)) + op.integer("dim")]
        low, high = sorted(reading.coef * value for value in form.interval(ranges))
        return low, high

    def _state(self, ref: str) -> bool:
        whole = self.k.full_index(ref)
        opened: set[Ref] = {ref}
        try:
            found = explore(whole, lambda c: self._form(ref, tuple(c.at.values()), c.ranges, opened))
            spans = [form.interval(cell.ranges) for cell, form in found]
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        target = self._around(ref, min(s[0] for s in spans), max(s[1] for s in spans))
        if target is None:
            return False
        other = self.model.ops[target]
        dims = range(len(other.type.shape))
        facts = [
            make_fact(
                self.model, cell, ref, tuple(cell.at.values()), target,
                [form if d == other.integer("dim") else Affine() for d in dims], Fraction(1),
            )
            for cell, form in found
        ]  # fmt: skip
        for fact in join(self.model, facts):
            self.k.add(fact, LayoutRecipe(frozenset((*opened, target))))
        return True

    def pass_on(self, ref: str) -> bool:
        """Let a look-up at positions be data movement, though its table is unknown; whether it is one now."""
        op = self.model.op(ref)
        if op is None or op.name != "gather" or self.k.moves(ref) or ref in self.k.by_lhs:
            return False
        return self._looked_up(ref, late=True)

    def _looked_up(self, ref: str, *, late: bool = False) -> bool:
        """A look-up at positions is data movement: ``table[arange(n)]`` is the table, or a part of it.

        One at positions that overlap is a window, as soon as its table is known, or is so known too ``late``.
        """
        op, (table, indices) = self.model.ops[ref], self.model.operands(ref)
        axis, batch = op.integer("axis"), op.integer("batch_dims")
        after = axis + len(self.model.tensors.type(indices).shape) - batch
        mesh, rows = len(self.model.tensors.mesh_axes(ref)), self.model.tensors.type(table).shape[axis]
        opened: set[Ref] = {ref}

        def place(cell: Cell) -> list[Affine]:
            at = list(cell.at.values())
            head, body = at[:mesh], at[mesh:]
            row = self._form(indices, [*head, *body[:batch], *body[axis:after]], cell.ranges, opened)
            if not within(row, 0, rows, cell.ranges):
                raise Unrelated(ref)
            return [*head, *body[:axis], row, *body[after:]]

        try:
            found = explore(self.k.full_index(ref), place)
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        if any(overlap(there[mesh + axis], cell.ranges) for cell, there in found):
            if not ref.startswith("s:"):
                if self.windows.relate(ref, place, frozenset(opened)):
                    return True
                if not late and not self.k.covers(table):
                    return False
            else:
                self.windows.note(ref, place, frozenset(opened))
                return True  # it stands for itself
        facts = [
            make_fact(self.model, cell, ref, tuple(cell.at.values()), table, there, Fraction(1))
            for cell, there in found
        ]
        recipe = LayoutRecipe(frozenset(opened))
        self.k.hops[ref] = [self.k.add(f, recipe, relates=False) for f in join(self.model, facts)]
        return True

    def _around(self, ref: str, low: int, high: int) -> str | None:
        """The shortest of the specification's iotas that has all these positions."""
        sort = self.model.tensors.type(ref).sort
        sizes = sorted(n for s, n in self._first if s == sort and n > high)
        return self._first[sort, sizes[0]] if sizes and low >= 0 else None

    def _form(self, ref: str, at: Sequence[Affine], ranges: Mapping[str, Range], opened: set[Ref]) -> Affine:
        """An element as an affine form of its index; raises :class:`Unrelated` if it is none."""
        op, value = self.model.op(ref), self.model.literal(ref)
        mesh = self.model.tensors.mesh_axes(ref)
        if isinstance(value, Affine):
            return value.substitute(dict(zip(mesh, at, strict=False)))
        if isinstance(value, Fraction) and value.denominator == 1:
            return Affine(int(value))
        if op is None or op.type.sort != "Int":
            raise Unrelated(ref)
        if op.name == "iota":
            return at[len(mesh) + op.integer("dim")]
        if self.k.moves(ref):
            _, source, there = self.k.source(ref, list(at), ranges)
            if source == ref or not isinstance(source, str):
                raise Unrelated(ref)
            return self._form(source, there, ranges, opened)
        if op.name not in ARITHMETIC:
            raise Unrelated(ref)
        opened.add(ref)
        left, right = (self._form(v, at, ranges, opened) for v in self.model.operands(ref))
        if op.name == "add":
            return left + right
        if op.name == "subtract":
            return left - right
        if left.is_const:
            left, right = right, left
        if not right.is_const:
            raise Unrelated(ref)
        return left.scale(right.const)


def _holds(direction: str, difference: Affine, ranges: Mapping[str, Range]) -> bool:
    """Whether ``difference`` is ``EQ``, ``LT``, … zero, everywhere on a box; raises a split of it."""
    low, high = difference.interval(ranges)
    if direction in ("EQ", "NE"):
        if low <= 0 <= high and low < high:
            divide(difference, 0, ranges)
            divide(difference, 1, ranges)
        return (low == high == 0) == (direction == "EQ")
    first = int(direction in ("LE", "GT"))  # the least difference that is too large for LT, or for LE
    if low < first <= high:
        divide(difference, first, ranges)
    return (high < first) == (direction in ("LT", "LE"))
