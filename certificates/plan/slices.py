"""Functions at a slice of the mesh: one body for the same layer of all pipeline stages.

The bodies stand on the mesh without the axes ``along`` which the slices lie, so that nothing in them knows
the stage: neither a form nor a group nor, in a proof, a coordinate (``docs/format.md``, *Functions*).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import FormatError
from .affine import Range
from .calls import calls
from .names import check_symbol
from .plan import Function, Group, Mesh, Plan, RankClass


def ground(plan: Plan, function: Function) -> tuple[Mesh, dict[str, Group], tuple[RankClass, ...]]:
    """The mesh of a function's bodies, the groups that lie in a slice, and the bodies with their boxes."""
    if not function.along:
        classes = tuple(RankClass(c.name, c.box, function.classes[c.name]) for c in plan.classes)
        return plan.mesh, dict(plan.groups), classes
    mesh = Mesh(plan.mesh.without(function.along), plan.mesh.time)
    groups = {
        name: group if group.steps else Group(group.axes, mesh.rank_lists(group.axes))
        for name, group in plan.groups.items()
        if group.steps or in_slices(plan.mesh, group, function.along)
    }
    return (
        mesh,
        groups,
        tuple(RankClass(r, box, function.classes[r]) for r, box in sorted(function.roles.items())),
    )


def in_slices(mesh: Mesh, group: Group, along: Sequence[str]) -> bool:
    """Is a group the fibres of other axes?"""
    return (
        bool(group.axes) and not set(group.axes) & set(along) and group.ranks == mesh.rank_lists(group.axes)
    )


def check_slices(plan: Plan) -> None:
    """Axes, roles and callers of all functions at a slice; raises :class:`FormatError`."""
    for name, function in plan.functions.items():
        if not function.along:
            if function.roles:
                raise FormatError(f"function {name} has roles and no axes along which its slices lie")
            continue
        if list(function.along) != [a for a in plan.mesh.space if a in function.along]:
            raise FormatError(f"function {name}: along must be mesh axes in mesh order")
        for role, box in function.roles.items():
            check_symbol(role, "role")
            if role in plan.by_class:
                raise FormatError(f"function {name}: role {role} has the name of a class")
            if set(box) != set(plan.mesh.axes) - set(function.along):
                raise FormatError(f"function {name}: role {role} must have a side for each other axis")
            if not any(plan.role(name, c.name) == role for c in plan.classes):
                raise FormatError(f"function {name}: role {role} has the box of no class")
        if function.classes.keys() != function.roles.keys():
            raise FormatError(f"function {name} must have a body for every role")


def check_callers(plan: Plan) -> None:
    """The specification's calls of a function at a slice are those of one slice each, every role once."""
    callers: dict[tuple[str, int], list[RankClass]] = {}
    for cls in plan.classes:
        for call in calls(cls.program):
            callers.setdefault(call.site, []).append(cls)
    wanted = {call.site for call in calls(plan.specification)}
    for name, instance in sorted({s for s in wanted | callers.keys() if plan.functions[s[0]].along}):
        function, found = plan.functions[name], callers.get((name, instance), [])
        where = f"{name} {instance}"
        if (name, instance) not in wanted:
            raise FormatError(f"only some programs call {where}")
        slices = {tuple(c.box[a] for a in function.along) for c in found}
        if len(slices) != 1 or any(hi > lo + 1 for at in slices for lo, hi in at):
            raise FormatError(f"{where} is not called by the classes of one slice")
        if sorted(str(plan.role(name, c.name)) for c in found) != sorted(function.roles):
            raise FormatError(f"{where}: the classes that call it do not have each role once")


def slice_of(plan: Plan, function: str, cls: str) -> Mapping[str, Range]:
    """Where the slice of a class lies."""
    return {a: plan.by_class[cls].box[a] for a in plan.functions[function].along}
