"""Why an output has no proof: the first tensor without a relation, or without a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.emit import emit
from orchestrator.outlining.outline import outline
from tests.orchestrator.deep_plans import deep
from tests.orchestrator.test_emit import mutant


def test_an_op_without_model_is_named(tmp_path: Path) -> None:
    """Two exchanges along one dimension are the identity, but no premise describes them."""
    specification, plan = ProgramBuilder(), ProgramBuilder({"dp": 2})
    specification.output("y", specification.input("x", "f32[8]") * 3)
    x = plan.input("x", "f32[4]")
    plan.output("y", plan.all_to_all(plan.all_to_all(x, "dp", 0, 0), "dp", 0, 0) * 3)
    shard = {"dp": Shard(0)}
    problem = build_plan(
        name="exchange", mesh={"dp": 2}, specification=specification.build(), classes=plan.build(),
        inputs={"x": shard}, outputs={"y": shard},
    )  # fmt: skip
    done = emit(problem, tmp_path / "b", witness_seconds=1)
    assert done.exit_code == 3 and done.verdicts[0].verdict == "UNKNOWN"
    assert "no model of all_to_all %0 of c0" in done.verdicts[0].reason
    assert "test_hints.py:" in done.verdicts[0].reason


def test_unproved_outputs_name_the_first_tensor_without_relation(mlp: Plan, tmp_path: Path) -> None:
    done = emit(mutant(mlp, "duplicate", "tanh"), tmp_path / "b", jobs=2, witness_seconds=0)
    reasons = [v.reason for v in done.verdicts if v.verdict == "UNKNOWN"]
    first = [r for r in reasons if "no relation of `tanh " in r]
    assert len(first) == 1 and all(r in first or "the stage is missing that is told at" in r for r in reasons)


def test_a_mistake_in_a_layer_is_named_inside_its_function(tmp_path: Path) -> None:
    """A layer's op that is wrong in all layers: the hint names it, not the call of the first layer."""
    plan = outline(deep(4))
    body = plan.functions["f0"]
    (cls, program), *_ = body.classes.items()
    op = [op for op in program.ops if op.name == "tanh"][-1]
    ops = tuple(replace(o, name="exponential") if o is op else o for o in program.ops)
    wrong = replace(body, classes={cls: replace(program, ops=ops)})
    done = emit(replace(plan, functions={"f0": wrong}), tmp_path / "b", witness_seconds=0)
    reasons = [v.reason for v in done.verdicts if v.verdict == "UNKNOWN"]
    named = f"no relation of `exponential {op.out}` of class {cls}, in the function f0 of `call %"
    assert any(named in r for r in reasons)
    assert all(named in r or "the stage is missing that is told at" in r for r in reasons)
