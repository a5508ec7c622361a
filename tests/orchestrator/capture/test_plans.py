"""Whole captures: the specification against PyTorch, all ranks against real processes, relations, classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import CaptureError, DefinitionError, LayoutError, UnsupportedOpError
from orchestrator.capture.running import run
from orchestrator.evaluating import interpreter

CASES = ["small_llama", "small_full", "small_mlp"]


def case(request: pytest.FixtureRequest, name: str) -> tuple[Definition, Plan]:
    return request.getfixturevalue(name), request.getfixturevalue(f"{name}_plan")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_equal_to_the_specification(request, name) -> None:
    _, plan = case(request, name)
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_rank_is_what_real_processes_compute(request, name) -> None:
    definition, plan = case(request, name)
    compared = run(plan, definition, steps=2, seed=2)
    assert (compared.steps, compared.ranks) == (2, plan.mesh.ranks) and compared.largest < 1e-5


@pytest.mark.slow
def test_classes_and_padding_of_an_uneven_plan(small_llama_plan: Plan) -> None:
    """13 hidden units over 2 x 2 ranks: 7 and 6 columns, then 4 and 3, or 3 and 3 rows."""
    assert [dict(c.box) for c in small_llama_plan.classes] == [
        {"dp": (d, d + 1), "tp": (t, t + 1)} for d in (0, 1) for t in (0, 1)
    ]
    name = "params.layers.0.feed_forward.w1.weight"
    relation = next(r for r in small_llama_plan.inputs if r.spec == name)
    at = {c.name: {a: lo for a, (lo, _) in c.box.items()} for c in small_llama_plan.classes}
    rows = {p.cls: (p.spec[0].evaluate(at[p.cls] | {"z0": 0}), p.sizes[0]) for p in relation.pieces}
    assert rows == {"c0": (0, 4), "c1": (7, 3), "c2": (4, 3), "c3": (10, 3)}
    shapes = {c.name: c.program.inputs[name].shape[0] for c in small_llama_plan.classes}
    assert shapes == {"c0": 4, "c1": 3, "c2": 4, "c3": 3}


@pytest.mark.slow
def test_a_long_axis_is_interpolated_and_its_short_last_shard_found(models: Any) -> None:
    """17 vocabulary rows of each tensor-parallel rank over 9: eight shards of 2, padded, and one of 1."""
    config = models.Config(dim=36, ffn_dim=36, layers=1, heads=2, kv_heads=2, vocab=34)
    plan = capture(models.definition("long", config, {"dp": 9, "tp": 2}, 9, 4), jobs=2)
    assert [dict(c.box) for c in plan.classes] == [
        {"dp": (0, 8), "tp": (0, 2)},
        {"dp": (8, 9), "tp": (0, 2)},
    ]
    assert int(str(plan.provenance["interpolated_ranks"])) > 0
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7) == []


@pytest.mark.slow
def test_a_rank_without_rows_has_no_such_state(models: Any) -> None:
    config = models.Config(dim=16, ffn_dim=16, layers=1, heads=2, kv_heads=2, vocab=34)
    plan = capture(models.definition("short", config, {"dp": 9, "tp": 2}, 9, 4), jobs=2)
    held = {c.name: "params.layers.0.attention.wq.weight" in c.program.inputs for c in plan.classes}
    assert held == {"c0": True, "c1": False}
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7) == []


@pytest.mark.slow
def test_states_steps_and_lines(small_llama_plan: Plan) -> None:
    specification = small_llama_plan.specification
    states = [n for n in specification.inputs if n.startswith(("params.", "opt."))]
    assert set(states) | {"loss"} == set(specification.outputs)
    assert "hyper.lr" in specification.inputs and "opt.step.norm.weight" in specification.inputs
    assert small_llama_plan.sources == ("llama.py",)
    assert all(op.loc is not None for op in specification.ops if op.name == "dot_general")
    assert small_llama_plan.provenance["traced_ranks"] == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_a_capture_is_deterministic(small_mlp: Definition, small_mlp_plan: Plan) -> None:
    data = dumps(small_mlp_plan)
    assert dumps(loads(data)) == data
    again = capture(small_mlp, jobs=1, root=Path(small_mlp.build.__code__.co_filename).parent)
    assert dumps(again) == data


def _tiny(**changes: Any) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    base = Definition(
        name="tiny",
        mesh={"dp": 2},
        build=lambda: nn.Linear(4, 4, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.AdamW(params),
        step=step,
        batch={"x": Batch((4, 4), shard={"dp": 0})},
        layouts={"weight": {}},
        mean_over={"loss": ("dp",)},
    )
    return dataclasses.replace(base, **changes)


def made_anew(model: Any) -> Any:
    model.weight = nn.Parameter(torch.empty_like(model.weight))
    return model


@pytest.mark.slow
def test_a_tiny_definition_is_captured() -> None:
    assert len(capture(_tiny()).classes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"layouts": None, "parallelize": lambda m, mesh: made_anew(m)},
            LayoutError,
            "without a declared layout.*params.weight, .*ranks 0, 1",
        ),
        ({"layouts": {"weight": {"dp": 0}}}, LayoutError, r"holds shape \[4, 4\].*params.weight"),
        ({"layouts": {"weight": {"cp": 0}}}, LayoutError, "the mesh does not have"),
        (
            {"parallelize": lambda m, mesh: nn.Linear(4, 4, bias=False)},
            DefinitionError,
            "real tensor.*weight",
        ),
        ({"batch": {"x": Batch((3, 4), shard={"dp": 0})}}, DefinitionError, "does not divide.*batch.x"),
    ],
)
def test_definitions_that_contradict_themselves(changes, kind, message) -> None:
    with pytest.raises(kind, match=message):
        capture(_tiny(**changes), jobs=1)


@pytest.mark.slow
def test_a_step_that_reads_a_stale_gradient_is_refused() -> None:
    kept: list[torch.Tensor] = []

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean() + (kept[-1].sum() if kept else 0)
        loss.backward()
        kept.append(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    with pytest.raises(CaptureError, match=r"closure: .*tensor f32\[4,4\]"):
        capture(_tiny(step=step), jobs=1)


@pytest.mark.slow
def test_a_state_of_the_parallel_step_only_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.weight = linear.weight
            self.register_buffer("calls", linear.weight.detach().new_zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x @ self.weight.t()

    with pytest.raises(LayoutError, match=r"does not have .*buffers\.calls"):
        capture(_tiny(parallelize=lambda model, mesh: Counting(model)), jobs=1)


@pytest.mark.slow
def test_a_step_must_return_tensors() -> None:
    with pytest.raises(DefinitionError, match="mapping from names to tensors"):
        capture(_tiny(step=lambda model, optimizer, batch: None), jobs=1)


@pytest.mark.slow
def test_gradient_clipping_is_captured() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "norm": norm}

    plan = capture(_tiny(step=step), jobs=1)
    assert {"sqrt", "minimum"} <= {op.name for op in plan.specification.ops}


@pytest.mark.slow
def test_a_failing_step_shows_its_line() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        raise ValueError("no such thing")

    with pytest.raises(
        CaptureError, match=r'ValueError: no such thing.*\n.*in step: raise ValueError\("no'
    ) as got:
        capture(_tiny(step=step), jobs=1)
    assert "Traceback" not in str(got.value)


@pytest.mark.slow
def test_unsupported_ops_cross_the_process_boundary() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": model(batch["x"]).digamma().lgamma().sum()}

    with pytest.raises(UnsupportedOpError) as caught:
        capture(_tiny(step=step), jobs=1)
    assert caught.value.ops == ("aten.digamma.default", "aten.lgamma.default")


def _reduced(function: Any) -> Definition:
    """The tiny model, its gradient averaged by ``function(gradient, group)``."""

    def parallel(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        model.weight.grad = function(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return _tiny(parallel_step=parallel)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "right"), [(0.5, True), (1.0, False)])
def test_the_factor_of_a_sum_is_recorded(factor: float, right: bool) -> None:
    def reduced(grad: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(grad, op=dist.ReduceOp.PREMUL_SUM(factor))
        return grad

    plan = capture(_reduced(reduced), jobs=1)
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert (
        not interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks)
    ) == right
