"""Relations on numbers: what ranks are given, and what is claimed of what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.placements import Partial, Shard, relate
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType
from orchestrator.errors import EvaluationError
from orchestrator.evaluating.interpreter import run_plan, run_specification
from orchestrator.evaluating.scatter import compare_outputs, random_inputs, scatter_inputs

RNG = np.random.default_rng(7)


def mismatches(plan: Plan, seed: int = 0, break_it: Mapping[int, str] | None = None) -> list[Any]:
    rng = np.random.default_rng(seed)
    inputs = random_inputs(plan, rng)
    ranks = run_plan(plan, scatter_inputs(plan, inputs, rng))
    for rank, name in (break_it or {}).items():
        ranks[rank][name] = ranks[rank][name] + 1
    return compare_outputs(plan, run_specification(plan, inputs), ranks)


@pytest.mark.parametrize("seed", range(3))
def test_correct_plans_hold(any_plan: Plan, seed: int) -> None:
    assert mismatches(any_plan, seed) == []


def test_a_wrong_output_is_reported_with_its_place(mlp: Plan) -> None:
    (found,) = mismatches(mlp, break_it={3: "params.w1"})
    assert (found.spec, found.plan, found.cls, found.ranks, found.count) == (
        *("params.w1", "params.w1", "c0", (3,), 16),
    )
    assert found.got == pytest.approx(found.want + 1)
    i, j = found.plan_index
    assert found.spec_index == (i, j + 4)
    assert "params.w1" in str(found) and "rank 3" in str(found)


def test_a_wrong_partial_output_is_reported_for_its_fibre(mlp: Plan) -> None:
    (found,) = mismatches(mlp, break_it={1: "grads.params.w2"})
    assert found.ranks == (1, 3)
    assert "ranks [1, 3] together" in str(found)


def test_a_dropped_collective_is_caught(mlp: Plan) -> None:
    cls = mlp.classes[0]
    ops = tuple(
        Op(op.out, "multiply", (op.ins[0], op.ins[0]), op.type) if op.name == "all_reduce" else op
        for op in cls.program.ops
    )
    broken = Plan(
        **{f: getattr(mlp, f) for f in ("name", "mesh", "groups", "sources", "specification")},
        classes=(type(cls)(cls.name, cls.box, Program(cls.program.inputs, ops, cls.program.outputs)),),
        inputs=mlp.inputs,
        outputs=mlp.outputs,
    )
    assert {m.spec for m in mismatches(broken)} >= {"loss", "params.w1", "params.w2"}


def partial_plan(kind: str, coef: int = 1, dtype: str = "f32") -> Plan:
    """An input that is partial over tp; the plan finishes the reduction."""
    mesh = {"dp": 2, "tp": 3}
    specification, b = ProgramBuilder(), ProgramBuilder(mesh)
    specification.output("y", specification.input("x", f"{dtype}[4,2]") * coef)
    b.output("y", b.all_reduce(b.input("x", f"{dtype}[2,2]"), "tp", kind))
    program = b.build()
    shell = build_plan(
        name="p", mesh=mesh, specification=specification.build(), classes=program, inputs=[], outputs=[]
    )
    placements = {"dp": Shard(0), "tp": Partial(kind)}
    relation = relate("x", (4, 2), placements, shell.mesh, shell.classes, coef=coef)
    out = relate("y", (4, 2), {"dp": Shard(0)}, shell.mesh, shell.classes)
    return build_plan(
        name="p",
        mesh=mesh,
        specification=specification.build(),
        classes=program,
        inputs=[relation],
        outputs=[out],
    )


@pytest.mark.parametrize("kind", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_partial_inputs_scatter_into_different_summands(kind: str, dtype: str) -> None:
    plan = partial_plan(kind, dtype=dtype)
    assert mismatches(plan) == []
    inputs = random_inputs(plan, RNG)
    ranks = scatter_inputs(plan, inputs, np.random.default_rng(3))
    assert any(not np.array_equal(ranks[0]["x"], ranks[r]["x"]) for r in (1, 2))


def test_partial_inputs_with_a_coefficient() -> None:
    assert mismatches(partial_plan("add", coef=3)) == []


def test_uncovered_elements_are_junk_that_a_wrong_plan_shows() -> None:
    mesh = {"dp": 2}
    specification, b = ProgramBuilder(), ProgramBuilder(mesh)
    specification.output("y", specification.input("x", "f32[3]").sum())
    b.output("y", b.input("x", "f32[4]").sum())
    plan_of = {"name": "junk", "mesh": mesh, "specification": specification.build(), "classes": b.build()}
    shell = build_plan(**plan_of, inputs=[], outputs=[])
    relation = relate("x", (3,), {}, shell.mesh, shell.classes)  # covers 3 of 4 local elements
    plan = build_plan(**plan_of, inputs=[relation], outputs={"y": {}})
    assert {m.spec for m in mismatches(plan)} == {"y"}


def test_contradicting_input_relations_are_refused() -> None:
    mesh = {"dp": 2}
    specification, b = ProgramBuilder(), ProgramBuilder(mesh)
    specification.output("y", specification.input("a", "f32[2]") + specification.input("b", "f32[2]"))
    b.output("y", b.input("x", "f32[2]") * 2)
    plan_of = {"name": "both", "mesh": mesh, "specification": specification.build(), "classes": b.build()}
    shell = build_plan(**plan_of, inputs=[], outputs=[])
    both = [relate(n, (2,), {}, shell.mesh, shell.classes, plan="x") for n in ("a", "b")]
    # build_plan refuses such a relation; the oracle must not be fooled by an unchecked one.
    plan = replace(shell, inputs=tuple(both))
    with pytest.raises(EvaluationError, match="contradict each other on x of rank 0"):
        scatter_inputs(plan, random_inputs(plan, RNG), RNG)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 5),
    dp=st.integers(1, 3),
    tp=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_scatter_inverts_for_any_even_sharding(rows: int, cols: int, dp: int, tp: int, seed: int) -> None:
    """Rows over tp then dp, columns replicated: every rank holds the block that the order says."""
    mesh = {"dp": dp, "tp": tp}
    shape = (rows * dp * tp, cols)
    specification, b = ProgramBuilder(), ProgramBuilder(mesh)
    specification.output("y", -specification.input("x", TensorType("f32", shape)))
    b.output("y", -b.input("x", TensorType("f32", (rows, cols))))
    plan_of = {"name": "s", "mesh": mesh, "specification": specification.build(), "classes": b.build()}
    shell = build_plan(**plan_of, inputs=[], outputs=[])
    place = {"dp": Shard(0), "tp": Shard(0)}
    relations = [relate(n, shape, place, shell.mesh, shell.classes, order=("tp", "dp")) for n in ("x", "y")]
    plan = build_plan(**plan_of, inputs=relations[:1], outputs=relations[1:])
    inputs = random_inputs(plan, np.random.default_rng(seed))
    ranks = scatter_inputs(plan, inputs, np.random.default_rng(seed))
    for r in range(dp * tp):
        at = plan.mesh.coordinates(r)
        block = at["tp"] * dp + at["dp"]
        np.testing.assert_array_equal(ranks[r]["x"], inputs["x"][block * rows : (block + 1) * rows])
    assert compare_outputs(plan, run_specification(plan, inputs), run_plan(plan, ranks)) == []
