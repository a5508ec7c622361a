"""Time axes: each rank runs its program once per coordinate, and holds each tensor once, not once per run.

So relations never mention time and hold on all of it, and programs that follow one another on a rank agree on
its tensors. What joins runs is a group over time axes: a sum (accumulation) or a stack of results.
"""

from __future__ import annotations

import itertools
import math

from certificates.plan.plan import Plan, RankClass, Relation

from ..errors import FormatError
from .ops import COLLECTIVES, MESSAGES
from .program import Program

#: What may join the runs of a rank.
OVER_TIME = frozenset(("all_reduce", "all_gather"))


def check_version(plan: Plan) -> None:
    """Version 1 has neither time axes nor messages nor a schedule, version 2 no packed rows, version 3 no
    functions at a slice."""
    packed = any(p.rows for p in (plan.specification, *(c.program for c in plan.classes)))
    if plan.version < 4 and any(f.along for f in plan.functions.values()):
        raise FormatError("functions at a slice need version 4 of the format")
    if plan.version < 3 and packed:
        raise FormatError("packed rows need version 3 of the format")
    if plan.version == 1 and (plan.mesh.time or plan.schedule or has_messages(plan)):
        raise FormatError("time axes, messages and schedules need version 2 of the format")


def needed_version(plan: Plan) -> int:
    """Version 2 also where a class lacks an output that a relation speaks of, version 3 with packed rows,
    version 4 with functions at a slice."""
    if any(f.along for f in plan.functions.values()):
        return 4
    if any(p.rows for p in (plan.specification, *(c.program for c in plan.classes))):
        return 3
    named = {r.plan for r in plan.outputs}
    apart = any(not named <= c.program.outputs.keys() for c in plan.classes)
    return 2 if plan.mesh.time or apart or has_messages(plan) else 1


def has_messages(plan: Plan) -> bool:
    return any(op.name in MESSAGES for cls in plan.classes for op in cls.program.ops)


def check_groups(plan: Plan) -> None:
    """A group joins runs of a rank, or ranks; then, with time axes, it is the fibres of mesh axes."""
    mesh = plan.mesh
    if tuple(mesh.axes)[: len(mesh.time)] != mesh.time:
        raise FormatError("time axes come first")
    for name, group in plan.groups.items():
        over = [a for a in group.axes if a in mesh.time]
        if group.steps:
            if len(over) != len(group.axes) or group.steps != math.prod(mesh.axes[a] for a in over):
                raise FormatError(f"group {name} of {group.steps} runs is not one over time axes only")
        elif mesh.time and (over or group.ranks != mesh.rank_lists(group.axes)):
            raise FormatError(f"with time axes a group is the fibres of mesh axes, and {name} is not")


def check_time(plan: Plan) -> None:
    """Collectives, and what relations say of time; raises :class:`FormatError`."""
    functions = [p for f in plan.functions.values() for p in f.classes.values()]
    for program in (*(c.program for c in plan.classes), *functions):
        _check_collectives(plan, program)
    for side, relations in (("input", plan.inputs), ("output", plan.outputs)):
        for relation in relations:
            _check_timeless(plan, relation, side)
    for one, two in itertools.combinations(plan.classes, 2) if plan.mesh.time else ():
        if all(one.box[a][0] < two.box[a][1] and two.box[a][0] < one.box[a][1] for a in plan.mesh.space):
            _check_alike(plan, one, two)


def _check_collectives(plan: Plan, program: Program) -> None:
    for op in program.ops:
        if op.name in COLLECTIVES and op.name not in OVER_TIME and plan.groups[op.text("group")].steps:
            raise FormatError(
                f"{op.name} {op.out} runs over time: only {' and '.join(sorted(OVER_TIME))} may"
            )


def _check_timeless(plan: Plan, relation: Relation, side: str) -> None:
    forms = (f for piece in relation.pieces for f in piece.spec)
    said = {s for f in forms for s in f.symbols} | set(relation.reduce[1] if relation.reduce else ())
    if said & set(plan.mesh.time):
        what = f"{side} relation {relation.spec} ~ {relation.plan}"
        raise FormatError(f"{what} mentions the time axis {min(said & set(plan.mesh.time))}")


def _check_alike(plan: Plan, one: RankClass, two: RankClass) -> None:
    """Two programs of one rank, at different times: tensors that both have are the same tensors."""
    for side, relations in (("input", plan.inputs), ("output", plan.outputs)):
        tables = [c.program.inputs if side == "input" else c.program.outputs for c in (one, two)]
        for name in tables[0].keys() & tables[1].keys():
            types = [
                c.program.type_of(name if side == "input" else c.program.outputs[name]) for c in (one, two)
            ]
            said = [
                {
                    (r.spec, r.coef, r.reduce, p.sizes, p.plan, p.spec)
                    for r in relations
                    for p in r.pieces
                    if r.plan == name and p.cls == c.name
                }
                for c in (one, two)
            ]
            if types[0] != types[1] or said[0] != said[1]:
                both = f"classes {one.name} and {two.name}"
                raise FormatError(f"{side} {name} is not the same in {both}, which run on one rank")
