"""A collective that one rank calls and another does not is refused with the line, not as a malformed plan."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import GroupError


def definition(reduces: Any) -> Definition:
    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).sum()
        loss.backward()
        if dist.is_initialized():
            reduces(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Definition(
        name="unmet",
        mesh={"dp": 2},
        build=lambda: nn.Linear(3, 3, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=step,
        batch={"x": Batch((4, 3), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


def only_the_first(grad: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(grad)


def of_another_kind(grad: torch.Tensor) -> None:
    dist.all_reduce(grad, op=dist.ReduceOp.MAX if dist.get_rank() == 1 else dist.ReduceOp.SUM)


@pytest.mark.parametrize(
    ("reduces", "line"),
    [
        (only_the_first, "        dist.all_reduce(grad)"),
        (of_another_kind, "    dist.all_reduce(grad, op="),
    ],
)
def test_a_collective_that_another_rank_does_not_call_has_its_line(reduces: Any, line: str) -> None:
    with pytest.raises(GroupError, match="rank 0 calls it, and rank 1 calls none like it") as caught:
        capture(definition(reduces), jobs=1)
    file, number, _ = caught.value.frame or ("", 0, "")
    assert file == __file__ and linecache.getline(file, number).startswith(line)
    assert "on all ranks of the group" in (caught.value.instead or "")


def test_a_collective_of_all_ranks_is_met() -> None:
    assert capture(definition(dist.all_reduce), jobs=1).groups["dp"].size == 2
