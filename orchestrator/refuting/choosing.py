"""Of the edits that repair a plan, the one that people would make.

First those where the relation to the specification changes: an op whose operands are settled and whose result
is not, or, where a reduction is missing, a value that stands beside a collective or before such an op. A
factor that a line of its own wrote comes before all. Then by what is edited: what stands there and is wrong
before what is missing, and that before other operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op

from .edits import Edit
from .narrowing import MOVING
from .sites import Sites
from .standing import Standings

_KINDS = (
    "group",
    "drop",
    "swap",
    "change",
    "instead",
    "insert",
    "average",
    "scale",
    "literal",
    "operand",
    "add",
)
#: Kinds of edits that repair much, and explain little.
LATE = frozenset(["operand", "add"])
#: A reduction that is missing, perhaps with a factor.
_REDUCING = ("insert", "average")
#: Ops that only show a value again.
_RENAMED = frozenset(["convert", "reshape", "broadcast_in_dim"])


class Choice:
    """Orders edits of one plan."""

    def __init__(self, plan: Plan, sites: Sites, standings: Standings, wrong: Sequence[int] = ()) -> None:
        """``wrong`` are ranks at which an output is wrong."""
        self._plan, self._sites, self._standings = plan, sites, standings
        self._ranks = {c.name: plan.mesh.rank({a: lo for a, (lo, _) in c.box.items()}) for c in plan.classes}
        for rank in reversed(wrong):
            self._ranks[plan.class_of(plan.mesh.coordinates(rank)).name] = rank
        self._leading: dict[str, set[str]] = {}
        self._averaged: dict[tuple[str, str], bool] = {}
        self._number = {c.name: {op.out: i for i, op in enumerate(c.program.ops)} for c in plan.classes}

    def key(self, edit: Edit) -> tuple[bool, int, int, int, int, int]:
        """The smallest is the best: of edits where the relation changes the first, of others the last."""
        ops = [(cls, self._sites.made[cls][out]) for cls, out in edit.ops]
        at = self._number[ops[0][0]][ops[0][1].out]
        if edit.kind in ("drop", "literal") and all(self._sites.own_literal(cls, op) for cls, op in ops):
            unfit = at = 0
        elif edit.kind not in _REDUCING and all(self.deviates(cls, op) for cls, op in ops):
            unfit = 0
        elif edit.kind in _REDUCING:
            unfit = max(self._distance(cls, op) for cls, op in ops) + (edit.kind == "average")
        elif edit.kind == "instead":
            unfit = max(1, *(self._distance(cls, op) for cls, op in ops))
        else:
            unfit = 1 + max(self._distance(cls, op) for cls, op in ops) if edit.after else 2
        late = edit.kind in LATE and ops[0][1].name != "compare"
        return (
            late,
            unfit,
            0 if unfit or edit.kind in _REDUCING else at,
            _KINDS.index(edit.kind),
            -at,
            len(ops),
        )

    def deviates(self, cls: str, op: Op) -> bool:
        """Are the operands settled and the result not, nor what is made of it up to an output?"""
        return self._bad(cls, op.out) and all(self.settled(cls, v) for v in op.ins)

    def _bad(self, cls: str, value: str) -> bool:
        """Is the value not settled, and leads to an output through others that are not right?"""
        if cls not in self._leading:
            program = self._plan.by_class[cls].program
            found = self._leading[cls] = set(program.outputs.values())
            for op in reversed(program.ops):
                readers = self._sites.users[cls][op.out]
                on = op.out in found or any(r.out in found for r in readers)
                if on and (op.type.sort != "Real" or not self._right(cls, op.out)):
                    found.add(op.out)
                else:
                    found.discard(op.out)
        return value in self._leading[cls] and not self.settled(cls, value)

    def _right(self, cls: str, value: str) -> bool:
        """Is it the specification's, without a factor?"""
        return self.settled(cls, value) and any(
            s.coef == 1 for s in self._standings.of(self._ranks[cls], value)
        )

    def _distance(self, cls: str, op: Op) -> int:
        """0 beside a collective, 1 before an op at which the relation changes, else 2."""
        readers = self._sites.users[cls][op.out]
        if op.name in COLLECTIVES or any(r.name in COLLECTIVES for r in readers):
            return 0
        if any(self.deviates(cls, r) for r in readers):
            return 1
        return min((self._distance(cls, r) or 1 for r in readers if r.name in _RENAMED), default=2)

    def settled(self, cls: str, value: str) -> bool:
        """Is a value the specification's, at a rank where an output is wrong? Inputs and literals always are;
        integers and truth values if the specification has a tensor like it, counts as reals are."""
        op = self._sites.made[cls].get(value)
        if op is None or op.name == "constant":
            return True
        rank, of = self._ranks[cls], self._standings
        if op.type.sort != "Real" and op.type.shape:
            return of.alike(rank, value)
        if of.settled(rank, value) or not (of.lost(rank, value) or of.of(rank, value)):
            return True
        return self._to_be_averaged(cls, op)

    def _to_be_averaged(self, cls: str, op: Op) -> bool:
        """Is it the sum of settled parts, perhaps moved, and still the same multiple? The mean may follow."""
        key = (cls, op.out)
        if key not in self._averaged:
            summed = op.name in COLLECTIVES and op.attrs.get("kind") == "add"
            mine = {s.coef for s in self._standings.of(self._ranks[cls], op.out)}
            self._averaged[key] = (summed or op.name in MOVING) and all(
                self.settled(cls, v) and mine & {s.coef for s in self._standings.of(self._ranks[cls], v)}
                for v in op.ins
            )
        return self._averaged[key]
