"""Concatenations of the specification that the plan makes too, such as a stack of gradient norms.

Where a plan tensor, or a sum of it over ranks, has the parts of such a *landmark* at the same positions, one
fact says so; what follows is related to the landmark and not to each of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.plan.ops import CALL
from certificates.plan.stacks import is_stack
from certificates.plan.types import TensorType
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .joining import join
from .knowledge import Knowledge
from .ledger import LayoutRecipe, Reading, Unrelated
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


class Landmarks:
    """Restates facts about parts of concatenations."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model
        self.handed_over: set[str] = set()
        self._joined = {
            c.name: [f"{c.name}:{op.out}" for op in c.program.ops if op.name == "concatenate"]
            for c in self.model.plan.classes
        }

    def declare(self) -> None:
        """Landmarks are stacks of the specification, and concatenations handed over by calls or to them."""
        program = self.model.plan.specification
        if not self.model.plan.outputs:  # a function, whose results the caller relates
            self.handed_over = {f"s:{v}" for v in program.outputs.values()}
        results = {op.out for op in program.ops if op.name == CALL}
        for op in program.ops:
            across = f"s:{op.out}" in self.handed_over or not results.isdisjoint(op.ins)
            if is_stack(op) or (op.name == "concatenate" and across):
                self.k.landmarks[f"s:{op.out}"] = None

    def relate(self, ref: str) -> bool:
        """Relate a concatenation, or a sum of it over ranks, to one of the specification as a whole."""
        op = self.model.op(ref)
        if op is None or op.name != "concatenate" or ref.startswith("s:"):
            return False
        alike = [name for name in self.k.landmarks if self._type(name) == op.type]
        sides: list[Ref] = [ref, *dict.fromkeys(self._sums(ref))] if alike else []
        return any(self._relate(lhs, landmark) for landmark in alike for lhs in sides)

    def name(self, results: Sequence[str]) -> None:
        """Say what a function hands back on ranks by what it hands back in the specification, where that is
        another tensor that is moved or passed on: a caller sees nothing else of the specification's.

        So it is with counts that are added to zeros.
        """
        seen = {*self.handed_over, *(f"s:{v}" for v in self.model.plan.specification.inputs)}
        passed_on = [ref for ref in sorted(self.handed_over) if self.k.facts_for(ref)]
        for ref in results if passed_on else ():
            sums = (r for r in self.k.partials.get(ref, ()) if r.of[0] == ref and set(r.of) <= set(results))
            sides: tuple[Ref, ...] = () if ref.startswith("s:") else (ref, *sums)
            for lhs in sides:
                parts = self.k.facts_for(lhs)
                if not parts or not seen.isdisjoint(str(self.k.facts[n].rhs) for n in parts):
                    continue
                facts = next(filter(None, (self._in_pieces(lhs, result) for result in passed_on)), ())
                for fact in facts:
                    self.k.add(fact, LayoutRecipe(frozenset((fact.rhs,)), parts=tuple(parts)))

    def _relate(self, lhs: Ref, landmark: str) -> bool:
        parts = self.k.facts_for(lhs)
        if any(self.k.facts[n].rhs == landmark for n in parts):
            return True
        if len(parts) < 2:
            return False
        facts = self._whole(lhs, landmark)
        if not facts and landmark in self.handed_over:
            # Inside a function nothing else can be said of its parts to the caller.
            facts = self._in_pieces(lhs, landmark)
        if facts:
            self.k.restate(facts)
        return bool(facts)

    def _whole(self, lhs: Ref, landmark: str) -> list[Fact]:
        """One fact, if both have the same elements at the same positions."""
        whole = self.k.full_index(lhs)
        index = tuple(whole.at.values())
        there = index[len(self.model.tensors.mesh_axes(lhs)) :]

        def factor(cell: Cell) -> Fraction:
            ours = self.k.read(lhs, tuple(cell.at.values()), cell.ranges)
            at = tuple(f.substitute(cell.at) for f in there)
            theirs = self.k.read(landmark, at, cell.ranges)
            if (ours.target, ours.at) != (theirs.target, theirs.at) or not theirs.coef:
                raise Unrelated(lhs)
            return ours.coef / theirs.coef

        try:
            coefs = {coef for _, coef in explore(whole, factor)}
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        if len(coefs) != 1:
            return []
        return [make_fact(self.model, whole, lhs, index, landmark, there, coefs.pop())]

    def _in_pieces(self, lhs: Ref, landmark: str) -> list[Fact]:
        """A fact for each run of elements, wherever the landmark has them."""

        def place(cell: Cell) -> tuple[Fraction, Forms]:
            return self._place(landmark, self.k.read(lhs, tuple(cell.at.values()), cell.ranges), cell)

        try:
            found = explore(self.k.full_index(lhs), place)
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        facts = [
            make_fact(self.model, cell, lhs, tuple(cell.at.values()), landmark, at, coef)
            for cell, (coef, at) in found
        ]
        return join(self.model, facts)

    def _place(self, landmark: str, reading: Reading, cell: Cell) -> tuple[Fraction, Forms]:
        """Where a landmark has the element that was read, and how many times it is that there."""
        for number in self.k.facts_for(landmark):
            fact = self.k.facts[number]
            if fact.rhs == reading.target and fact.coef:
                values = solve(fact.rhs_index, fact.ranges, reading.at, cell.ranges)
                if values is not None:
                    at = tuple(f.substitute(values) for f in fact.lhs_index)
                    return reading.coef / fact.coef, at
        raise Unrelated(landmark)

    def _sums(self, ref: str) -> Iterator[Reduced]:
        """Sums over ranks of a concatenation and of those of the other classes with the same summands."""
        for place, source in enumerate(self._sources(ref)):
            for reduced in self.k.partials.get(source, ()):
                family = {split_ref(m)[0]: self._partner(ref, place, m) for m in reduced.of}
                if all(family.values()):
                    try:
                        yield self.model.reduced_of(split_ref(ref)[0], family, reduced.axes, reduced.kind)
                    except NoDefinition:
                        continue

    def _partner(self, ref: str, place: int, source: str) -> str:
        """The concatenation of the same type in a class that has ``source`` at a place; or nothing."""
        alike = (name for name in self._joined[split_ref(source)[0]] if self._type(name) == self._type(ref))
        return next((n for n in alike if self._sources(n)[place : place + 1] == [source]), "")

    def _type(self, ref: str) -> TensorType:
        return self.model.ops[ref].type

    def _sources(self, ref: str) -> list[str]:
        """What the parts of a concatenation come from, in order."""
        try:
            links = self.k.links(ref) or ()
        except (Unfollowable, NoDefinition):
            return []
        return [str(self.k.facts[n].rhs) for n in links]
