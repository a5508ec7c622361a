"""Which tensors a step finds and leaves, wherever an ordinary optimizer keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module

from orchestrator.capture import Batch, CaptureError, Definition
from orchestrator.capture.shims import symbolic_hyperparameters
from orchestrator.capture.states import kind, states_of
from orchestrator.capture.tracing import trace


@dataclass
class Moments:
    first: Tensor
    label: str = "moments"


class Momentum(torch.optim.Optimizer):
    """Keeps its state in an object of its own making."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            held = self.state[p].setdefault("moments", Moments(torch.zeros_like(p)))
            held.first.mul_(0.9).add_(p.grad)
            p.add_(held.first, alpha=-0.1)


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer, whose state is state, too."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        for p in self.param_groups[0]["params"]:
            slow = self.state[p].setdefault("slow", p.clone())
            p.copy_(slow.lerp_(p, 0.5))


def train(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    optimizer.zero_grad()
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach()}


def definition(**changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "mesh": {"tp": 2},
        "build": lambda: nn.Linear(4, 4, bias=False),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": train,
        "batch": {"x": Batch((2, 4, 4))},
    }
    return Definition(name="states", **(fields | changes))


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (Momentum, {"opt.moments.first.weight"}),
        (lambda params: Lookahead(torch.optim.Adam(params)), {"opt.slow.weight", "opt.exp_avg.weight"}),
    ],
)
def test_state_in_objects_and_in_wrapped_optimizers_is_state(optimizer: Any, names: set[str]) -> None:
    """It was "a tensor that is no state", with advice to make it one."""
    program = trace(definition(optimizer=optimizer), None).program
    assert names <= set(program.inputs) and names <= set(program.outputs)


def build() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4, bias=False))


def sequence_parallel(model: Any, mesh: Any) -> Any:
    """The norm sees rows of the sequence only: its gradients are partial sums of the ranks."""
    gathered = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    return parallelize_module(model, mesh, {"0": SequenceParallel(), "1": gathered})


def unzeroed(model: Any, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach()}


def test_partial_gradients_that_are_zeroed_before_they_are_read_are_no_states() -> None:
    """zero_grad() at the beginning of a step, as most write it, was refused under sequence parallelism."""
    made = definition(build=build, parallelize=sequence_parallel)
    assert "params.0.weight" in trace(made, 0).program.outputs


def test_partial_gradients_that_a_step_reads_are_summands_of_the_specifications() -> None:
    made = definition(build=build, parallelize=sequence_parallel, step=unzeroed)
    found = trace(made, 0).layouts["grads.0.weight"]
    assert found.summed == ("tp",) and found.shards == {} and not found.traced


def named(optimizer_of: Any) -> list[str]:
    """Names of the states of a small model and its optimizer."""
    with FakeTensorMode():
        model = nn.Linear(2, 2)
        optimizer = optimizer_of(model)
        symbolic_hyperparameters(optimizer)
        made = definition()
        return list(states_of(made, model, optimizer, parallel=False))


def test_the_learning_rate_of_every_group_has_a_name() -> None:
    """As the plan format has it: the first is ``hyper.lr``, further ones have numbers."""

    def grouped(model: Any) -> Any:
        return torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1}])

    assert [n for n in named(grouped) if kind(n) == "hyper"] == ["hyper.lr", "hyper.lr.1"]


def with_state(owner: Any) -> Any:
    def made(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.state[owner] = {"decay": torch.zeros(())}
        return optimizer

    return made


def test_state_that_an_optimizer_keeps_for_all_parameters_is_a_state() -> None:
    """It stands under a key that is no parameter, and is carried from step to step like the others."""
    found = named(with_state("average"))
    assert "opt.average.decay" in found and {kind(n) for n in found} == {"params", "opt", "hyper"}


def test_state_of_a_tensor_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"keeps opt\.decay for a tensor of shape \[3\] that is no param"):
        named(with_state(torch.zeros(3)))
