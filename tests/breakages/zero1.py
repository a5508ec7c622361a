"""Parts 3 and 12: ZeRO-1, optimizer state in chunks of one flat, padded bucket; AdamW with weight decay.

Both share the code of ``examples/models/ddp_zero1.py``. Matrices decay and biases do not, which a flat chunk
no longer shows: a flat mask says so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from examples.models.ddp_zero1 import MOMENTS, Flat
from examples.models.ddp_zero1 import build as perceptron
from orchestrator.capture import Batch, Definition
from orchestrator.capture.definition import Bucket

from .kit import Batches, mse_step, part

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
LR, DECAY, BETA1, BETA2, EPS = 1e-3, 0.1, 0.9, 0.95, 1e-8


class AdamW(torch.optim.Optimizer):
    """AdamW of matrices and vectors, written out; ``mask`` says what decays (default: matrices)."""

    def __init__(self, params: Iterable[nn.Parameter], mistake: str = "") -> None:
        super().__init__(params, {"lr": LR, "capturable": True})
        self.mistake = mistake
        parameters = self.param_groups[0]["params"]
        for parameter in parameters:
            self.state[parameter] = {name: torch.zeros_like(parameter) for name in MOMENTS}
        self.state[parameters[0]]["step"] = parameters[0].new_zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group, mistake = self.param_groups[0], self.mistake
        count = self.state[group["params"][0]]["step"]
        count += 2 if mistake == "step counted twice" else 1
        for p in group["params"]:
            grad, mask = p.grad, getattr(p, "mask", 1.0 if p.dim() > 1 else 0.0)
            if mistake == "weight decay inside the gradient":
                grad = grad + DECAY * mask * p
            first, second = (self.state[p][name] for name in MOMENTS)
            first.lerp_(grad, 1 - BETA1)
            local = mistake == "second moment of the local gradient"
            square = getattr(p, "local_grad", grad) if local else grad
            second.mul_(BETA2).addcmul_(square, square, value=1 - BETA2)
            mean, variance = first / (1 - BETA1**count), second / (1 - BETA2**count)
            root = (variance + EPS).sqrt() if mistake == "epsilon inside the root" else variance.sqrt() + EPS
            decay = 1 - group["lr"] * DECAY * mask
            if mistake == "weight decay inside the gradient":
                p.sub_(group["lr"] * mean / root)
            elif mistake == "weight decay after the update":
                p.copy_((p - group["lr"] * mean / root) * decay)
            else:
                p.copy_(p * decay - group["lr"] * mean / root)


def optimizer(parameters: Iterable[nn.Parameter], mistake: str = "") -> AdamW:
    """Of the single device's parameters, or of the chunk alone, where mistakes are made."""
    parameters = list(parameters)
    return AdamW(parameters[:1], mistake) if parameters[0].dim() == 1 else AdamW(parameters)


