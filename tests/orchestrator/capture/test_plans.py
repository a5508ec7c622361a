"""Whole captures: the specification against PyTorch, all ranks against real processes, relations, classes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from certificates.plan import Mesh, Plan, dumps, loads
from orchestrator import interpreter
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import CaptureError, DefinitionError, LayoutError, UnsupportedOpError

CASES = ["small_llama", "small_full", "small_mlp"]


def case(request: pytest.FixtureRequest, name: str) -> tuple[Definition, Plan]:
    return request.getfixturevalue(name), request.getfixturevalue(f"{name}_plan")


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def fill(target: torch.Tensor, value: np.ndarray) -> None:
    """Copy an input into a tensor; rows of padding, which only the input has, are dropped."""
    with torch.no_grad():
        source = torch.from_numpy(np.array(value))
        into = local(target)
        into.copy_(source[tuple(slice(0, n) for n in into.shape)])


def run_step(
    definition: Definition, model: nn.Module, step: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """One real step from the given state; every output that the plan names."""
    options = {"lr": float(inputs["hyper.lr"])}
    optimizer = definition.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group.update(options, foreach=False)
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        fill(parameter, inputs[f"params.{name}"])
        state = optimizer.state[parameter]
        state["step"] = torch.tensor(float(inputs[f"opt.step.{name}"]))
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = torch.zeros_like(parameter)
            fill(state[key], inputs[f"opt.{key}.{name}"])
    for name, buffer in model.named_buffers():
        fill(buffer, inputs[f"buffers.{name}"])
    batch = {
        n: torch.from_numpy(np.array(inputs[f"batch.{n}"])).to(b.dtype) for n, b in definition.batch.items()
    }
    results = {n: local(t.detach()) for n, t in step(model, optimizer, batch).items()}
    for name, parameter in named.items():
        results[f"params.{name}"] = local(parameter.detach())
        for key, value in optimizer.state[parameter].items():
            results[f"opt.{key}.{name}"] = local(value)
    return {n: t.numpy() for n, t in results.items()}


def close(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    """Outputs agree up to float32 rounding; padded rows of ``got`` have no counterpart."""
    assert set(got) == set(want)
    for name, value in want.items():
        true_rows = got[name][tuple(slice(0, n) for n in value.shape)]
        np.testing.assert_allclose(true_rows, value, rtol=2e-3, atol=2e-4, err_msg=name)


def gentle(plan: Plan) -> dict[str, np.ndarray]:
    """Random inputs at which float32 is accurate enough."""
    inputs = interpreter.random_inputs(plan, np.random.default_rng(1))
    small = {n: v * 0.5 for n, v in inputs.items() if n.startswith(("params.", "opt.exp_avg."))}
    return inputs | small | {n: v + 0.1 for n, v in inputs.items() if n.startswith("opt.exp_avg_sq.")}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_specification_is_what_pytorch_computes(request, name) -> None:
    definition, plan = case(request, name)
    inputs = gentle(plan)
    with torch.random.fork_rng():
        real = run_step(definition, definition.build(), definition.step, inputs)
    close(interpreter.run_specification(plan, inputs), real)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_equal_to_the_specification(request, name) -> None:
    _, plan = case(request, name)
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7) == []


def _rank_process(rank: int, definition: Definition, inputs: Any, folder: str, queue: Any) -> None:
    torch.set_num_threads(1)
    mesh = Mesh(dict(definition.mesh))
    store = dist.FileStore(f"{folder}/store", mesh.ranks)
    dist.init_process_group("gloo", rank=rank, world_size=mesh.ranks, store=store)
    device_mesh = dist.init_device_mesh("cpu", tuple(mesh.axes.values()), mesh_dim_names=tuple(mesh.axes))
    model = definition.parallelize(definition.build(), device_mesh)
    if isinstance(model, FSDPModule):  # gloo has no average; the sum and a factor are the same numbers
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    step = definition.parallel_step or definition.step
    queue.put((rank, run_step(definition, model, step, inputs[rank])))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_rank_is_what_real_processes_compute(request, name, models, tmp_path: Path) -> None:
    definition, plan = case(request, name)
    if name != "small_mlp":  # bf16 rounds too much to compare; it is the same code
        wide = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        definition = dataclasses.replace(
            definition, parallelize=functools.partial(definition.parallelize, policy=wide)
        )
    inputs = interpreter.scatter_inputs(plan, gentle(plan), np.random.default_rng(2))
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_rank_process, args=(r, definition, inputs, str(tmp_path), queue), daemon=True)
        for r in range(plan.mesh.ranks)
    ]
    for process in processes:
        process.start()
    real = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    for rank, outputs in enumerate(interpreter.run_plan(plan, inputs)):
        close(outputs, real[rank])


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
def test_a_rank_without_rows_is_refused(models: Any) -> None:
    config = models.Config(dim=16, ffn_dim=16, layers=1, heads=2, kv_heads=2, vocab=34)
    with pytest.raises(LayoutError, match="owns none of its rows"):
        capture(models.definition("short", config, {"dp": 9, "tp": 2}, 9, 4), jobs=2)


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


@pytest.mark.slow
def test_a_tiny_definition_is_captured() -> None:
    assert len(capture(_tiny()).classes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"layouts": None}, LayoutError, "without a declared layout.*params.weight, .*ranks 0, 1"),
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
        return {"loss": model(batch["x"]).cumsum(0).erf().sum()}

    with pytest.raises(UnsupportedOpError) as caught:
        capture(_tiny(step=step), jobs=1)
    assert caught.value.ops == ("aten.cumsum.default", "aten.erf.default")


def _reduced(function: Any) -> Definition:
    """The tiny model, its gradient averaged by ``function(gradient, group)``."""

    def parallel(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        model.weight.grad = function(model.weight.grad)
        optimizer.step()
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
