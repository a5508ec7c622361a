"""Time axes (obligation 20): a rank runs its program once per coordinate, and has each tensor once.

The coordinates of `plan.mesh` begin with the time axes; a *point* is a rank at one time. So relations never
mention time and hold on all of it, programs that run on one rank at different times agree on its tensors, and
runs are joined by sums and stacks only. A state that is cut over time would be provable, and impossible.
"""

from __future__ import annotations

from itertools import combinations

from ..errors import Rejected
from ..language.plan import Plan, apart

OVER_TIME = ("all_reduce", "all_gather")


def check_time(plan: Plan) -> None:
    for group in plan.groups.values():
        if plan.time and not group.factorised:
            raise Rejected(20, "with time axes a group is the fibres of its axes", f"group {group.name[:60]}")
    for body in (plan, *plan.functions.values()):
        for seq, ops in body.rendezvous.items():
            op = next(iter(ops.values()))
            if plan.groups[op.attrs["group"]].runs and op.name not in OVER_TIME:
                raise Rejected(20, f"{op.name} joins runs", f"rendezvous {seq}")
    for relation in (*plan.inputs, *plan.outputs):
        said = {s for p in relation.pieces for f in p.spec for s in f.names()}
        if not (said | set(relation.reduce[1] if relation.reduce else ())).isdisjoint(plan.time):
            raise Rejected(20, "a relation mentions time", f"{relation.spec[:60]} ~ {relation.plan[:60]}")
    space = [i for i, (a, _) in enumerate(plan.mesh) if a not in plan.time]
    rest = {c: tuple(cls.box[i] for i in space) for c, cls in plan.classes.items()}
    for one, two in combinations(plan.classes, 2) if plan.time else ():
        for side in ("inputs", "outputs") if not apart(rest[one], rest[two]) else ():
            held = [getattr(plan.program(c), side).keys() for c in (one, two)]
            for name in held[0] & held[1]:
                if _stated(plan, side, one, name) != _stated(plan, side, two, name):
                    raise Rejected(
                        20,
                        "two programs of one rank have different tensors of this name",
                        f"{name[:60]} of classes {one} and {two}",
                    )


def _stated(plan: Plan, side: str, cls: str, name: str) -> object:
    """Type of a tensor, and what the relations say of it."""
    program, relations = plan.program(cls), getattr(plan, side)
    return program.types[name if side == "inputs" else program.outputs[name]], {
        (r.spec, r.coef, r.reduce, p.sizes, p.plan, p.spec)
        for r in relations
        for p in r.pieces
        if (r.plan, p.cls) == (name, cls)
    }
