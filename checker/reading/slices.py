"""Functions at a slice (obligations 11 and 13): one body for the same layer of every pipeline stage.

The bodies stand on the mesh without the axes `along` which slices lie: no coordinate, form, group or
reduction of theirs can name such an axis. An instance is called by the classes of one slice, each as the role
whose box is its own outside these axes, so that roles and callers are the same ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Rejected, need
from ..language.plan import Group, Plan, fibres
from .strict import interval, many, members, record, symbol

Boxes = Mapping[str, Mapping[str, tuple[int, int]]]


@dataclass(frozen=True)
class Ground:
    """What programs stand on: the mesh, which begins with the axes of `time`, classes or roles by their
    boxes, and groups; of a function at a slice also what it is `along`, and the role that a class `plays`."""

    mesh: tuple[tuple[str, int], ...]
    time: tuple[str, ...]
    boxes: Boxes
    groups: Mapping[str, Group]
    along: tuple[str, ...] = ()
    plays: Mapping[str, str] = field(default_factory=dict)


def read_ground(item: Mapping[str, Any], what: str, whole: Ground) -> Ground:
    """The members `along` and `roles` of a function."""
    along = many(symbol)(item["along"], f"{what}: along")
    ranks = [a for a, _ in whole.mesh if a not in whole.time]
    need(
        len(along) > 0 and list(along) == [a for a in ranks if a in along],
        f"{what}: along must be mesh axes in mesh order",
    )
    mesh = tuple((a, n) for a, n in whole.mesh if a not in along)
    roles: dict[str, Mapping[str, tuple[int, int]]] = {}
    for role, entry in members(
        item["roles"],
        f"{what}: roles",
        "",
        " ".join(item["roles"]) if isinstance(item["roles"], dict) else "",
    ).items():
        box = record(
            entry, f"{what}: role {symbol(role, f'{what}: a role')}", **{a: interval for a, _ in mesh}
        )
        need(role not in whole.boxes, f"{what}: role {role} has the name of a class")
        roles[role] = box
    plays = {
        c: role
        for c, own in whole.boxes.items()
        for role, box in roles.items()
        if all(own[a] == box[a] for a in box)
    }
    need(set(plays.values()) == roles.keys(), f"{what}: a role has the box of no class")
    space = tuple((a, n) for a, n in mesh if a not in whole.time)
    groups = {
        g: group if group.runs or not _inside(group, along) else _on(space, group)
        for g, group in whole.groups.items()
    }
    return Ground(mesh, whole.time, roles, groups, along, plays)


def _inside(group: Group, along: tuple[str, ...]) -> bool:
    """Do all lists of ranks stay in one slice, for what their axes say?"""
    return group.factorised and not set(group.axes) & set(along)


def _on(space: tuple[tuple[str, int], ...], group: Group) -> Group:
    return Group(group.name, group.axes, tuple(fibres(space, group.axes)), True)


def check_groups(body: Plan, what: str) -> None:
    """Obligation 13: a function at a slice meets along other axes only, and these are what its groups are."""
    for ops in body.rendezvous.values() if body.along else ():
        op = next(iter(ops.values()))
        group = body.groups[op.attrs["group"]]
        if not (group.runs or _inside(group, body.along)):
            raise Rejected(
                13,
                f"group {group.name[:60]} of op {op.result} is no factorisation of a slice's mesh",
                what[:-2],
            )


def check_calls(plan: Plan) -> None:
    """Obligation 11: the specification calls what all classes call, or those of one slice, each role once."""
    called = plan.spec.calls.keys()
    for c, cls in plan.classes.items():
        own = {site for site in called if not plan.functions[site[0]].along or site in cls.program.calls}
        need(cls.program.calls.keys() == own, f"class {c}: it and the specification call different instances")
    for site in called:
        body, callers, where = plan.functions[site[0]], plan.callers(site), f"{site[0]} {site[1]}"
        slices = {tuple(plan.box(c)[a] for a in body.along) for c in callers}
        if body.along and (len(slices) != 1 or any(hi > lo + 1 for at in slices for lo, hi in at)):
            raise Rejected(11, "it is not called by the classes of one slice", where)
        if body.along and sorted(plan.role(site[0], c) for c in callers) != sorted(body.classes):
            raise Rejected(11, "the classes that call it do not play each role once", where)
