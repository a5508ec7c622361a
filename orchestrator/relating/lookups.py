"""Look-ups of the specification that repeat an earlier one: of the same table, at a part of the same rows.

A model that embeds its tokens, and later some of them again (to predict a token further ahead, say), has two
look-ups of one element. A rank's are related to the first; what the specification makes of the second is only
found if that is said to be a part of the first, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine
from certificates.proof.facts import Fact
from smtlib_emit.errors import NoDefinition

from ..cells import Cell, Unfollowable, explore
from .access import same_attributes
from .joining import join
from .knowledge import Knowledge
from .ledger import Reading, Unrelated
from .solving_facts import make_fact, solve

#: Earlier look-ups of one table that one is compared with.
MAX_EARLIER = 8


class Lookups:
    """Relates look-ups of the specification to earlier ones."""

    def __init__(self, knowledge: Knowledge, propose: Callable[[list[Fact]], bool]) -> None:
        """``propose`` keeps guessed facts about one tensor if all of them are proved."""
        self.k, self.model, self.propose = knowledge, knowledge.model, propose
        self._earlier: dict[str, list[str]] = {}

    def relate(self, ref: str) -> bool:
        """Relate a look-up of the specification, once, in its order; whether it repeats another one."""
        op = self.model.op(ref)
        if op is None or op.name != "gather" or not self.k.is_atom(ref) or ref in self.k.by_lhs:
            return False
        earlier = self._earlier.setdefault(self.model.operands(ref)[0], [])
        for other in earlier:
            facts = self._facts(ref, other) if same_attributes(op, self.model.ops[other]) else []
            if facts and self.propose(facts):
                return True
        if len(earlier) < MAX_EARLIER:
            earlier.append(ref)
        return False

    def _facts(self, ref: str, other: str) -> list[Fact]:
        """Where another look-up has each element; empty if it lacks one."""
        whole = self.k.full_index(ref)
        try:
            found = explore(whole, lambda cell: self._place(ref, other, list(cell.at.values()), cell))
        except (Unrelated, Unfollowable, NoDefinition):
            return []
        facts = [
            make_fact(self.model, cell, ref, tuple(cell.at.values()), other, at, Fraction(1))
            for cell, at in found
        ]
        return join(self.model, facts)

    def _place(self, ref: str, other: str, at: Sequence[Affine], cell: Cell) -> list[Affine]:
        op, indices = self.model.ops[ref], self.model.operands(ref)[1]
        axis, batch = op.integer("axis"), op.integer("batch_dims")
        after = axis + len(self.model.tensors.type(indices).shape) - batch
        row = self.k.read(indices, [*at[:batch], *at[axis:after]], cell.ranges)
        there = self._row(self.model.operands(other)[1], row, cell)
        if there[:batch] != list(at[:batch]):
            raise Unrelated(ref)  # another table of the batch
        return [*at[:axis], *there[batch:], *at[after:]]

    def _row(self, indices: str, row: Reading, cell: Cell) -> list[Affine]:
        """Where a tensor of row numbers has the element that was read."""
        if row.target == indices and row.coef == 1:
            return list(row.at)
        for number in self.k.facts_for(indices):
            fact = self.k.facts[number]
            if (fact.rhs, fact.coef) == (row.target, row.coef):
                values = solve(fact.rhs_index, fact.ranges, row.at, cell.ranges)
                if values is not None:
                    return [f.substitute(values) for f in fact.lhs_index]
        raise Unrelated(indices)
