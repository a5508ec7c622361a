"""Part 6: gradients of several microbatches accumulated; part 8: losses divided by symbolic token counts.

In part 8 every rank and microbatch has another number of valid tokens, known only when the step runs.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .kit import Batches, adamw, part, summed

IGNORED = -100


class Replica(nn.Module):
    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        for name, layer in model.named_children():
            self.add_module(name, layer)
        self.group = mesh["dp"].get_group()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


# --- part 6 -----------------------------------------------------------------------------------------------


def accumulate(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, mistake: str = ""
) -> dict[str, Tensor]:
    group = model.group if isinstance(model, Replica) else None
    count = batch["x"].shape[0]
    losses = []
    for number in range(count):
        at = 0 if mistake == "first microbatch read again" and number == 1 else number
        loss = F.mse_loss(model(batch["x"][at]), batch["y"][at])
        if mistake == "gradients cleared before every microbatch":
            model.zero_grad()
        if mistake in ("earlier microbatches rescaled", "not divided by the number of microbatches"):
            loss.backward()
        else:
            (loss / count).backward()
        losses.append(loss.detach())
        with torch.no_grad():
            last = number == count - 1
            for grad in gradients(model) if group is not None else ():
                if mistake == "earlier microbatches rescaled":
                    grad /= count
                every = mistake == "summed over ranks after every microbatch"
                if mistake == "reduced before the last microbatch":
                    last = number == count - 2
                if last or every:
                    dist.all_reduce(grad, group=group)
                if last:
                    grad /= group.size()
    optimizer.step()
    optimizer.zero_grad()
    total = losses[-1] if mistake == "loss of the last microbatch" else torch.stack(losses).sum() / count
    return {"loss": total}


def define_accumulation(mistake: str) -> Definition:
    batch = Batch(shape=(3, 4, 5), shard={"dp": 1})
    return Definition(
        name="breakages-accumulation",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 5)),
        parallelize=Replica,
        optimizer=adamw,
        step=accumulate,
        parallel_step=functools.partial(accumulate, mistake=mistake),
        batch={"x": batch, "y": batch},
        layouts={name: {} for name in ("0.weight", "0.bias", "2.weight", "2.bias")},
        mean_over={"loss": ("dp",)},
    )


# --- part 8 -----------------------------------------------------------------------------------------------


def normalise(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, mistake: str = ""
) -> dict[str, Tensor]:
    group = model.group if isinstance(model, Replica) else None
    labels = torch.where(batch["valid"], batch["labels"], IGNORED)
    valid = labels != IGNORED
    if mistake == "tokens of the shifted mask counted":
        valid = valid[..., 1:]
    count = torch.full((), labels.numel()) if mistake == "padding counted" else valid.sum()
    local = mistake in ("mean of local means", "count not reduced over ranks")
    if group is not None and not local:
        count = summed(count, group)
    losses = []
    for number in range(labels.shape[0]):
        logits = model(batch["x"][number]).flatten(0, 1)
        loss = F.cross_entropy(logits, labels[number].flatten(), reduction="sum", ignore_index=IGNORED)
        if mistake == "every microbatch divided by its own count":
            own = summed((labels[number] != IGNORED).sum(), group)
            loss = loss / own / labels.shape[0]
        elif mistake == "divided after the backward pass":
            loss.backward()
            losses.append(loss.detach() / count)
            continue
        else:
            loss = loss / count
        loss.backward()
        losses.append(loss.detach())
    total = torch.stack(losses).sum()
    if group is not None:
        total = summed(total, group)
        with torch.no_grad():
            for grad in gradients(model):
                dist.all_reduce(grad, group=group)
                if mistake in ("mean of local means", "sum of token losses averaged over ranks"):
                    grad /= group.size()
        if mistake == "mean of local means":
            total = total / group.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": total}


def define_counts(mistake: str) -> Definition:
    shape, shard = (2, 4, 3), {"dp": 1}
    return Definition(
        name="breakages-token-counts",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 7)),
        parallelize=Replica,
        optimizer=adamw,
        step=normalise,
        parallel_step=functools.partial(normalise, mistake=mistake),
        batch={
            "x": Batch(shape=(*shape, 4), shard=shard),
            "labels": Batch(shape=shape, dtype=torch.int64, shard=shard, bounds=(0, 7)),
            "valid": Batch(shape=shape, dtype=torch.bool, shard=shard),
        },
        layouts={name: {} for name in ("0.weight", "0.bias", "2.weight", "2.bias")},
    )


ACCUMULATION = part(
    "gradient accumulation",
    {
        "3 microbatches": (
            define_accumulation,
            {
                "earlier microbatches rescaled": "params.0.weight",
                "not divided by the number of microbatches": "params.0.weight",
                "gradients cleared before every microbatch": "params.0.weight",
                "summed over ranks after every microbatch": "params.0.weight",
                "reduced before the last microbatch": "params.0.weight",
                "first microbatch read again": "loss",
                "loss of the last microbatch": "loss",
            },
        )
    },
)
COUNTS = part(
    "token counts that differ per rank and microbatch",
    {
        "2 microbatches": (
            define_counts,
            {
                "mean of local means": "loss",
                "every microbatch divided by its own count": "loss",
                "padding counted": "loss",
                "count not reduced over ranks": "loss",
                "tokens of the shifted mask counted": "loss",
                "sum of token losses averaged over ranks": "params.0.weight",
                "divided after the backward pass": "params.0.weight",
            },
        )
    },
)
