"""Of the edits that repair a plan, the one that people would make.

First those that no right output contradicts: what is right rests on no op that is edited, and a line that is
wrong makes nothing that is right beside it. Then those where the relation to the specification changes: an op
whose operands are settled and whose result is not, or, where a reduction is missing, a value that stands
beside a collective or before such an op. A factor that a line of its own wrote comes before all. Then by
what is edited: what stands there and is wrong before what is missing, and that before other operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Attr, Loc, Op

from .edits import Edit
from .narrowing import MOVING
from .sites import Sites, literal_of
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
#: Ops between a sum over ranks and the division that makes it a mean.
_PASSING = MOVING | COLLECTIVES | {"dot_general"}


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

    def key(self, edit: Edit) -> tuple[int, bool, int, int, int, int, int]:
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
        elif edit.kind == "drop" and all(self.factor(cls, op) is not None for cls, op in ops):
            unfit = 1  # a factor that stands there comes before one that may be missing
        else:
            unfit = 1 + max(self._distance(cls, op) for cls, op in ops) if edit.after else 2
        return (
            self._against(edit, ops),
            edit.kind not in _REDUCING and self.right_beside(edit),
            unfit,
            0 if unfit or edit.kind in _REDUCING else at,
            _KINDS.index(edit.kind),
            -at,
            len(ops),
        )

    def right_beside(self, edit: Edit) -> bool:
        """Does the line of an edit make right ones too: ops on which right outputs rest alone, or the same
        factor for the specification?"""
        ops = [(cls, self._sites.made[cls][out]) for cls, out in edit.ops]
        if self._sites.right_beside(ops):
            return True
        factors = {(op.loc, op.name, self.factor(cls, op)) for cls, op in ops}
        return edit.kind in ("drop", "literal") and factors <= self._given

    def is_given(self, edit: Edit) -> bool:
        """Do ops make tensors of the specification, no multiples, by factors that it has there, or by 1?"""
        return all(self._is_given(cls, self._sites.made[cls][out]) for cls, out in edit.ops)

    def _is_given(self, cls: str, op: Op) -> bool:
        factor, made = self.factor(cls, op), self._specified
        alike = [s.spec for s in self._standings.of(self._ranks[cls], op.out) if s.coef == 1 and not s.axes]
        given = {_factor(made[v], lambda v: literal_of(made, v)) for v in alike if v in made}
        return bool(alike) and factor in {Fraction(1), *given}

    @cached_property
    def _specified(self) -> dict[str, Op]:
        """The specification's ops by result."""
        return {op.out: op for op in self._plan.specification.ops}

    @cached_property
    def _given(self) -> set[tuple[Loc | None, str, Fraction | None]]:
        """Lines that make the specification multiply, and its factors."""
        made = self._specified
        found = [
            (op, _factor(op, lambda v: literal_of(made, v))) for op in made.values() if op.loc is not None
        ]
        return {(op.loc, op.name, factor) for op, factor in found if factor is not None}

    def factor(self, cls: str, op: Op) -> Fraction | None:
        """The literal by which an op multiplies an operand or its inverse; ``None`` if it has none."""
        return _factor(op, lambda v: self._sites.literal(cls, v))

    def is_mean(self, edit: Edit) -> bool:
        """Does it drop a division by the number of ranks over which a sum stands before or after it?"""
        return edit.kind == "drop" and all(
            self._makes_a_mean(cls, self._sites.made[cls][out]) for cls, out in edit.ops
        )

    def _makes_a_mean(self, cls: str, op: Op) -> bool:
        factor = self.factor(cls, op)
        return factor is not None and 1 / factor in {
            *self._sums(cls, op, back=True),
            *self._sums(cls, op, back=False),
        }

    def _sums(self, cls: str, op: Op, *, back: bool) -> Iterator[int]:
        """Ranks of the sums next to an op on a side: of the nearest, then of more of them together."""
        ranks = 1
        while True:
            if back:
                made = [self._sites.made[cls][v] for v in op.ins if v in self._sites.made[cls]]
                near = [o for o in made if o.name != "constant" and self._sites.literal(cls, o.out) is None]
            else:
                near = self._sites.users[cls][op.out]
            if len(near) != 1 or not (near[0].name in _PASSING or near[0].attrs.get("kind") == "add"):
                return
            (op,) = near
            if op.name in COLLECTIVES:
                ranks *= self._plan.groups[op.text("group")].size
                yield ranks

    def _against(self, edit: Edit, ops: Sequence[tuple[str, Op]]) -> int:
        """What speaks against an edit: nothing 0, that right outputs rest on its ops too 2, that its kind
        repairs much 3, but 1 where the first op is read that only wrong outputs rest on."""
        broad = any(self._broad(cls, op.out) for cls, op in ops)
        if edit.kind not in LATE or ops[0][1].name == "compare":
            return 2 if broad else 0
        first = all(self._broad(cls, v) for cls, op in ops for v in op.ins)
        return 1 if edit.kind == "operand" and first and not broad else 3

    def _broad(self, cls: str, value: str) -> bool:
        """Does a right output rest on a value?"""
        return bool(self._sites.reach[cls][value] & ~self._sites.wrong)

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


def _factor(op: Op, literal: Callable[[str], Attr | None]) -> Fraction | None:
    found = list[Fraction]()
    for i, v in enumerate(op.ins if op.name in ("multiply", "divide") else ()):
        value = literal(v)
        if isinstance(value, str) and value not in ("0", "inf", "-inf"):
            found.append(1 / Fraction(value) if op.name == "divide" and i else Fraction(value))
    return math.prod(found, start=Fraction(1)) if found else None
