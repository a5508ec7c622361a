"""Of the edits that repair a plan, the one that people would make.

First those where the relation to the specification changes: an op whose operands are settled and whose result
is not, or, where something is missing, a value that stands beside a collective or before such an op. Then by
what is edited: what stands there and is wrong before what is missing, and that before other operands.
"""

from __future__ import annotations

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op

from .edits import Edit
from .sites import Sites
from .standing import Standings

_KINDS = ("group", "drop", "swap", "change", "insert", "scale", "literal", "operand", "add")
#: Kinds of edits that repair much, and explain little.
LATE = frozenset(["operand", "add"])


class Choice:
    """Orders edits of one plan."""

    def __init__(self, plan: Plan, sites: Sites, standings: Standings) -> None:
        self._plan, self._sites, self._standings = plan, sites, standings
        self._number = {c.name: {op.out: i for i, op in enumerate(c.program.ops)} for c in plan.classes}

    def key(self, edit: Edit) -> tuple[bool, int, int, int, int]:
        """The smallest is the best; of equals, the one that is about the most ops, then the last."""
        ops = [(cls, self._sites.made[cls][out]) for cls, out in edit.ops]
        if edit.after:
            unfit = max(self._distance(cls, op) for cls, op in ops)
        else:
            unfit = 0 if all(self.deviates(cls, op) for cls, op in ops) else 2
        at = self._number[ops[0][0]][ops[0][1].out]
        late = edit.kind in LATE and ops[0][1].name != "compare"
        return late, unfit, _KINDS.index(edit.kind), -at, len(ops)

    def deviates(self, cls: str, op: Op) -> bool:
        """Are the operands settled and the result not?"""
        return not self.settled(cls, op.out) and all(self.settled(cls, v) for v in op.ins)

    def _distance(self, cls: str, op: Op) -> int:
        """0 beside a collective, 1 before an op at which the relation changes, else 2."""
        readers = self._sites.users[cls][op.out]
        if op.name in COLLECTIVES or any(r.name in COLLECTIVES for r in readers):
            return 0
        return 1 if any(self.deviates(cls, r) for r in readers) else 2

    def settled(self, cls: str, value: str) -> bool:
        """Is a value of the class's first rank the specification's? Integers and truth values always are."""
        if self._sites.types[cls][value].sort != "Real" or value not in self._sites.made[cls]:
            return True
        box = self._plan.by_class[cls].box
        rank = self._plan.mesh.rank({a: lo for a, (lo, _) in box.items()})
        of = self._standings
        return of.settled(rank, value) or not (of.lost(rank, value) or of.of(rank, value))
