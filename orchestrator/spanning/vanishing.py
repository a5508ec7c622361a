"""Parts of the specification's sums that a mask of positions makes zero: blocks that no rank computes.

A causal ring leaves out the blocks behind its rows. In the specification their elements are products with a
truth value that is 0 there, as is seen by comparing positions box by box.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction

from certificates.plan.affine import Range, fold
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable
from ..ghosts.hops import LOCAL, Opening
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe, Unrelated
from ..relating.movement import step
from ..relating.positions import Positions
from ..relating.recipes import AlgebraRecipe, Instance, Use, tied
from ..relating.solving_facts import literal_ref, make_fact, solve
from .terms import Forms, Leaf, Sum, Term, Trace

#: Ops gone through from an element to the mask that makes it zero.
MAX_DEPTH = 12


class Vanishing:
    """Finds elements of the specification that are zero on a box."""

    def __init__(self, knowledge: Knowledge, positions: Positions) -> None:
        self.k, self.model, self.positions = knowledge, knowledge.model, positions
        self._masked: dict[str, bool] = {}

    def without(self, terms: Sum, ranges: Mapping[str, Range]) -> Sum | None:
        """A sum without those of its terms that are zero everywhere; ``None`` if there are none."""
        if not self.may_be(terms):
            return None
        zeros = [self._zero(t, ranges) for t in terms]
        if not any(zeros):
            return None
        return [t if zero is None else zero for t, zero in zip(terms, zeros, strict=True)]

    def may_be(self, terms: Sum) -> bool:
        """Is any of the elements one of those that masks make zero?"""
        return any(self._may_vanish(leaf.ref) for t in terms for leaf in t.leaves())

    def _zero(self, term: Term, ranges: Mapping[str, Range]) -> Term | None:
        """The term, times zero, if an element of it is zero everywhere on its box."""
        if not term.coef:
            return None
        here = {**ranges, **term.box}
        for leaf in term.leaves():
            if isinstance(leaf.ref, str) and self._may_vanish(leaf.ref) and leaf in term.factors:
                opened: dict[str, Instance | None] = {}
                with suppress(Cut, Digits):  # here it is zero, and there it is not
                    if self._value(leaf.ref, leaf.at, here, opened, 0) != 0:
                        continue
                    fact = self._stated(leaf, here, opened)
                    there = Trace(instances=(fact,), uses=(Use(leaf.ref, leaf.at),))
                    return term.scaled(Fraction(0)).through(there)
        return None

    def _stated(
        self, leaf: Leaf, ranges: Mapping[str, Range], opened: Mapping[str, Instance | None]
    ) -> Instance:
        """The fact that an element is zero, and its instance."""
        assert isinstance(leaf.ref, str)
        cell = Cell(ranges, {})
        zero = make_fact(
            self.model, cell, leaf.ref, leaf.at, literal_ref("Real", Fraction(0)), (), Fraction(1)
        )
        opening = Opening(self.k, cell, frozenset(r for r, known in opened.items() if known is None), ())
        opening.open(leaf.ref, leaf.at)
        goal = solve(zero.lhs_index, zero.ranges, leaf.at, ranges)
        if goal is None:
            raise Unfollowable(f"{leaf.ref}: a fact does not cover its own cell")
        known = [i for i in opened.values() if i is not None]
        recipe = AlgebraRecipe(
            frozenset(opening.expand), tuple(dict.fromkeys([*opening.instances, *known])),
            tuple(dict.fromkeys(opening.uses)), opening.ranges, goal,
        )  # fmt: skip
        number = self.k.add(zero, recipe, relates=False)
        return Instance(number, tuple(goal[s] for s, _, _ in zero.symbols))

    def _value(
        self, ref: str, at: Forms, ranges: Mapping[str, Range], opened: dict[str, Instance | None], depth: int
    ) -> int | None:
        """0 or 1 where an element is that on the whole box; ``opened`` are the ops that show it, with what is
        known of those that compare positions. Raises a split of the box."""
        while (op := self.model.op(ref)) is not None and op.name in LOCAL:
            _, source, moved = step(self.model, ref, at, ranges)
            ref, at = str(source), tuple(fold(f, ranges) for f in moved)
        if op is None or depth > MAX_DEPTH or not self._may_vanish(ref):
            return None
        if op.name == "compare":
            return self._compared(ref, at, ranges, opened)
        ins = self.model.operands(ref)
        inner = ins[:1] if op.name == "divide" else ins
        values = [self._value(v, at, ranges, opened, depth + 1) for v in inner]
        opened[ref] = None
        match op.name:
            case "multiply" | "and":
                return 0 if 0 in values else 1 if values == [1, 1] else None
            case "add" | "subtract":
                return 0 if values == [0, 0] else None
            case "divide" | "negate":
                return 0 if values[0] == 0 else None
            case "not":
                return None if values[0] is None else 1 - values[0]
            case "convert":
                return values[0]
        return None

    def _compared(
        self, ref: str, at: Forms, ranges: Mapping[str, Range], opened: dict[str, Instance | None]
    ) -> int | None:
        sums: set[Ref] = {ref}
        try:
            truth = self.positions.truth(ref, at, ranges, sums)
            cell = Cell(ranges, {})
            fact = make_fact(self.model, cell, ref, at, literal_ref("Bool", truth), (), Fraction(1))
        except (Unrelated, Unfollowable, NoDefinition):
            return None
        self.k.add(fact, LayoutRecipe(frozenset(sums)), relates=False)
        opened[ref] = tied(self.k, fact, at, ranges)
        return int(truth)

    def _may_vanish(self, ref: object) -> bool:
        """Whether a comparison of positions is among what an element of the specification is made of."""
        if not isinstance(ref, str) or not ref.startswith("s:"):
            return False
        if ref not in self._masked:
            self._masked[ref] = False
            op = self.model.op(ref)
            if op is not None and op.name == "compare":
                types = {self.model.tensors.type(v).sort for v in self.model.operands(ref)}
                self._masked[ref] = types == {"Int"}
            elif op is not None:
                wanted = op.name in _PASS | LOCAL
                ins = self.model.operands(ref)
                self._masked[ref] = wanted and any(map(self._may_vanish, ins))
        return self._masked[ref]


_PASS = frozenset(("multiply", "and", "add", "subtract", "divide", "negate", "not", "convert"))
