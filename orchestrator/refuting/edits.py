"""Single edits of a plan: ops of one line or one place are replaced, in every rank class that has them.

An edit changes, drops or inserts one thing. It is data: :meth:`Edit.apply` makes the edited plan, of which
nothing is known until it is evaluated and proved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Group, Plan
from certificates.plan.program import Op, Program

#: Where an op is named: rank class and result.
Place = tuple[str, str]
Kind = Literal[
    "drop", "change", "group", "scale", "insert", "average", "instead", "swap", "literal", "operand", "add"
]
FRESH = "%new"


@dataclass(frozen=True)
class Edit:
    """``rewrites`` gives, by class and result, the ops that take an op's place; the last makes its result.

    ``what`` is said to a person, as an order. ``ops`` are the ops that it is about, by class and result.
    """

    kind: Kind
    what: str
    ops: tuple[Place, ...]
    rewrites: Mapping[str, Mapping[str, tuple[Op, ...]]]
    groups: Mapping[str, Group] = field(default_factory=dict)
    #: Is something missing after the ops (else they are wrong themselves)?
    after: bool = False

    def apply(self, plan: Plan) -> Plan:
        """The edited plan; its results keep their names, new ones are not numbered yet."""
        classes = tuple(
            dataclasses.replace(c, program=self._rewritten(c.program, self.rewrites[c.name]))
            if c.name in self.rewrites
            else c
            for c in plan.classes
        )
        return dataclasses.replace(plan, classes=classes, groups={**plan.groups, **self.groups})

    @staticmethod
    def _rewritten(program: Program, rewrites: Mapping[str, tuple[Op, ...]]) -> Program:
        ops = tuple(new for op in program.ops for new in rewrites.get(op.out, (op,)))
        return dataclasses.replace(program, ops=ops)


def numbered(plan: Plan) -> Plan:
    """The plan with results numbered in order, so that it can be written and checked."""

    def program(old: Program) -> Program:
        names = {op.out: f"%{i}" for i, op in enumerate(old.ops)}
        ops = tuple(
            dataclasses.replace(op, out=names[op.out], ins=tuple(names.get(v, v) for v in op.ins))
            for op in old.ops
        )
        return Program(old.inputs, ops, {n: names.get(v, v) for n, v in old.outputs.items()})

    classes = tuple(dataclasses.replace(c, program=program(c.program)) for c in plan.classes)
    return dataclasses.replace(plan, classes=classes)


def next_seq(plan: Plan) -> int:
    """A rendezvous number that no collective has."""
    return 1 + max(
        (op.integer("seq") for c in plan.classes for op in c.program.ops if op.name in COLLECTIVES),
        default=-1,
    )


def replaced(
    ops: Iterable[tuple[str, Op]], new: Callable[[str, Op, int], Sequence[Op] | None]
) -> dict[str, dict[str, tuple[Op, ...]]] | None:
    """Rewrites of ops, given by class; the third argument counts those of a class. ``None`` if one fails."""
    found: dict[str, dict[str, tuple[Op, ...]]] = {}
    for cls, op in ops:
        mine = found.setdefault(cls, {})
        made = new(cls, op, len(mine))
        if made is None:
            return None
        mine[op.out] = tuple(made)
    return found


def followed(op: Op, count: int, new: Callable[[str], Sequence[Op]]) -> tuple[Op, ...]:
    """The op, then what is made of its result; the last of this takes the result's name."""
    hidden = f"{FRESH}{count}.{op.out}"
    rest = list(new(hidden))
    return (dataclasses.replace(op, out=hidden), *rest[:-1], dataclasses.replace(rest[-1], out=op.out))
