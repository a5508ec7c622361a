"""DistributedDataParallel is captured as its C++ Reducer runs it; without its sums no plan is right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from certificates.plan.plan import Plan
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.checks import checked
from orchestrator.capture.errors import CaptureError, GroupError, StateError, WaitError
from orchestrator.capture.group import process_group
from orchestrator.capture.tracing import trace
from orchestrator.evaluating import interpreter

SMALL = 0.0003


class Net(nn.Module):
    def __init__(self, spare: bool = False, buffer: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
        if spare:
            self.spare = nn.Linear(3, 3)
        if buffer:
            self.register_buffer("shift", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "shift"):
            self.shift.mul_(0.5).add_(1)
            x = x + self.shift
        return self.b(self.a(x).relu())


def train(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def definition(
    hook: Callable[[Any], None] | None = None,
    parallel_step: Any = None,
    step: Any = train,
    net: Callable[[], nn.Module] = Net,
    **options: Any,
) -> Definition:
    def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
        wrapped = DistributedDataParallel(model, **options)
        if hook is not None:
            hook(wrapped)
        return wrapped

    return Definition(
        name="ddp",
        mesh={"dp": 4},
        build=net,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        parallel_step=parallel_step,
        batch={"x": Batch((8, 6), shard={"dp": 0})},
        layouts={name: {} for name, _ in net().named_parameters()},
        mean_over={"loss": ("dp",)},
    )


def differences(plan: Plan) -> list[str]:
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    return interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7)


def python_hook(ddp: Any) -> None:
    def mean(state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(4)
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda f: f.value()[0])

    ddp.register_comm_hook(None, mean)


def promising_hook(ddp: Any) -> None:
    """Its future is one of PyTorch's own, set when the collective is done."""

    def mean(_: Any, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        work.get_future().then(lambda done: future.set_result(done.value()[0] / dist.get_world_size()))
        return future

    ddp.register_comm_hook(None, mean)


RIGHT = {
    "default": {},
    "small buckets": {"bucket_cap_mb": SMALL},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": SMALL},
    "static": {"static_graph": True, "bucket_cap_mb": SMALL},
    "static views": {"static_graph": True, "gradient_as_bucket_view": True},
    "find unused": {"find_unused_parameters": True},
    "unused": {"find_unused_parameters": True, "net": lambda: Net(spare=True)},
    "buffers": {"net": lambda: Net(buffer=True)},
    "python hook": {"hook": python_hook},
    "hook with a future of its own": {"hook": promising_hook},
    "allreduce hook": {"hook": lambda d: d.register_comm_hook(None, default_hooks.allreduce_hook)},
    "bf16 hook": {"hook": lambda d: d.register_comm_hook(None, default_hooks.bf16_compress_hook)},
    "builtin": {"hook": lambda d: d._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)},
    "builtin fp16": {"hook": lambda d: d._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_the_reducer_is_captured_as_it_runs(name: str) -> None:
    plan = capture(definition(**RIGHT[name]), jobs=2)
    assert differences(plan) == []
    assert any(op.name == "all_reduce" for op in plan.classes[0].program.ops)


@pytest.mark.slow
def test_wrappers_leave_the_names_of_the_model() -> None:
    def parallelize(model: Any, mesh: Any) -> nn.Module:
        model.a = DistributedDataParallel(model.a)
        model.b = DistributedDataParallel(checkpoint_wrapper(model.b))
        return model

    plan = capture(replace(definition(), parallelize=parallelize), jobs=1)
    assert differences(plan) == []
    assert {"params.a.weight", "params.b.bias", "opt.exp_avg.b.weight"} <= set(plan.classes[0].program.inputs)


def accumulate(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    halves = batch["x"].chunk(2)
    quiet = model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()
    with quiet:
        first = model(halves[0]).square().mean() / 2
        first.backward()
    last = model(halves[1]).square().mean() / 2
    last.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": (first + last).detach()}


@pytest.mark.slow
def test_accumulation_without_synchronisation_in_between() -> None:
    assert differences(capture(definition(step=accumulate), jobs=2)) == []


def unsynchronised(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    with model.no_sync():
        return train(model, optimizer, batch)


@pytest.mark.slow
def test_a_step_that_never_synchronises_is_another_step() -> None:
    assert differences(capture(definition(parallel_step=unsynchronised), jobs=2))


@pytest.mark.slow
def test_a_hook_that_does_not_wait_is_refused() -> None:
    def hasty(ddp: Any) -> None:
        def hook(state: Any, bucket: Any) -> Any:
            dist.all_reduce(bucket.buffer().div_(4), async_op=True)  # started here
            done: Any = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        ddp.register_comm_hook(None, hook)

    with pytest.raises(WaitError, match="# started here"):
        capture(definition(hook=hasty), jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel_step": lambda m, o, b: m.join().__enter__()}, "join cannot be captured"),
        ({"net": lambda: nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8))}, "SyncBatchNorm"),
    ],
)
def test_what_cannot_be_captured_is_named(options: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(definition(**options), jobs=1)


def test_mixed_precision_of_ddp_is_refused_by_name() -> None:
    with process_group(0, 2), FakeTensorMode():
        DistributedDataParallel(nn.Linear(2, 2), mixed_precision=None)
        with pytest.raises(GroupError, match=r"DistributedDataParallel\(mixed_precision=…\) cannot be"):
            DistributedDataParallel(nn.Linear(2, 2), mixed_precision=_MixedPrecision())


def test_a_compression_that_begins_later_is_refused() -> None:
    """PowerSGD reduces as usual until its thousandth step: two traced steps show no more than that."""

    def later(ddp: Any) -> None:
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=1000)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    with pytest.raises(
        StateError, match=r"the step changes \S*_comm_hooks\S*\.iter, which is no tensor, from"
    ):
        trace(checked(definition(hook=later)), 0)


class Heads(nn.Module):
    """Two heads; ``use`` says which take part, and in which order."""

    def __init__(self, use: Callable[[int], tuple[str, ...]]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False)
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.use(dist.get_rank() if dist.is_initialized() else -1):
            x = torch.cat((x, getattr(self, name)(x[:, :6])), 1)
        return x.tanh()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda rank: ("a", "b") if rank < 1 else ("a",), r"compares \[1, 0\] .*and rank 0 has \[1, 1\]"),
        (lambda rank: ("b",) if rank > 2 else ("a",), r"compares \[0, 1\] .*and rank 0 has \[1, 0\]"),
    ],
)
def test_ranks_that_use_other_parameters_are_not_taken_to_agree(
    use: Callable[[int], tuple[str, ...]], said: str
) -> None:
    """The Reducer of a trace sees its own rank's map of used parameters alone."""
    with pytest.raises(GroupError, match=said) as caught:
        capture(definition(net=lambda: Heads(use), find_unused_parameters=True), jobs=1)
    assert caught.value.frame is not None and "loss.backward()" in str(caught.value)
