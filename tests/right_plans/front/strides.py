"""A residual network that halves its pictures, with normalisation by groups, data parallel.

Written without a look at the prover, and UNKNOWN at first: windows of three places, two apart, share places,
so that a place is in two windows.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition


class Residual(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norms = nn.ModuleList((nn.GroupNorm(2, wide), nn.GroupNorm(2, wide)))
        self.around = nn.Conv2d(narrow, wide, 1, stride) if narrow != wide else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.around(x) + self.norms[1](self.second(y)))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.stages = nn.ModuleList((Residual(4, 4, 1), Residual(4, 8, 2)))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for stage in self.stages:
            x = stage(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def halved_pictures(right: bool = True) -> Definition:
    """The wrong one sums the gradients of its ranks instead of averaging them."""

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        if dist.is_initialized():
            how = dist.ReduceOp.AVG if right else dist.ReduceOp.SUM
            works = [dist.all_reduce(p.grad, op=how, async_op=True) for p in model.parameters()]
            for work in works:
                assert work is not None
                work.wait()
        optimizer.step()
        return {"loss": loss.detach()}

    return Definition(
        name="halved-pictures",
        mesh={"dp": 2},
        build=Pictures,
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
        ),
        step=step,
        batch={
            "x": Batch((4, 3, 4, 4), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, shard={"dp": 0}, bounds=(0, 3)),
        },
        mean_over={"loss": ("dp",)},
    )
