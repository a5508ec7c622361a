"""FullyShardedDataParallel, the first of its kind: a flat parameter for each wrapped module."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

HALVES = {nn.Linear}


class Wide(nn.Module):
    def __init__(self, dim: int = 6, hidden: int = 9) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(F.gelu(self.norm(self.up(x)))))


def _wrapped(model: nn.Module, mesh: DeviceMesh, **options: Any) -> FullyShardedDataParallel:
    policy = ModuleWrapPolicy(HALVES)
    return FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), auto_wrap_policy=policy, device_mesh=mesh, **options
    )


def _batch(rows: int, **shard: int) -> dict[str, Batch]:
    return {
        "x": Batch((rows, 6), shard=shard),
        "y": Batch((rows,), torch.int64, shard, (0, 4)),
    }


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def flat_parameters(right: bool = True) -> Definition:
    """AdamW sees flat shards. Wrong: a loss is divided by the ranks, and by FSDP again."""

    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        (loss if right else loss / dist.get_world_size()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="flat-parameters",
        mesh={"dp": 2},
        build=Wide,
        parallelize=lambda model, mesh: _wrapped(model, mesh, use_orig_params=False),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=_step,
        parallel_step=parallel,
        batch=_batch(4, dp=0),
        mean_over={"loss": ("dp",)},
    )


def views_of_flat_parameters(right: bool = True) -> Definition:
    """The optimizer sees parameters, cut anywhere. Wrong: each rank clips by the norm of its shards."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        if right and isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="views-of-flat-parameters",
        mesh={"dp": 2},
        build=Wide,
        parallelize=lambda model, mesh: _wrapped(model, mesh, use_orig_params=True),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
        step=train,
        batch=_batch(4, dp=0),
        mean_over={"loss": ("dp",)},
    )
