"""Guesses that fail at some element, found by computing it: a solver need not be asked.

Both sides are computed down to what is known of plan tensors, and to elements of inputs and of sums, which
are numbers drawn at random. This decides nothing: a guess that holds at all samples, or one that cannot be
computed, is for a solver, and one that fails is only not made.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.ops import ELEMENTWISE
from certificates.plan.program import Op
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cut, Digits, Unfollowable
from .knowledge import Knowledge
from .ledger import Unrelated

Index = tuple[int, ...]
Value = Fraction | int | bool
#: Elements of a fact that are computed; elements that one may rest on.
PLACES, MAX_ELEMENTS = 4, 400
#: How often an integer is one of those that are near.
OFTEN = 0.8
#: Integers that are drawn where no range is declared.
INTEGERS = (-3, 60)
_COMPARED: Mapping[str, Callable[[Value, Value], bool]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt,
    "GE": operator.ge,
}  # fmt: skip
_MADE: Mapping[str, Callable[[Value, Value], Value]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "maximum": max, "minimum": min,
    "and": operator.and_, "or": operator.or_,
}  # fmt: skip


class Unknown(Exception):
    """An element that is not computed here."""


def fails(knowledge: Knowledge, fact: Fact) -> bool:
    """Whether a guess is wrong at some element, as far as it was looked at."""
    drawn = random.Random(f"{fact.lhs} {fact.rhs}")
    for _ in range(PLACES):
        at = {s: drawn.randrange(lo, hi) for s, lo, hi in fact.symbols}
        here, there = (tuple(f.evaluate(at) for f in forms) for forms in (fact.lhs_index, fact.rhs_index))
        numbers = dict[int, None]()
        for near in (there, here, _shifted(knowledge, fact.lhs, here), None):
            # What an integer is compared with, last: a shard's first row, and a row beside it or in it.
            drawn_from = [x + y for x in numbers for y in (0, -1, *here)] if near is None else near
            world = World(knowledge, drawn, drawn_from)
            try:
                left, right = (
                    world.element(ref, place, opened=True)
                    for ref, place in ((fact.lhs, here), (fact.rhs, there))
                )
            except (Unknown, Unrelated, Unfollowable, NoDefinition, Cut, Digits, RecursionError):
                break
            if left != (right if isinstance(right, bool) else right * fact.coef):
                return True
            numbers |= world.numbers
    return False


def _shifted(knowledge: Knowledge, ref: Ref, at: Index) -> list[int]:
    """Positions of an element in what its tensor may be a shard of, by the coordinates of its rank."""
    mesh = len(knowledge.model.tensors.mesh_axes(ref))
    sizes = [hi - lo for lo, hi in knowledge.model.tensors.ranges(ref)[mesh:]]
    return [x + rank * size for rank in at[:mesh] for x, size in zip(at[mesh:], sizes, strict=True)]


class World:
    """Elements of tensors, where inputs are drawn at random.

    Integers are often one of some that are ``near``: positions, where a label says something of an element.
    """

    def __init__(self, knowledge: Knowledge, drawn: random.Random, near: Sequence[int] = ()) -> None:
        self.k, self.model, self._drawn, self._near = knowledge, knowledge.model, drawn, near
        self._known: dict[tuple[Ref, Index], Value] = {}
        #: Integers that stand in the programs.
        self.numbers: dict[int, None] = {}

    def element(self, ref: Ref, at: Index, *, opened: bool = False) -> Value:
        """An element by its definition if it is ``opened``, else by what is known of it; raises
        :class:`Unknown`."""
        if (ref, at) not in self._known:
            if len(self._known) >= MAX_ELEMENTS:
                raise Unknown(ref)
            found = None if opened else self._read(ref, at)
            self._known[ref, at] = self._computed(ref, at, opened) if found is None else found
        return self._known[ref, at]

    def _read(self, ref: Ref, at: Index) -> Value | None:
        """What a fact says of an element, if any does."""
        try:
            reading = self.k.read(ref, tuple(map(Affine, at)), {})
        except Unrelated:
            return None
        there = tuple(f.const for f in reading.at)
        if (reading.target, there) == (ref, at):
            return None
        found = self.element(reading.target, there)
        return found if isinstance(found, bool) else found * reading.coef

    def _computed(self, ref: Ref, at: Index, opened: bool) -> Value:
        """An element by the definition of its tensor; one of the specification's that is a sum is drawn, if
        it is not opened."""
        literal = self.model.literal(ref)
        if literal is not None:
            return self._literal(ref, literal, at)
        if isinstance(ref, Reduced):
            return self._summed(ref, at)
        op, mesh = self.model.op(ref), len(self.model.tensors.mesh_axes(ref))
        if op is None:
            return self._input(ref)
        if op.name == "iota":
            return at[mesh + op.integer("dim")]
        if op.name == "gather":
            return self._looked_up(ref, op, at[:mesh], at[mesh:])
        if op.name in ELEMENTWISE:
            return _made(op, [self.element(v, at) for v in self.model.operands(ref)])
        if self.k.moves(ref):
            factor, source, there = self.k.source(ref, [Affine(x) for x in at], {})
            if source != ref:
                found = self.element(source, tuple(f.const for f in there))
                return found if isinstance(found, bool) else found * factor
        if opened or split_ref(ref)[0] != "s":
            raise Unknown(ref)
        return self._number(self.model.tensors.type(ref).sort)

    def _literal(self, ref: Ref, literal: object, at: Index) -> Value:
        if literal in ("true", "false"):
            return literal == "true"
        if isinstance(literal, Affine):
            assert isinstance(ref, str)
            found: Value = literal.evaluate(dict(zip(self.model.tensors.mesh_axes(ref), at, strict=False)))
        elif isinstance(literal, Fraction):
            found = literal
        else:
            raise Unknown(ref)
        if self.model.tensors.type(ref).sort == "Int":
            self.numbers[int(found)] = None
        return found

    def _input(self, ref: str) -> Value:
        owner, name = split_ref(ref)
        if owner != "s":
            raise Unknown(ref)
        return self._number(self.model.tensors.type(ref).sort, self.model.plan.ranges.get(name, INTEGERS))

    def _number(self, sort: str, span: Range = INTEGERS) -> Value:
        if sort == "Bool":
            return self._drawn.random() < 0.5
        if sort == "Real":
            return Fraction(self._drawn.randrange(2, 1 << 20), 7)
        near = [x for x in self._near if span[0] <= x < span[1]]
        return (
            self._drawn.choice(near)
            if near and self._drawn.random() < OFTEN
            else self._drawn.randrange(*span)
        )

    def _looked_up(self, ref: str, op: Op, head: Index, body: Index) -> Value:
        table, indices = self.model.operands(ref)
        axis, batch = op.integer("axis"), op.integer("batch_dims")
        after = axis + len(self.model.tensors.type(indices).shape) - batch
        row = self.element(indices, (*head, *body[:batch], *body[axis:after]))
        if not 0 <= row < self.model.tensors.type(table).shape[axis]:
            raise Unknown(ref)
        return self.element(table, (*head, *body[:axis], int(row), *body[after:]))

    def _summed(self, ref: Reduced, at: Index) -> Value:
        """A sum, or a maximum, over ranks."""
        axes = list(self.model.plan.mesh.axes)
        found: list[Value] = []
        for member in ref.of:
            box = self.model.plan.by_class[split_ref(member)[0]].box
            places = [list(at)]
            for axis in sorted(ref.axes, key=axes.index):
                here = axes.index(axis)
                places = [[*p[:here], x, *p[here:]] for p in places for x in range(*box[axis])]
            found += [self.element(member, tuple(p)) for p in places]
        if ref.kind == "add":
            return sum(found)
        return max(found) if ref.kind == "max" else min(found)


def _made(op: Op, values: Sequence[Value]) -> Value:
    """What an op on elements makes of these."""
    match op.name:
        case "compare":
            return _COMPARED[op.text("direction")](*values)
        case "select":
            return values[1] if values[0] else values[2]
        case "convert":
            (value,) = values
            if op.type.sort == "Bool":
                return bool(value)
            return int(value) if op.type.sort == "Int" else Fraction(value)
        case "not":
            return not values[0]
        case "negate":
            return -values[0]
        case "divide" if op.type.sort == "Real" and values[1]:
            return Fraction(values[0]) / values[1]
        case name if name in _MADE:
            return _MADE[name](*values)
    if op.type.sort != "Real":
        raise Unknown(op.out)
    said = f"{op.name} {values}"  # a function of which nothing else is known
    return Fraction(random.Random(said).randrange(2, 1 << 20), 7)
