"""How the programs of a plan meet: collectives by their numbers, alike in whole groups (obligation 14).

Messages are only collected here; `rules/messages.py` says which ones fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from ..errors import need
from ..language.ops import COLLECTIVES, MESSAGES, Op
from ..language.plan import Group, Message, Plan, RankClass, apart


def meetings(classes: Mapping[str, RankClass]) -> tuple[dict[int, dict[str, Op]], dict[int, Message]]:
    """The collectives and the messages of all classes, by their numbers."""
    found: dict[int, dict[str, Op]] = {}
    messages: dict[int, Message] = {}
    for cls in classes.values():
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                here = found.setdefault(op.attrs["seq"], {})
            elif op.name in MESSAGES:
                here = getattr(messages.setdefault(op.attrs["seq"], Message({}, {})), op.name)
            else:
                continue
            need(cls.name not in here, f"class {cls.name}: op {op.result}: its seq occurs twice")
            here[cls.name] = op
    both = found.keys() & messages.keys()
    need(not both, f"message {min(both, default=0)} is a rendezvous as well")
    return found, messages


def check_meetings(plan: Plan) -> None:
    """Every rendezvous has one op, group, attributes and operand type; whole groups take part."""
    for seq, ops in plan.rendezvous.items():
        alike = {(o.name, tuple(sorted(o.attrs.items())), o.ins) for o in ops.values()}
        need(len(alike) == 1, f"rendezvous {seq}: classes disagree on op, group, attributes or operand type")
        group = plan.groups[next(iter(ops.values())).attrs["group"]]
        need(
            len(ops) == len(plan.classes) or _whole(plan, group, ops),
            f"rendezvous {seq}: a member of a group is absent",
        )


def _whole(plan: Plan, group: Group, ops: Mapping[str, Op]) -> bool:
    """Has every instance of a group all its members among some classes, or none of them?"""
    if group.factorised:
        kept = [i for i, (a, _) in enumerate(plan.mesh) if a not in group.axes]
        rest = {c: tuple(cls.box[i] for i in kept) for c, cls in plan.classes.items()}
        return all(apart(rest[c], rest[d]) for c in ops for d in rest.keys() - ops.keys())
    owner: dict[int, str] = {}
    for cls in plan.classes.values():
        for point in product(*(range(lo, hi) for lo, hi in cls.box)):
            rank = 0
            for i, (_, n) in zip(point, plan.mesh, strict=True):
                rank = rank * n + i
            owner[rank] = cls.name
    return all(len({owner[r] in ops for r in line}) == 1 for line in group.ranks)
