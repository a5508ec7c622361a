"""Rank classes whose rows interleave: any order of mesh axes in a row's number, any cut of the mesh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest

import trainverify as tv
from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Range
from certificates.plan.placements import Shard, relate
from certificates.plan.plan import Mesh, Plan, RankClass
from certificates.proof.stages import AlgebraStage
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

from ..plans import unproved

LENGTH = 3


def step(b: ProgramBuilder, x: Value, w: Value) -> tuple[Value, Value, Value]:
    """Activations, the sum of their squares, and what a gradient of the weight looks like."""
    rows = math.prod(x.shape[:2])
    h = b.tanh(x @ w)
    flat = h.reshape(rows, 5)
    return h, (flat * flat).sum(0, 1), x.reshape(rows, 4).T @ flat


def training(
    mesh: Mapping[str, int],
    order: Sequence[str],
    cuts: Mapping[str, Sequence[int]],
    rows: int = 1,
    claimed: Sequence[str] = (),
) -> Plan:
    """The batch over the axes of ``order``, major first; a rank class per box of the cuts.

    Activations are claimed to lie like the batch, or in the order ``claimed``.
    """
    batch = rows * math.prod(mesh[a] for a in order)
    every = {"all": tuple(a for a in mesh if a in order)}
    programs = []
    for local in (False, True):
        b = ProgramBuilder(mesh, every) if local else ProgramBuilder()
        x = b.input("x", f"f32[{rows if local else batch},{LENGTH},4]")
        h, loss, gradient = step(b, x, b.input("w", "f32[4,5]"))
        b.output("h", h)
        for name, value in (("loss", loss), ("gradient", gradient)):
            b.output(name, b.all_reduce(value, "all") if local else value)
        programs.append(b.build())
    edges = [[*itertools.pairwise((0, *cuts.get(a, ()), n))] for a, n in mesh.items()]
    boxes: list[dict[str, Range]] = [dict(zip(mesh, box, strict=True)) for box in itertools.product(*edges)]
    classes = {f"c{i}": (box, programs[1]) for i, box in enumerate(boxes)}
    ranked = [RankClass(c, box, programs[1]) for c, (box, _) in classes.items()]

    def placed(name: str, *axes: str) -> object:
        types = programs[0].types()
        shape = (programs[0].inputs.get(name) or types[programs[0].outputs[name]]).shape
        whole = (*axes, *(a for a in mesh if a not in axes))
        return relate(name, shape, dict.fromkeys(axes, Shard(0)), Mesh(dict(mesh)), ranked, order=whole)

    return build_plan(
        name="interleaved", mesh=mesh, specification=programs[0], classes=classes, groups=every,
        inputs=[placed("x", *order), placed("w")],  # type: ignore[list-item]
        outputs=[placed("h", *(claimed or order)), placed("loss"), placed("gradient")],  # type: ignore[list-item]
    )  # fmt: skip


PLANS = {
    "the last shard": ({"rep": 2, "dp": 5}, ("rep", "dp"), {"dp": (4,)}),
    "replicas minor": ({"rep": 2, "dp": 5}, ("dp", "rep"), {"dp": (4,)}),
    "the other mesh order": ({"dp": 5, "rep": 2}, ("rep", "dp"), {"dp": (4,)}),
    "the first shard": ({"rep": 3, "dp": 5}, ("rep", "dp"), {"dp": (1,)}),
    "a shard in the middle": ({"rep": 2, "dp": 5}, ("rep", "dp"), {"dp": (2, 3)}),
    "a replicated axis between": ({"rep": 2, "tp": 2, "dp": 3}, ("rep", "dp"), {"dp": (2,)}),
    "three axes": ({"a": 2, "b": 3, "c": 3}, ("a", "b", "c"), {"c": (2,)}),
    "three axes, cut in the middle": ({"a": 2, "b": 3, "c": 3}, ("a", "b", "c"), {"b": (2,)}),
    "three axes, turned": ({"a": 2, "b": 3, "c": 3}, ("c", "a", "b"), {"a": (1,), "b": (2,)}),
    "both axes": ({"rep": 3, "dp": 5}, ("rep", "dp"), {"rep": (1,), "dp": (4,)}),
}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", PLANS)
def test_interleaved_classes_are_proved(name: str, rows: int) -> None:
    assert unproved(training(*PLANS[name], rows)) == []


@pytest.mark.parametrize("name", ["the last shard", "three axes, cut in the middle"])
def test_their_certificates_are_valid(name: str) -> None:
    assert tv.verify(training(*PLANS[name]), jobs=1).kind is tv.Kind.PROVED


def test_the_batch_axis_is_a_product_with_a_concatenation_inside() -> None:
    engine = Engine(training(*PLANS["the last shard"]), Cores())
    engine.relate()
    for number in itertools.chain.from_iterable(engine.claims()):
        engine.prove(number)
    stages = [s for s in engine.proved.built.values() if isinstance(s, AlgebraStage)]
    trees = {tree for s in stages for ref, of in s.trees.items() if str(ref) == "s:%0" for tree in of[:1]}
    shapes = {tuple((offset, steps) for offset, _, steps in tree) for tree in trees}
    assert ((0, (5, 1)), (4, (5,))) in shapes
    assert not any(steps != tuple(sorted(steps, reverse=True)) for shape in shapes for _, steps in shape)


def test_rows_in_another_order_are_not_proved() -> None:
    """Sums over the batch do not depend on it, the activations do."""
    mesh, order, cuts = PLANS["the last shard"]
    reasons = unproved(training(mesh, order, cuts, claimed=("dp", "rep")))
    assert [r.split(":")[:2] for r in reasons] == [["c0", "%1"], ["c1", "%1"]]
    assert all("no proof of" in r for r in reasons), reasons
