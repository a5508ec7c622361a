"""Small plans for traps: one output `y`, the same function name on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from certificates.authoring.build import GroupLike, ProgramBuilder, Value, build_plan
from certificates.plan.affine import Range
from certificates.plan.placements import Placement, Shard
from certificates.plan.plan import Plan
from certificates.plan.program import Program
from certificates.plan.types import TensorType

Body = Callable[..., Value]
Inputs = Mapping[str, tuple[str, Mapping[str, Placement]]]
MESH = {"dp": 2}


@dataclass(frozen=True)
class Trap:
    """A wrong plan, and the right one if it has a twin."""

    wrong: Callable[[], Plan]
    right: Callable[[], Plan] | None = None


def local(type_: TensorType, placements: Mapping[str, Placement], mesh: Mapping[str, int]) -> TensorType:
    """The shard's type; shards are even here."""
    shape = list(type_.shape)
    for axis, placement in placements.items():
        if isinstance(placement, Shard):
            shape[placement.dim] //= mesh[axis]
    return TensorType(type_.dtype, tuple(shape))


def plan(
    inputs: Inputs,
    specification: Body,
    body: Body,
    *,
    mesh: Mapping[str, int] = MESH,
    out: Mapping[str, Placement] | None = None,
    groups: Mapping[str, GroupLike] | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Plan:
    """`specification(builder, *inputs)` on one device, `body(builder, *shards)` on every rank."""
    programs: list[Program] = []
    for builder, function in ((ProgramBuilder(), specification), (ProgramBuilder(mesh, groups), body)):
        sharded = function is body and len(programs) == 1
        values = []
        for name, (text, placements) in inputs.items():
            type_ = TensorType.parse(text)
            values.append(builder.input(name, local(type_, placements, mesh) if sharded else type_))
        builder.output("y", function(builder, *values))
        programs.append(builder.build())
    return build_plan(
        name="trap",
        mesh=mesh,
        specification=programs[0],
        classes=programs[1],
        inputs={name: placements for name, (_, placements) in inputs.items()},
        outputs={"y": dict(out or {})},
        groups=groups,
        ranges=ranges,
    )


def trap(
    inputs: Inputs, specification: Body, wrong: Body, right: Body | None = None, **options: object
) -> Trap:
    """The same specification against a wrong and a right plan."""

    def build(body: Body) -> Callable[[], Plan]:
        return lambda: plan(inputs, specification, body, **options)  # type: ignore[arg-type]

    return Trap(build(wrong), None if right is None else build(right))
