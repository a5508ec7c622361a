"""Squares of square roots: norms that are squared, added over ranks and rooted again.

A clipped gradient's norm travels through the mesh as square roots of partial sums. The square of such a root
is the partial sum itself, by the law ``root``; it is a *hop*, followed like data movement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.proof.facts import Ref
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .knowledge import Knowledge
from .ledger import Unrelated
from .recipes import AlgebraRecipe, Use, tied
from .solving_facts import make_fact, solve

Forms = tuple[Affine, ...]


@dataclass(frozen=True)
class Link:
    """A tensor's element is ``coef`` times another's, through data movement."""

    ref: str
    at: Forms
    coef: Fraction
    source: str
    where: Forms


@dataclass(frozen=True)
class Square:
    """``coef`` times the radicand: what is opened, and the data movement on the way.

    Or times itself, if it is a ``number``: the norm of no rows, which a rank has of a tensor with fewer rows
    than ranks, is zero.
    """

    coef: Fraction
    source: Ref
    where: Forms
    opened: tuple[Use, ...]
    links: tuple[Link, ...]
    number: bool = False


class Roots:
    """Finds products of a square root with itself."""

    def __init__(self, knowledge: Knowledge, nonnegative: Callable[[str], bool]) -> None:
        self.k, self.model, self.nonnegative = knowledge, knowledge.model, nonnegative

    def relate(self, ref: str) -> bool:
        """Record a product of equal square roots as a hop; whether it is one on all its elements."""
        op = self.model.op(ref)
        if op is None or op.name != "multiply" or op.ins[0] != op.ins[1] or op.type.sort != "Real":
            return False
        operand = self.model.operands(ref)[0]
        whole = self.k.full_index(ref)
        try:
            found = explore(whole, lambda c: self._square(operand, tuple(c.at[s] for s in whole.ranges), c))
            if all(square.number for _, square in found):
                return False  # a number is no root
            hops = [self._hop(ref, cell, tuple(cell.at[s] for s in whole.ranges), s) for cell, s in found]
        except (Unrelated, Unfollowable, NoDefinition):
            return False
        self.k.hops[ref] = hops
        return True

    def _square(self, operand: str, index: Forms, cell: Cell) -> Square:
        links: list[Link] = []
        root, at, scale = self._follow(operand, index, cell, links)
        number = self.model.literal(root)
        if isinstance(number, Fraction):
            coef = scale * scale * number if number else Fraction(1)
            return Square(coef, root, at, (), tuple(links), number=True)
        op = self.model.ops[root]
        opened = [Use(root, at)]
        coef = scale * scale
        if op.name == "divide":
            numerator, divisor = self.model.operands(root)
            below, place, factor = self._follow(divisor, at, cell, links)
            value = self.model.literal(self._radicand(below))
            if not isinstance(value, Fraction) or value <= 0:
                raise Unfollowable(f"{root}: no root of a literal")
            opened.append(Use(below, place))
            opened.append(Use(self._radicand(below), place))
            root, at, scale = self._follow(numerator, at, cell, links)
            opened.append(Use(root, at))
            coef *= scale * scale / (factor * factor * value)
        radicand = self._radicand(root)
        if not self.nonnegative(radicand):
            raise Unfollowable(f"{radicand} may be negative")
        return Square(coef, radicand, at, tuple(opened), tuple(links))

    def _radicand(self, ref: str) -> str:
        if self.model.ops[ref].name != "sqrt":
            raise Unfollowable(f"{ref} is no square root")
        return self.model.operands(ref)[0]

    def _follow(self, ref: str, index: Forms, cell: Cell, links: list[Link]) -> tuple[str, Forms, Fraction]:
        """The arithmetic op behind data movement."""
        coef, source, at = self.k.source(ref, index, cell.ranges, across=False)
        if not isinstance(source, str) or self.model.op(source) is None:
            raise Unfollowable(f"{ref} is no result of an op")
        if source != ref:
            links.append(Link(ref, index, coef, source, tuple(at)))
        return source, tuple(at), coef

    def _hop(self, ref: str, cell: Cell, left: Forms, square: Square) -> int:
        fact = make_fact(self.model, cell, ref, left, square.source, square.where, square.coef)
        uses = [Use(ref, left), Use(square.source, square.where), *square.opened]
        instances = []
        for link in square.links:
            tie = make_fact(self.model, cell, link.ref, link.at, link.source, link.where, link.coef)
            instances.append(tied(self.k, tie, link.at, cell.ranges))
            uses += [Use(link.ref, link.at), Use(link.source, link.where)]
        goal = solve(fact.lhs_index, fact.ranges, left, cell.ranges)
        if goal is None:
            raise Unfollowable(f"{ref}: goal does not cover its own cell")
        expand = frozenset((ref, *(u.ref for u in square.opened)))
        recipe = AlgebraRecipe(expand, tuple(instances), tuple(uses), dict(cell.ranges), goal, roots=True)
        return self.k.add(fact, recipe, relates=False)
