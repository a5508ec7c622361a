"""An optimizer that changes weights while it is made is refused: nothing would compare what it did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition
from orchestrator.capture.errors import CaptureError, LayoutError
from orchestrator.capture.tracing import trace


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3, 3))
        self.b = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.a @ self.b


def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["x"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def definition(act: Any) -> Definition:
    def optimizer(params: Any) -> torch.optim.Optimizer:
        held = list(params)
        act(*held)
        return torch.optim.SGD(held, lr=0.1, momentum=0.9)

    return Definition(
        name="making",
        mesh={"dp": 2},
        build=Two,
        parallelize=lambda model, mesh: model,
        optimizer=optimizer,
        step=step,
        batch={"x": Batch((4, 3))},
    )


def swapped(a: Tensor, b: Tensor) -> None:
    a.data, b.data = b.data, a.data


def of_other_memory(a: Tensor, b: Tensor) -> None:
    a.data = b.data.clone()


@torch.no_grad()
def scaled(a: Tensor, b: Tensor) -> None:
    a.mul_(2)


def through_data(a: Tensor, b: Tensor) -> None:
    a.data[0].fill_(1)


@pytest.mark.parametrize("rank", [None, 0])
@pytest.mark.parametrize("act", [swapped, of_other_memory])
def test_other_memory_for_a_parameter_is_refused(act: Any, rank: int | None) -> None:
    """Swapped on the ranks alone, two weights were proved to be what they are on a single device."""
    with pytest.raises(LayoutError, match="is other memory after the optimizer was made") as caught:
        trace(definition(act), rank)
    assert caught.value.tensor == "params.a"
    assert caught.value.frame is not None and caught.value.frame[0] == __file__
    assert "in build" in (caught.value.instead or "")


@pytest.mark.parametrize("rank", [None, 0])
@pytest.mark.parametrize("act", [scaled, through_data])
def test_a_write_to_a_parameter_is_refused_at_its_line(act: Any, rank: int | None) -> None:
    with pytest.raises(LayoutError, match="is written while the optimizer is made") as caught:
        trace(definition(act), rank)
    assert caught.value.tensor == "params.a"
    assert caught.value.frame is not None and caught.value.frame[2] == act.__name__


def broadcast(a: Tensor, b: Tensor) -> None:
    dist.broadcast(a.data, src=0)


def test_a_collective_that_writes_one_is_refused() -> None:
    with pytest.raises(LayoutError, match="is written while the optimizer is made") as caught:
        trace(definition(broadcast), 0)
    assert caught.value.op == "dist.broadcast" and caught.value.frame is not None


def raw(a: Tensor, b: Tensor) -> None:
    a.untyped_storage().fill_(1)


def test_a_raw_write_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"UntypedStorage\.fill_ writes to a storage"):
        trace(definition(raw), None)


def test_an_optimizer_may_make_states_of_its_own_and_read_weights() -> None:
    def momenta(a: Tensor, b: Tensor) -> None:
        torch.zeros_like(a).add_(b.detach()).mul_(torch.tensor([1.0, 2.0, 3.0]))

    assert trace(definition(momenta), None).program.outputs
