"""Tensors that are one number everywhere, and ops that therefore only scale or pass on an operand.

Counts of valid tokens, masks that the declared ranges make constant, quotients by such counts and sums of one
element would otherwise hide the structure that the plan shares with the specification. Everything found here
is a fact with a stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.program import Op
from certificates.proof.facts import Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore, undivided
from .access import Access, access
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .patches import Patches, Place, View, places_of, recipe_of, summands
from .solving_facts import Literal, literal_ref, make_fact

Bounds = Callable[[Reading, Mapping[str, Range]], tuple[Fraction, Fraction] | None]


class Folder:
    """Finds literal tensors and hops, one op at a time in execution order."""

    def __init__(self, knowledge: Knowledge, bounds: Bounds = lambda _reading, _ranges: None) -> None:
        """``bounds`` says of an element that was read between which values it lies, if that is known."""
        self.k, self.model, self.bounds = knowledge, knowledge.model, bounds
        self.patches = Patches(knowledge)

    def fold(self, ref: str) -> bool:
        """Record what is known of an op because of literals; whether anything was."""
        op = self.model.op(ref)
        if (
            op is None
            or ref in self.k.by_lhs
            or ref in self.k.hops
            or ref in self.patches.facts
            or self.k.moves(ref)
            or op.name == "constant"
        ):
            return False
        pattern = access(op, [self.model.tensors.type(v).shape for v in self.model.operands(ref)])
        if pattern is None or (
            op.name == "dot_general" and not any(map(self._is_zero, self.model.operands(ref)))
        ):
            return False
        tried = op.name == "compare" or _sums_one(op, pattern)
        if not tried and not any(map(self._may_be_literal, self.model.operands(ref))):
            return False
        whole = self.k.full_index(ref)
        owner = split_ref(ref)[0]
        inner = {f"{owner}.{name}": (0, n) for name, n in pattern.summed}
        cell = Cell(dict(whole.ranges) | inner, dict(whole.at) | {s: Affine.symbol(s) for s in inner})
        try:
            return self._fold(ref, op, pattern, cell)
        except (Unrelated, Unfollowable, NoDefinition):
            return False

    def count(self, ref: Reduced) -> list[int]:
        """The fact that a sum over ranks is one number, as all that is summed is: a count of rows, say."""
        if ref.kind != "add" or not all(map(self._is_literal, ref.of)):
            return []
        axes, boxes = list(self.model.plan.mesh.axes), self.model.plan.by_class
        whole = self.k.full_index(ref)
        ranges, members = dict(whole.ranges), list[tuple[str, tuple[Affine, ...]]]()
        for member in ref.of:
            owner, index = split_ref(member)[0], [*whole.at.values()]
            for a in sorted(ref.axes, key=axes.index):
                ranges[f"{owner}.{a}"] = boxes[owner].box[a]
                index.insert(axes.index(a), Affine.symbol(f"{owner}.{a}"))
            members.append((member, tuple(index)))
        total, places = Fraction(0), list[Place]()
        for member, at in members:
            try:
                with undivided():
                    reading = self.k.read(member, at, ranges)
            except (Unrelated, Unfollowable, NoDefinition):
                return []
            value = self.value(reading)
            if not isinstance(value, Fraction):
                return []
            box = boxes[split_ref(member)[0]].box
            total += value * math.prod(box[a][1] - box[a][0] for a in ref.axes)
            places.append((ranges, member, at, reading))
        left = tuple(whole.at.values())
        number = literal_ref(self.model.tensors.type(ref.of[0]).sort, total)
        fact = make_fact(self.model, whole, ref, left, number, (), Fraction(1))
        return [self.k.add(fact, recipe_of(fact, ref, left, places))]

    def _is_literal(self, ref: str) -> bool:
        """Whether a tensor is made as a literal, or was found to be one."""
        found = [self.k.facts[n].rhs for n in self.k.by_lhs.get(ref, ())] or [ref]
        return all(self.model.literal(r) is not None for r in found)

    def _is_zero(self, ref: str) -> bool:
        """Whether all of a tensor is zero: the first state of a recurrent net, say."""
        found = [self.k.facts[n].rhs for n in self.k.facts_for(ref)] or [ref]
        return all(self.model.literal(r) == 0 for r in found)

    def _may_be_literal(self, ref: str) -> bool:
        """Whether anything that is known of a tensor says that some of its elements are a literal."""
        if self.model.literal(ref) is not None or ref in self.patches.facts:
            return True
        return any(self.model.literal(self.k.facts[n].rhs) is not None for n in self.k.facts_for(ref))

    def _fold(self, ref: str, op: Op, pattern: Access, start: Cell) -> bool:
        parts = explore(start, lambda cell: self._view(ref, op, pattern, cell))
        view = parts[0][1]
        layout = op.name == "select" or (op.type.sort != "Real" and op.name != "reduce")
        alike = all(
            (v.literal, v.position, v.coef) == (view.literal, view.position, view.coef) for _, v in parts
        )
        if len(parts) > 1 and not (alike and layout):
            return not any(v.opened for _, v in parts) and self.patches.note(ref, pattern, parts, layout)
        if view.literal is None and (view.position is None or not view.coef):
            return False
        cell = start if layout else parts[0][0]
        if cell is not parts[0][0]:
            view = self._indices(ref, op, pattern, cell, view)
        left = [cell.at[s] for s in self.k.full_index(ref).ranges]
        if view.literal is not None:
            self._add(ref, literal_ref(op.type.sort, view.literal), left, [], Fraction(1), cell, layout, view)
            return True
        assert view.position is not None
        target = self.model.operands(ref)[view.position]
        right = view.indices[view.position]
        hop = self._add(ref, target, left, right, view.coef, cell, layout, view, relates=False)
        self.k.hops[ref] = [hop]
        return True

    def _indices(self, ref: str, op: Op, pattern: Access, cell: Cell, view: View) -> View:
        owner = split_ref(ref)[0]
        mesh = len(self.model.tensors.mesh_axes(ref))
        head = [cell.at[a] for a in list(cell.at)[:mesh]]
        indices = tuple(
            (*head, *(cell.at[n if n in cell.at else f"{owner}.{n}"] for n in names))
            for names in pattern.operands
        )
        return replace(view, indices=indices)

    def _view(self, ref: str, op: Op, pattern: Access, cell: Cell) -> View:
        """What one part of the result is, judged by the readings of its operands."""
        view = self._indices(ref, op, pattern, cell, View())
        readings: list[Reading | None] = []
        for v, index in zip(self.model.operands(ref), view.indices, strict=True):
            try:
                patch = self.patches.read(v, index, cell.ranges)
                readings.append(patch or self.k.read(v, index, cell.ranges))
            except Unrelated:
                readings.append(None)
        values = [self.value(r) for r in readings]
        opened: set[Ref] = set()
        literal = self._literal(op, pattern, values, readings, cell.ranges, opened)
        if literal is not None and pattern.summed:
            literal = Fraction(literal) * summands(ref, pattern, cell)
        position, coef = (0, Fraction(1)) if _sums_one(op, pattern) else self.passed(op, values)
        used = tuple(
            r if literal is not None or values[i] is not None else None for i, r in enumerate(readings)
        )
        return replace(view, readings=used, literal=literal, position=position, coef=coef,
            opened=frozenset(opened),
        )  # fmt: skip

    def value(self, reading: Reading | None) -> Literal | None:
        """The literal that was read, if it is one."""
        value = None if reading is None else self.model.literal(reading.target)
        if isinstance(value, Fraction) and reading is not None:
            return reading.coef * value
        return {"true": True, "false": False}.get(value) if isinstance(value, str) else None

    def _literal(
        self,
        op: Op,
        pattern: Access,
        values: Sequence[Literal | None],
        readings: Sequence[Reading | None],
        ranges: Mapping[str, Range],
        opened: set[Ref],
    ) -> Literal | None:
        if op.name == "compare":
            return self._compare(op, readings, ranges, opened)
        if op.name == "reduce":  # of one element
            return values[0] if pattern.kind == "add" and isinstance(values[0], Fraction) else None
        return self.combined(op, values)

    def combined(self, op: Op, values: Sequence[Literal | None]) -> Literal | None:
        """What an op makes of literals, element by element, if those of its operands that are known say."""
        if op.name in ("and", "or") and any(v is (op.name == "or") for v in values):
            return op.name == "or"
        factors = {"multiply": values, "dot_general": values, "divide": values[:1]}.get(op.name, ())
        if op.type.sort == "Real" and any(isinstance(v, Fraction) and not v for v in factors):
            return Fraction(0)
        if op.name == "select" and values[1] is not None and values[1] == values[2]:
            return values[1]
        if any(v is None for v in values):
            return None
        a, b = values[0], values[1] if len(values) > 1 else None
        match op.name:
            case "convert":
                return None if a is None else bool(a) if op.type.sort == "Bool" else Fraction(a)
            case "and" | "or":
                return bool(a and b) if op.name == "and" else bool(a or b)
            case "not":
                return not a
            case "select":
                return values[1] if a else values[2]
            case "add" | "subtract" | "multiply" | "divide":
                if (
                    not isinstance(a, Fraction)
                    or not isinstance(b, Fraction)
                    or (op.name == "divide" and not b)
                ):
                    return None
                return a + b if op.name == "add" else a - b if op.name == "subtract" else (
                    a * b if op.name == "multiply" else a / b
                )  # fmt: skip
            case _:
                return None

    def _compare(
        self, op: Op, readings: Sequence[Reading | None], ranges: Mapping[str, Range], opened: set[Ref]
    ) -> Literal | None:
        """Decided by two numbers, or by the ranges of positions and of declared inputs, and of their sums."""
        bounds = []
        for reading in readings:
            between = reading and self._between(reading, ranges, opened)
            if not between:
                return None
            bounds.append(between)
        (a, b), (c, d) = bounds
        match op.text("direction"):
            case "EQ" | "NE" if b < c or d < a:
                return op.text("direction") == "NE"
            case "EQ" | "NE" if a == b == c == d:
                return op.text("direction") == "EQ"
            case "LT" | "GE" if b < c or a >= d:
                return (b < c) == (op.text("direction") == "LT")
            case "LE" | "GT" if b <= c or a > d:
                return (b <= c) == (op.text("direction") == "LE")
            case _:
                return None

    def _between(
        self, reading: Reading, ranges: Mapping[str, Range], opened: set[Ref]
    ) -> tuple[Fraction, Fraction] | None:
        """Between which values an element lies; ``opened`` are the ops whose definitions say so."""
        value = self.value(reading)
        if isinstance(value, Fraction):
            return value, value
        between = self.bounds(reading, ranges)
        if between is not None:
            return between
        owner, _, name = str(reading.target).partition(":")
        span = self.model.plan.ranges.get(name) if owner == "s" else None
        if span is not None:
            return Fraction(span[0]), Fraction(span[1] - 1)
        op = self.model.op(reading.target)
        if op is None or op.type.sort != "Int" or op.name not in ("add", "subtract") or reading.coef != 1:
            return None
        sides = []
        for v in self.model.operands(str(reading.target)):
            try:
                side = self._between(self.k.read(v, reading.at, ranges), ranges, opened)
            except Unrelated:
                return None
            if side is None:
                return None
            sides.append(side)
        opened.add(reading.target)
        (a, b), (c, d) = sides
        return (a + c, b + d) if op.name == "add" else (a - d, b - c)

    def passed(self, op: Op, values: Sequence[Literal | None]) -> tuple[int | None, Fraction]:
        """The operand that an op passes on and the factor, the others being these literals."""
        one = Fraction(1)
        if op.name == "select" and isinstance(values[0], bool):
            return (1 if values[0] else 2), one
        if op.name in ("add", "subtract"):
            none = [isinstance(v, Fraction) and not v for v in values]
            return 0 if none[1] else 1 if none[0] and op.name == "add" else None, one
        if op.type.sort != "Real" or op.name not in ("multiply", "divide"):
            return None, one
        left, right = values
        if op.name == "multiply" and isinstance(left, Fraction):
            return 1, left
        if isinstance(right, Fraction) and right:
            return 0, right if op.name == "multiply" else 1 / right
        return None, one

    def _add(
        self,
        ref: str,
        target: Ref,
        left: Sequence[Affine],
        right: Sequence[Affine],
        coef: Fraction,
        cell: Cell,
        layout: bool,
        view: View,
        *,
        relates: bool = True,
    ) -> int:
        fact = make_fact(self.model, cell, ref, left, target, right, coef)
        if layout:
            return self.k.add(fact, LayoutRecipe(view.opened | {ref}), relates=relates)
        recipe = recipe_of(fact, ref, left, places_of(self.model.operands(ref), [(cell, view)]))
        return self.k.add(fact, recipe, relates=relates)


def _sums_one(op: Op, pattern: Access) -> bool:
    """A sum along dimensions of size 1: of a stack of one loss, say."""
    return op.name == "reduce" and op.text("kind") == "add" and all(n == 1 for _, n in pattern.summed)
