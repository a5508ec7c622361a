"""Part 1: replicas that average gradients in buckets, as DistributedDataParallel does."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .kit import Batches, adamw, mse_step, part

RANKS = 3
#: Buckets are filled in the order in which gradients arrive: the last layer first.
BUCKETS = (("4.bias", "4.weight", "2.bias"), ("2.weight",), ("0.bias", "0.weight"))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 7), nn.SiLU(), nn.Linear(7, 5))


class Replica(nn.Sequential):
    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__(*model.children())
        self.group = mesh["dp"].get_group()


def unflatten(flat: Tensor, into: Sequence[Tensor], mistake: str) -> None:
    at = 0
    for target in into:
        first = at - 1 if mistake == "bucket offset off by one" and at else at
        target.copy_(flat[first : first + target.numel()].view_as(target))
        at += target.numel()


def reduce_buckets(model: Replica, mistake: str) -> None:
    size = model.group.size()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for number, names in enumerate(BUCKETS):
        bucket = torch.cat([grads[n].reshape(-1) for n in names])
        if mistake == "divided by the ranks of one node":
            bucket = bucket / 2
        elif mistake != "gradient summed, not averaged":
            bucket = bucket / size
        if not (mistake == "last bucket never reduced" and number == len(BUCKETS) - 1):
            dist.all_reduce(bucket, group=model.group)
        if mistake == "bucket reduced twice" and number == 1:
            dist.all_reduce(bucket, group=model.group)
        order = sorted(names) if mistake == "copied back in another order" else names
        if mistake == "one gradient left out of the copy back":
            order = [n for n in order if n != "0.bias"]
            bucket = bucket[-sum(grads[n].numel() for n in order) :]
        unflatten(bucket, [grads[n] for n in order], mistake)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, mistake: str
) -> dict[str, Tensor]:
    assert isinstance(model, Replica)
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    objective = loss / model.group.size() if mistake == "gradient divided twice" else loss
    objective.backward()
    with torch.no_grad():
        reduce_buckets(model, mistake)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def define(mistake: str) -> Definition:
    batch = Batch(shape=(2 * RANKS, 5), shard={"dp": 0})
    return Definition(
        name="breakages-ddp",
        mesh={"dp": RANKS},
        build=build,
        parallelize=Replica,
        optimizer=adamw,
        step=mse_step,
        parallel_step=functools.partial(step, mistake=mistake),
        batch={"x": batch, "y": batch},
        layouts={name: {} for names in BUCKETS for name in names},
        mean_over={"loss": ("dp",)},
    )


PART = part(
    "data parallel: mean of gradients, buckets",
    {
        "ddp": (
            define,
            {
                "gradient divided twice": "params.0.weight",
                "gradient summed, not averaged": "params.0.weight",
                "bucket offset off by one": "params.0.weight",
                "last bucket never reduced": "params.0.weight",
                "bucket reduced twice": "params.2.weight",
                "copied back in another order": "params.*",
                "divided by the ranks of one node": "params.0.weight",
                "one gradient left out of the copy back": "params.0.bias",
            },
        )
    },
)
