"""Losses of several tasks, whose weights are learned."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from orchestrator.capture import Batch, Definition

from .by_hand import Batches


class _Tasks(nn.Module):
    """Two heads, and the logarithm of each task's variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.class_of, self.size_of = nn.Linear(8, 5), nn.Linear(8, 1)
        self.spread = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.body(x))
        return self.class_of(h), self.size_of(h)[:, 0], self.spread * 1


def learned_uncertainty(right: bool = True) -> Definition:
    """Each loss over its variance, and that variance's logarithm, under FSDP2. Wrong: the ranks' logarithms
    are added up, as the losses' means are."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        classes, sizes, spread = model(batch["x"])
        one = F.cross_entropy(classes, batch["class"])
        other = F.smooth_l1_loss(sizes, batch["size"])
        times = 1 if right or not dist.is_initialized() else dist.get_world_size()
        loss = torch.exp(-spread[0]) * one + torch.exp(-spread[1]) * other
        loss = loss + times * (spread[0] + spread[1]) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"one": one.detach(), "other": other.detach()}

    def parallelize(model: Any, mesh: Any) -> nn.Module:
        fully_shard(model, mesh=mesh["dp"])
        return model  # type: ignore[no-any-return]

    rows = {"dp": 0}
    return Definition(
        name="learned-uncertainty",
        mesh={"dp": 2},
        build=_Tasks,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch={
            "x": Batch((4, 6), shard=rows),
            "class": Batch((4,), torch.int64, rows, (0, 5)),
            "size": Batch((4,), shard=rows),
        },
        mean_over={"one": ("dp",), "other": ("dp",)},
    )
