"""The facts that a plan declares and claims: which elements of which tensors, and how they read."""

from __future__ import annotations

from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Partial, Placement, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced, Tensors, relation_facts, split_ref


def declared(plan: Plan, name: str) -> list[Fact]:
    number = next(i for i, r in enumerate(plan.inputs) if r.spec == name)
    return relation_facts(plan, plan.inputs[number], "input", number)


def claimed(plan: Plan, name: str) -> list[Fact]:
    number = next(i for i, r in enumerate(plan.outputs) if r.spec == name)
    return relation_facts(plan, plan.outputs[number], "output", number)


def test_a_shard_is_a_fact_about_every_rank(mlp: Plan) -> None:
    (fact,) = declared(mlp, "params.w1")
    assert str(fact) == (
        "c0:params.w1[dp, tp, z0, z1] = s:params.w1[z0, 4*tp + z1] "
        "for dp in [0,2), tp in [0,2), z0 in [0,4), z1 in [0,4)"
    )
    number = next(i for i, r in enumerate(mlp.inputs) if r.spec == "params.w1")
    assert fact.by == ("input", number)


def test_outputs_are_facts_about_the_values_they_name(mlp: Plan) -> None:
    (fact,) = claimed(mlp, "loss")
    program = mlp.classes[0].program
    assert fact.lhs == f"c0:{program.outputs['loss']}"
    assert fact.rhs == f"s:{mlp.specification.outputs['loss']}"


def test_partial_sums_are_facts_about_the_sum(mlp: Plan) -> None:
    """A gradient that is not reduced over dp yet: no rank's value by itself is claimed to be anything."""
    (fact,) = claimed(mlp, "grads.params.w1")
    assert isinstance(fact.lhs, Reduced)
    assert (fact.lhs.kind, fact.lhs.axes) == ("add", ("dp",))
    assert [s for s, _, _ in fact.symbols] == ["tp", "z0", "z1"]


def test_every_class_of_ranks_has_its_own_fact(uneven: Plan) -> None:
    facts = declared(uneven, "w")
    assert [str(f.lhs) for f in facts] == ["full:w", "last:w"]
    assert [f.ranges["z0"] for f in facts] == [(0, 4), (0, 2)]
    assert [f.ranges["dp"] for f in facts] == [(0, 2), (2, 3)]


def two_classes(place: Placement) -> Plan:
    mesh = {"dp": 2}
    specification = ProgramBuilder()
    specification.output("y", specification.input("x", "f32[4]"))
    classes = {}
    for number, label in enumerate("ab"):
        box = {"dp": (number, number + 1)}
        b = ProgramBuilder(mesh, box=box)
        b.output("y", b.input("x", "f32[4]" if isinstance(place, Partial) else "f32[2]"))
        classes[label] = (box, b.build())
    return build_plan(
        name="two", mesh=mesh, specification=specification.build(), classes=classes,
        inputs={"x": {"dp": place}}, outputs={"y": {"dp": place}},
    )  # fmt: skip


def test_a_sum_over_ranks_of_several_classes_is_one_fact() -> None:
    (fact,) = declared(two_classes(Partial()), "x")
    assert fact.lhs == Reduced("add", ("dp",), ("a:x", "b:x"))
    assert len(declared(two_classes(Shard(0)), "x")) == 2


def test_where_a_fact_comes_from_does_not_make_it_another() -> None:
    """A claim that is also declared is proved."""
    here = Fact("c0:x", "s:x", (), (), (), Fraction(1), ("input", 0))
    there = Fact("c0:x", "s:x", (), (), (), Fraction(1), ("output", 3))
    assert here == there and len({here, there}) == 1
    assert here != Fact("c0:x", "s:x", (), (), (), Fraction(2))


def test_factors_and_reductions_are_read_as_they_are_written() -> None:
    total = Reduced("max", ("dp", "tp"), ("c0:%1", "c1:%4"))
    z = Affine.symbol("z0")
    fact = Fact(total, "#f:0", (("z0", 1, 5),), (z,), (), Fraction(-1, 2))
    assert str(fact) == "max[dp,tp](c0:%1, c1:%4)[z0] = -1/2 * #f:0[] for z0 in [1,5)"
    assert str(Fact("c0:%1", "s:%2", (), (), ())) == "c0:%1[] = s:%2[] for all ranks"


def test_full_indices_begin_with_the_mesh_of_the_class(uneven: Plan) -> None:
    """The last rank's coordinates are its own box, not those of the whole mesh."""
    tensors = Tensors(uneven)
    assert tensors.mesh_axes("last:w") == ("dp",) and tensors.mesh_axes("s:w") == ()
    assert tensors.ranges("last:w") == ((2, 3), (0, 2), (0, 2))
    assert tensors.ranges("s:w") == ((0, 10), (0, 2))


def test_a_reduced_tensor_has_no_coordinate_along_its_axes(mlp: Plan) -> None:
    tensors = Tensors(mlp)
    reduced = Reduced("add", ("dp",), ("c0:batch.x",))
    assert tensors.mesh_axes(reduced) == ("tp",)
    assert tensors.ranges(reduced) == ((0, 2), (0, 3), (0, 4))
    assert tensors.type(reduced) == tensors.type("c0:batch.x")


def test_literals_are_tensors_without_coordinates(mlp: Plan) -> None:
    tensors = Tensors(mlp)
    assert [tensors.type(ref).sort for ref in ("#f:1/2", "#i:3", "#b:true")] == ["Real", "Int", "Bool"]
    assert tensors.ranges("#f:1/2") == () and tensors.mesh_axes("#f:1/2") == ()


def test_references_name_their_program() -> None:
    assert split_ref("c0:params.w") == ("c0", "params.w")
    assert split_ref("s:%5") == ("s", "%5")