def start_of(flat: Flat, mistake: str) -> int:
    """Where this rank's chunk starts in the flat bucket."""
    if mistake == "chunks start without the padding":
        return flat.group.rank() * (sum(p.numel() for p in flat.whole) // flat.group.size())
    return flat.group.rank() * flat.chunk


def decay_mask(flat: Flat, mistake: str) -> Tensor:
    """1 where the flat chunk of this rank holds elements of matrices."""
    ones = [torch.full_like(p, float(p.dim() > 1 or mistake == "biases decay too")) for p in flat.whole]
    whole = flat.flatten(ones)
    start = 0 if mistake == "weight decay on the wrong shard" else start_of(flat, mistake)
    if mistake == "decay mask off by one":
        whole = torch.cat([whole[1:], whole[:1]])
    return whole[start : start + flat.chunk]


def unflatten(flat: Flat, whole: Tensor, into: Sequence[Tensor], mistake: str) -> None:
    at = flat.padding if mistake == "padding taken for the front" else 0
    for target in into:
        first = at - 1 if mistake == "bucket offset off by one" and at else at
        target.copy_(whole[first : first + target.numel()].view_as(target))
        at += target.numel()


def step(flat: nn.Module, adam: torch.optim.Optimizer, batch: Batches, mistake: str) -> dict[str, Tensor]:
    assert isinstance(flat, Flat)
    flat.zero_grad()
    loss = F.mse_loss(flat(batch["x"]), batch["y"])
    loss.backward()
    parameters, size = flat.whole, flat.group.size()
    with torch.no_grad():
        bucket = flat.flatten([p.grad for p in parameters if p.grad is not None])
        if mistake == "gradient divided twice":
            bucket = bucket / size
        start, mine = start_of(flat, mistake), flat.chunk_of_parameters
        if mistake == "own piece instead of the sum":
            chunk = bucket[start : start + flat.chunk] * size
        else:
            chunk = bucket.new_empty(flat.chunk)
            dist.reduce_scatter_tensor(chunk, bucket, group=flat.group)
        mine.copy_(flat.flatten(parameters)[start : start + flat.chunk])
        mine.grad = chunk / size
        mine.mask = decay_mask(flat, mistake)
        mine.local_grad = bucket[start : start + flat.chunk]
        adam.step()
        adam.zero_grad()
        whole = torch.empty_like(bucket)
        dist.all_gather_into_tensor(whole, mine.detach(), group=flat.group)
        if mistake == "others' chunks not gathered":
            whole = flat.flatten(parameters)
            whole[start : start + flat.chunk] = mine
        unflatten(flat, whole, parameters, mistake)
    return {"loss": loss}


def define(mistake: str, ranks: int, dim: int, hidden: int) -> Definition:
    buckets = {
        f"{kind}.chunk_of_parameters": Bucket(tuple(f"{kind}.{n}" for n in NAMES), "dp")
        for kind in ("params", *(f"opt.{m}" for m in MOMENTS))
    }
    buckets["opt.step.chunk_of_parameters"] = Bucket(("opt.step.0.weight",))
    batch = Batch(shape=(2 * ranks, dim), shard={"dp": 0})
    layouts: Mapping[str, Mapping[str, int]] = {name: {} for name in (*NAMES, "chunk_of_parameters")}

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return Flat(model, mesh, zero=True)

    return Definition(
        name=f"breakages-zero1-dp{ranks}",
        mesh={"dp": ranks},
        build=lambda: perceptron(dim, hidden),
        parallelize=parallelize,
        optimizer=functools.partial(optimizer, mistake=mistake),
        step=mse_step,
        parallel_step=functools.partial(step, mistake=mistake),
        batch={"x": batch, "y": batch},
        layouts=layouts,
        buckets=buckets,
        mean_over={"loss": ("dp",)},
    )


ZERO1 = part(
    "ZeRO-1: sharded optimizer, flat padded buckets",
    {
        "dp 3": (
            functools.partial(define, ranks=3, dim=4, hidden=5),
            {
                "bucket offset off by one": "params.0.bias",
                "chunks start without the padding": "params.*",
                "gradient divided twice": "params.0.weight",
                "own piece instead of the sum": "params.0.weight",
                "padding taken for the front": "params.0.weight",
                "others' chunks not gathered": "params.0.weight",
            },
        )
    },
)
ADAMW = part(
    "AdamW with weight decay",
    {
        "sharded over dp 2": (
            functools.partial(define, ranks=2, dim=5, hidden=4),
            {
                "weight decay on the wrong shard": "params.2.bias",
                "biases decay too": "params.0.bias",
                "decay mask off by one": "params.*",
                "weight decay inside the gradient": "params.0.weight",
                "weight decay after the update": "params.0.weight",
                "step counted twice": "opt.step.0.weight in *",
                "epsilon inside the root": "params.*",
                "second moment of the local gradient": "params.0.weight",
            },
        )
    },
)
