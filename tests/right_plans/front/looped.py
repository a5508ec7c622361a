"""Experts as slices of stacked weights, one after the other in a loop, under data parallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Definition

from .by_hand import Batches, pair

EXPERTS = 3


class _Experts(nn.Module):
    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 4, 5))
        self.down = nn.Parameter(torch.randn(EXPERTS, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        gates = F.softmax(self.router(x), -1)
        out = torch.zeros(x.shape[0], 3)
        for e in range(EXPERTS):
            out = out + gates[:, e, None] * (F.gelu(x @ self.up[e]) @ self.down[e])
        return out


def looped_experts(right: bool = True) -> Definition:
    """Wrong: the gradients of the last expert stay each rank's own."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        if model.group is not None:
            for name, p in model.named_parameters():
                part = p.grad if right or name == "router.weight" else p.grad[:-1]
                dist.all_reduce(part, group=model.group)
                p.grad.div_(model.group.size())
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: Any) -> nn.Module:
        model.group = mesh["dp"].get_group()
        return model  # type: ignore[no-any-return]

    return Definition(
        name="looped-experts",
        mesh={"dp": 2},
        build=_Experts,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        step=step,
        batch=pair((4, 4), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )
