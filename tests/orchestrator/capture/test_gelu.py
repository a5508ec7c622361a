"""An MLP with exact GELU over data and tensor parallel ranks: proved; refuted if the ranks approximate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import trainverify
from orchestrator.capture import Batch, Definition, capture

pytestmark = pytest.mark.slow
Activation = Callable[[Tensor], Tensor]


def approximated(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.activation: Activation = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.activation(self.up(x)))
        return out


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def definition(on_ranks: Activation = F.gelu) -> Definition:
    """``on_ranks`` is the activation of the parallel model; the single device has the exact one."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert isinstance(model, Mlp)
        model.activation = on_ranks
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["dp"])

    return Definition(
        name="gelu",
        mesh={"dp": 2, "tp": 2},
        build=Mlp,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=step,
        batch={"x": Batch((6, 4), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


def test_exact_gelu_forward_and_backward_is_proved() -> None:
    plan = capture(definition(), jobs=1)
    assert "erf" in {op.name for op in plan.specification.ops}
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


def test_the_approximation_on_the_ranks_is_refuted_by_numbers() -> None:
    """The two curves differ by less than 1e-3: only an enclosure of erf can tell them apart."""
    verdict = trainverify.verify(capture(definition(approximated), jobs=1), jobs=1)
    assert verdict.kind is trainverify.Kind.REFUTED, verdict.report
