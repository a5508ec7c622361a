"""The second way to say what is claimed, with which the checker's words are compared, says it in full.

That ``tv-check`` says the same of every placement is tested in ``tests/checker/report/test_claims.py``.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard, relate
from certificates.plan.plan import Plan, Relation
from tests.oracles.claims import FEW, claim, open_elements


def output(plan: Plan, name: str) -> Relation:
    return next(r for r in plan.outputs if r.plan == name)


def test_a_claim_names_both_types_and_where_the_parts_are(mlp: Plan) -> None:
    assert claim(mlp, output(mlp, "loss")) == "loss f32[] = loss f32[]; dp Replicate, tp Replicate"
    assert claim(mlp, output(mlp, "params.w2")) == (
        "params.w2 f32[4,3] = params.w2 f32[8,3]; dp Replicate, tp Shard(0)"
    )


def test_a_factor_and_a_sum_are_part_of_the_claim(mlp: Plan) -> None:
    """Without them a gradient that is twice the right one reads like the right one."""
    relation = replace(output(mlp, "grads.params.w1"), coef=Fraction(1, 2))
    assert claim(mlp, relation) == (
        "sum over dp of grads.params.w1 f32[4,4] = 1/2 * grads.params.w1 f32[4,8]; "
        "dp Partial(sum), tp Shard(1)"
    )


def test_a_layout_without_a_name_is_told_piece_by_piece(mlp: Plan) -> None:
    """Swapped halves are no placement: each piece is told, and what is left out is counted."""
    relation = output(mlp, "params.w2")
    (piece,) = relation.pieces
    rows = Affine.of(4, {"tp": -4, "z0": 1})
    swapped = replace(relation, pieces=(replace(piece, spec=(rows, *piece.spec[1:])),))
    assert claim(mlp, swapped).endswith("; class c0 has [-4*tp + z0 + 4, z1] at [z0, z1] for z0 < 4, z1 < 3")
    many = replace(swapped, pieces=swapped.pieces * (FEW + 3))
    assert claim(mlp, many).endswith(", and 3 more pieces")
    assert claim(mlp, many).count("class c0 has") == FEW


def test_shards_from_another_axis_first_say_so() -> None:
    mesh = {"a": 2, "b": 3}
    spec, rank = ProgramBuilder(), ProgramBuilder(mesh)
    spec.output("y", spec.input("x", "f32[6]"))
    rank.output("y", rank.input("x", "f32[1]"))
    places = {"a": Shard(0), "b": Shard(0)}
    plan = build_plan(
        name="order", mesh=mesh, specification=spec.build(), classes=rank.build(),
        inputs={"x": places}, outputs={"y": places},
    )  # fmt: skip
    swapped = relate("y", (6,), places, plan.mesh, plan.classes, order=("b", "a"))
    assert claim(plan, plan.outputs[0]).endswith("a Shard(0), b Shard(0)")
    assert claim(plan, swapped).endswith("a Shard(0), b Shard(0), dimension 0 from major to minor b a")


def test_elements_and_outputs_that_nothing_is_claimed_of_are_listed(uneven: Plan) -> None:
    assert open_elements(uneven) == []
    (relation,) = uneven.outputs
    first, last = relation.pieces
    short = replace(uneven, outputs=(replace(relation, pieces=(replace(first, sizes=(3, 2)), last)),))
    assert open_elements(short) == ["2 elements of y at every rank of class full are padding"]
    assert open_elements(replace(uneven, outputs=())) == ["plan output y has no relation"]
