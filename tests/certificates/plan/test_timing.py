"""Time axes in plans: one tensor per rank for all its runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.canonical import canonical_bytes
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.checking import check_plan
from certificates.plan.placements import Partial, Shard
from certificates.plan.plan import Mesh, Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps

Box = dict[str, tuple[int, int]]


def accumulated(sizes: tuple[int, int] = (4, 4), boxes: tuple[Box, ...] = ({},)) -> Plan:
    """The sum of a batch, of which every rank runs two rows at a time; a class for each box."""
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[8]").sum(0))
    classes = {}
    for i, box in enumerate(boxes):
        b = ProgramBuilder({"dp": 2}, box=box, time={"mb": 2})
        x = b.input("x", f"f32[{sizes[i]}]")
        rows = b.slice(x, (b.axis_index("mb").scale(2),), (2,))
        b.output("y", b.all_reduce(b.all_reduce(rows.sum(0), "mb"), "dp"))
        classes[f"c{i}"] = (box, b.build())
    return build_plan(
        name="accumulated", mesh={"dp": 2}, time={"mb": 2}, specification=spec.build(), classes=classes,
        inputs={"x": {"dp": Shard(0)}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip


HALVES: tuple[Box, ...] = ({"mb": (0, 1)}, {"mb": (1, 2)})


def test_points_are_ranks_at_times() -> None:
    mesh = Mesh({"mb": 3, "pp": 2, "dp": 2}, ("mb",))
    assert (mesh.ranks, mesh.points, dict(mesh.space)) == (4, 12, {"pp": 2, "dp": 2})
    at = mesh.coordinates(7)
    assert at == {"mb": 1, "pp": 1, "dp": 1} and mesh.point(at) == 7 and mesh.rank(at) == 3
    assert mesh.rank_lists(("dp",)) == ((0, 1), (2, 3))
    assert mesh.fibres(("mb",)) == ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))


@pytest.mark.parametrize("boxes", [({},), HALVES])
def test_a_plan_with_time_is_read_as_it_was_written(boxes: tuple[Box, ...]) -> None:
    plan = accumulated(boxes=boxes)
    document = json.loads(dumps(plan))
    assert document["time"] == [["mb", 2]] and document["mesh"] == [["dp", 2]] and document["version"] == 2
    assert document["groups"] == {"mb": {"axes": ["mb"]}, "dp": {"axes": ["dp"], "ranks": [[0, 1]]}}
    assert loads(dumps(plan)) == plan


def test_programs_of_one_rank_have_the_same_tensors() -> None:
    with pytest.raises(FormatError, match="input x is not the same in classes c0 and c1, which run on one"):
        accumulated((4, 5), HALVES)


def edited(change: Callable[[Any], object]) -> bytes:
    document = json.loads(dumps(accumulated()))
    change(document)
    return canonical_bytes(document)


def scattered(document: Any) -> None:
    program = document["classes"][0]["program"]
    attrs = {"group": "mb", "kind": "add", "dim": 0, "seq": 9}
    program["ops"].append(["%77", "reduce_scatter", ["x"], "f32[2]", attrs, None])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(version=1), "time axes, messages and schedules need version 2"),
        (lambda d: d.update(time=[["dp", 2]]), "distinct names"),
        (lambda d: d.update(time=[["mb", 0]]), "time axis 'mb' of size 0"),
        (lambda d: d["groups"].update(g={"axes": ["mb", "dp"]}), "is not over time axes only"),
        (lambda d: d["groups"].update(g={"axes": []}), "is not over time axes only"),
        (lambda d: d["groups"].update(g={"axes": ["mb"], "ranks": [[0, 1]]}), "and g is not"),
        (lambda d: d["groups"].update(g={"axes": [], "ranks": [[1, 0]]}), "and g is not"),
        (lambda d: d["inputs"][0]["pieces"][0]["spec"][0].update(mb=1), "mentions the time axis mb"),
        (lambda d: d["inputs"][0].update(reduce=["add", ["mb"]]), "mentions the time axis mb"),
        (scattered, "reduce_scatter %77 runs over time: only all_gather and all_reduce may"),
    ],
)
def test_what_is_no_plan(change: Callable[[Any], object], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        loads(edited(change))


def test_placements_are_of_ranks() -> None:
    spec = ProgramBuilder()
    spec.output("y", spec.input("x", "f32[4]"))
    b = ProgramBuilder({"dp": 2}, time={"mb": 2})
    b.output("y", b.input("x", "f32[4]"))
    for place in (Shard(0), Partial()):
        with pytest.raises(FormatError, match=r"the mesh has the axes \['dp'\]"):
            build_plan(
                name="p", mesh={"dp": 2}, time={"mb": 2}, specification=spec.build(), classes=b.build(),
                inputs={"x": {"mb": place}}, outputs={"y": {}},
            )  # fmt: skip


def test_a_group_joins_ranks_or_runs() -> None:
    with pytest.raises(FormatError, match="joins ranks and runs"):
        ProgramBuilder({"dp": 2}, {"g": ("mb", "dp")}, time={"mb": 2})
    with pytest.raises(FormatError, match="mb is a time axis and a mesh axis"):
        ProgramBuilder({"mb": 2}, time={"mb": 2})


def test_time_comes_first() -> None:
    plan = accumulated()
    with pytest.raises(FormatError, match="time axes come first"):
        check_plan(replace(plan, mesh=Mesh({"dp": 2, "mb": 2}, ("mb",))))


def test_forms_may_mention_time_inside_programs() -> None:
    slices = [op for op in accumulated().classes[0].program.ops if op.name == "slice"]
    assert slices[0].affines("start") == (Affine.of(0, {"mb": 2}),)
