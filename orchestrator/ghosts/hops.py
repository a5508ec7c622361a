"""States what ghosts equal: facts that are followed like data movement, with the way to prove each.

A tensor and its ghost are opened down to the letters that both are made of. Where nothing is summed the law
``field`` says that they are equal, else polynomials do. If that fails, letters that are sums are opened too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from fractions import Fraction

from certificates.plan.affine import Affine, Range, fold
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Cut, Digits, Unfollowable, explore
from ..relating.access import access
from ..relating.knowledge import Knowledge
from ..relating.ledger import LayoutRecipe, Unrelated
from ..relating.movement import step
from ..relating.recipes import AlgebraRecipe, Instance, Use, tied
from ..relating.solving_facts import make_fact, solve
from ..staging.algebra import AlgebraBuilder
from .following import Followed

#: Data movement of one rank's own.
LOCAL = frozenset(("broadcast_in_dim", "reshape", "transpose", "slice", "concatenate"))
#: Elements that the stage of one ghost may open.
MAX_OPENED = 2000
Forms = tuple[Affine, ...]


class Hops:
    """Records the ghosts of a plan as hops."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.k, self.model = knowledge, knowledge.model

    def declare(self, owner: str, followed: Followed) -> None:
        """The ghosts of one program, in its order."""
        ghosts, seen, sums = (
            {f"{owner}:{n}" for n in of} for of in (followed.ghosts, followed.seen, followed.sums)
        )
        for hop in followed.hops:
            ref, ghost = f"{owner}:{hop.name}", f"{owner}:{hop.ghost}"
            letters = {f"{owner}:{n}" for n in hop.letters}
            opened = {f"{owner}:{n}" for n in hop.opened}
            for opens, ends in (
                ((ghosts - letters) | seen | opened, letters | opened),
                (ghosts | seen | sums, opened),
            ):
                numbers = self._stated(ref, ghost, opens, ends, given=hop.given)
                if numbers:
                    self.k.hops[ref] = numbers
                    break

    def _stated(
        self, ref: str, ghost: str, opens: Collection[str], ends: Collection[str], *, given: bool
    ) -> list[int]:
        """The facts, piece by piece; none if a stage cannot be built."""
        whole = self.k.full_index(ref)
        known = len(self.k.facts)
        numbers: list[int] = []
        try:
            for cell, opened in explore(whole, lambda c: self._opened(ref, ghost, c, opens, ends, given)):
                at = tuple(cell.at[s] for s in whole.ranges)
                fact = make_fact(self.model, cell, ref, at, ghost, at, Fraction(1))
                goal = solve(fact.lhs_index, fact.ranges, at, cell.ranges)
                if goal is None:
                    raise Unfollowable(f"{ref}: goal does not cover its own cell")
                recipe = AlgebraRecipe(
                    frozenset(opened.expand), tuple(dict.fromkeys(opened.instances)),
                    tuple(dict.fromkeys(opened.uses)), opened.ranges, goal, field=True,
                )  # fmt: skip
                number = self.k.add(fact, recipe, relates=False)
                numbers.append(number)
                AlgebraBuilder(self.k, number, recipe).build("")
        except (Unrelated, Unfollowable, NoDefinition):
            for number in reversed(numbers):
                if number >= known:
                    self.k.drop(number)
                    self.k.recipes[number] = LayoutRecipe()
            return []
        return numbers

    def _opened(
        self, ref: str, ghost: str, cell: Cell, opens: Collection[str], ends: Collection[str], given: bool
    ) -> Opening:
        at = tuple(cell.at[s] for s in self.k.full_index(ref).ranges)
        opening = Opening(self.k, cell, opens, ends)
        try:
            if given:
                opening.uses.append(Use(ref, at))
            elif self.model.ops[ref].name in LOCAL:
                opening.element(ref, at)
            else:
                opening.open(ref, at)
            opening.element(ghost, at)
        except (Cut, Digits) as split:
            if split.symbol not in cell.ranges:
                raise Unfollowable(f"{ref}: a sum is not uniform") from split
            raise
        return opening


class Opening:
    """What is opened of a tensor and of its ghost, on a box: tensors that are in ``opens``, and what others
    equal, but those in ``ends``."""

    def __init__(
        self, knowledge: Knowledge, cell: Cell, opens: Collection[str], ends: Collection[str]
    ) -> None:
        self.k, self.model, self.opens, self.ends = knowledge, knowledge.model, opens, ends
        self.box, self.ranges = cell.ranges, dict[str, Range](cell.ranges)
        self.expand: set[str] = set()
        self.instances: list[Instance] = []
        self.uses: list[Use] = []
        self._names = itertools.count()

    def open(self, ref: str, at: Forms) -> None:
        """An element by the definition of its op."""
        op = self.model.ops[ref]
        ins = self.model.operands(ref)
        pattern = access(op, [self.model.tensors.type(v).shape for v in ins])
        if pattern is None or len(self.uses) > MAX_OPENED:
            raise Unfollowable(f"{ref} cannot be opened")
        self.expand.add(ref)
        self.uses.append(Use(ref, at))
        mesh = len(self.model.tensors.mesh_axes(ref))
        place = dict(zip(pattern.out, at[mesh:], strict=True))
        for name, size in pattern.summed:
            bound = f"b{next(self._names)}"
            self.ranges[bound] = (0, size)
            place[name] = Affine.symbol(bound) if size > 1 else Affine(0)
        for v, names in zip(ins, pattern.operands, strict=True):
            self.element(v, (*at[:mesh], *(place[n] for n in names)))

    def _is_part(self, ref: str) -> bool:
        """A part of a letter is read as that, here, whatever else it equals."""
        return self.model.ops[ref].name == "slice" and ref in self.opens

    def element(self, ref: str, at: Forms) -> None:
        """An element where it is read: moved from where it is computed, or equal to a ghost."""
        source, there = ref, tuple(fold(f, self.ranges) for f in at)
        start = there
        passed: set[str] = set()
        while True:
            if source in self.ends:
                break
            if source in self.k.hops and not self._is_part(source):
                found = self.k.through(self.k.hops[source], there, self.ranges)
                if found is None:
                    raise Unfollowable(f"{source}: no hop covers {there}")
                source, there = str(found.target), found.at
            elif (op := self.model.op(source)) is not None and op.name in LOCAL:
                try:
                    _, moved, index = step(self.model, source, there, self.ranges)
                except (Cut, Digits) as split:
                    if split.symbol in self.box:
                        raise
                    break  # a sum that would be cut reads what is moved as a letter of its own
                passed.add(source)
                source, there = str(moved), tuple(fold(f, self.ranges) for f in index)
            else:
                break
        if source != ref:
            fact = make_fact(self.model, Cell(self.ranges, {}), ref, start, source, there, Fraction(1))
            self.instances.append(tied(self.k, fact, start, self.ranges, frozenset(passed)))
            self.uses.append(Use(ref, start))
        if source not in self.opens or self.model.literal(source) is not None:
            self.uses.append(Use(source, there))
            return
        self.open(source, there)
