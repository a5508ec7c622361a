"""Look-ups over a plan: families, groups, literals, and reductions that must span whole axes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.plan import Group, Plan
from certificates.proof.facts import Reduced
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model


def find(model: Model, owner: str, name: str) -> str:
    return next(ref for ref, op in model.ops.items() if ref.startswith(f"{owner}:") and op.name == name)


def test_a_sum_over_ranks_names_one_member_per_class_in_plan_order(uneven: Plan) -> None:
    model = Model(uneven)
    gather = find(model, "last", "all_gather")
    assert list(model.family(gather)) == ["full", "last"]
    family = {"full": "full:w", "last": "last:w"}
    assert model.reduced_of("last", family, ("dp",), "add") == Reduced("add", ("dp",), ("full:w", "last:w"))


def test_a_reduction_over_a_part_of_an_axis_is_refused(uneven: Plan) -> None:
    """A sum that leaves out the last rank is another number."""
    with pytest.raises(NoDefinition, match="do not tile"):
        Model(uneven).reduced_of("full", {"full": "full:w"}, ("dp",), "add")


def test_a_group_that_is_no_fibre_of_its_axes_is_refused(mlp: Plan) -> None:
    name, group = next((n, g) for n, g in mlp.groups.items() if g.axes == ("tp",))
    crossed = Group(group.axes, ((0, 3), (2, 1)))
    model = Model(replace(mlp, groups={**mlp.groups, name: crossed}))
    ref = next(r for r, op in model.ops.items() if op.attrs.get("group") == name)
    with pytest.raises(NoDefinition, match="is not the fibres of mesh axes"):
        model.group(ref)
    assert Model(mlp).group(ref) == group


def test_positions_in_a_group_are_row_major_in_the_order_of_the_group() -> None:
    mesh = {"a": 2, "b": 3}
    spec, b = ProgramBuilder(), ProgramBuilder(mesh, groups={"ba": ("b", "a")})
    spec.output("y", spec.input("x", "f32[4]") * 6)
    b.output("y", b.all_reduce(b.input("x", "f32[4]"), "ba"))
    plan = build_plan(
        name="order", mesh=mesh, specification=spec.build(), classes=b.build(), inputs={"x": {}},
        outputs={"y": {}}, groups={"ba": ("b", "a")},
    )  # fmt: skip
    model = Model(plan)
    group = model.group(find(model, "c0", "all_reduce"))
    for members in group.ranks:
        for place, rank in enumerate(members):
            at = [Affine(i) for i in plan.mesh.coordinates(rank).values()]
            assert model.position(group.axes, at) == Affine(place)


def test_literals_and_factors(mlp: Plan) -> None:
    spec, b = ProgramBuilder(), ProgramBuilder({"tp": 2})
    for builder in (spec, b):
        x = builder.input("x", "f32[2]")
        builder.output("y", (x * Fraction(2, 3)) / 4 - (-x))
    b.constant(b.axis_index("tp").scale(5), "i64[]")
    plan = build_plan(name="factors", mesh={"tp": 2}, specification=spec.build(), classes=b.build(),
                      inputs={"x": {}}, outputs={"y": {}})  # fmt: skip
    model = Model(plan)
    assert model.literal("#f:-1/3") == Fraction(-1, 3) and model.literal("#b:true") == "true"
    assert model.literal("s:x") is None and model.scale("s:x") is None
    factors = [model.scale(r) for r in ("s:%1", "s:%3", "s:%4", "s:%5")]
    assert factors == [(0, Fraction(2, 3)), (0, Fraction(1, 4)), (0, Fraction(-1)), None]
    rank_dependent = next(r for r, op in model.ops.items() if isinstance(op.attrs.get("value"), Affine))
    assert model.literal(rank_dependent) == Affine.of(0, {"tp": 5})


def test_descriptions_say_op_type_ranks_and_line(uneven: Plan) -> None:
    model = Model(uneven)
    text = model.describe(find(model, "last", "all_gather"))
    assert " all_gather f32[12,2] ranks dp 2..2 conftest.py:" in text and text.startswith("last:%")
    assert model.describe("s:w") == "s:w input f32[10,2]"
    both = model.describe(Reduced("add", ("dp",), ("full:w", "last:w")))
    assert both.startswith("add over dp of (full:w input f32[4,2] ranks dp 0..1; last:w")


def test_every_coordinate_of_a_member_is_listed_once(uneven: Plan) -> None:
    model = Model(uneven)
    total = Reduced("add", ("dp",), ("full:w", "last:w"))
    assert [list(model.coordinates(total, m)) for m in total.of] == [[(0,), (1,)], [(2,)]]
