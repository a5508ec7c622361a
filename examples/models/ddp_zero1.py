"""Data parallelism written by hand: gradients in one flat, padded bucket, as DDP and ZeRO-1 have it.

With ``zero=0`` the bucket is all-reduced and every rank updates everything. With ``zero=1`` it is
reduce-scattered, a rank keeps optimizer state for its chunk only, updates that chunk of the flattened
parameters and gathers the others'. The chunks cut through tensors and rows; ``buckets`` declares that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition
from orchestrator.capture.definition import Bucket

MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam(torch.optim.Optimizer):
    """AdamW whose step count is one for all parameters; it lies with the first of them."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-3, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "capturable": True})
        parameters = self.param_groups[0]["params"]
        for parameter in parameters:
            self.state[parameter] = {name: torch.zeros_like(parameter) for name in MOMENTS}
        self.state[parameters[0]]["step"] = parameters[0].new_zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        count = self.state[group["params"][0]]["step"]
        count += 1
        for p in group["params"]:
            first, second = (self.state[p][name] for name in MOMENTS)
            first.lerp_(p.grad, 0.1)
            second.mul_(0.95).addcmul_(p.grad, p.grad, value=0.05)
            p.mul_(1 - group["lr"] * group["weight_decay"])
            scale = (second / (1 - 0.95**count)).sqrt() + 1e-8
            p.sub_(group["lr"] * (first / (1 - 0.9**count)) / scale)


def build(dim: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim))


class Flat(nn.Sequential):
    """The model, the group, and under ZeRO-1 this rank's chunk of the flattened parameters."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, zero: bool) -> None:
        super().__init__(*model.children())
        self.group = mesh["dp"].get_group()
        self.whole = list(model.parameters())
        total = sum(p.numel() for p in self.whole)
        self.chunk = -(-total // self.group.size())
        self.padding = self.chunk * self.group.size() - total
        if zero:
            self.chunk_of_parameters = nn.Parameter(self.whole[0].detach().new_zeros(self.chunk))

    def flatten(self, tensors: Iterable[Tensor]) -> Tensor:
        return F.pad(torch.cat([t.reshape(-1) for t in tensors]), (0, self.padding))

    def unflatten(self, flat: Tensor, into: Iterable[Tensor]) -> None:
        at = 0
        for target in into:
            target.copy_(flat[at : at + target.numel()].view_as(target))
            at += target.numel()


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def parallel_step(
    flat: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor], *, zero: bool
) -> dict[str, Tensor]:
    assert isinstance(flat, Flat)
    flat.zero_grad()  # the optimizer of a chunk does not know the model's parameters
    loss = F.mse_loss(flat(batch["x"]), batch["y"])
    loss.backward()
    parameters, size = flat.whole, flat.group.size()
    with torch.no_grad():
        bucket = flat.flatten(p.grad for p in parameters)
        if not zero:
            dist.all_reduce(bucket, group=flat.group)
            flat.unflatten(bucket / size, (p.grad for p in parameters))
            optimizer.step()
            return {"loss": loss}
        chunk = bucket.new_empty(flat.chunk)
        dist.reduce_scatter_tensor(chunk, bucket, group=flat.group)
        start, mine = flat.group.rank() * flat.chunk, flat.chunk_of_parameters
        mine.copy_(flat.flatten(parameters)[start : start + flat.chunk])
        mine.grad = chunk / size
        optimizer.step()
        whole = torch.empty_like(bucket)
        dist.all_gather_into_tensor(whole, mine.detach(), group=flat.group)
        flat.unflatten(whole, parameters)
    return {"loss": loss}


def optimizer(parameters: Iterable[nn.Parameter], *, zero: bool) -> Adam:
    parameters = list(parameters)
    return Adam(parameters[:1] if zero and parameters[0].dim() == 1 else parameters)


def definition(dim: int = 5, hidden: int = 7, ranks: int = 4, zero: int = 1) -> Definition:
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    buckets = {
        f"{kind}.chunk_of_parameters": Bucket(tuple(f"{kind}.{n}" for n in names), "dp")
        for kind in ("params", *(f"opt.{m}" for m in MOMENTS))
    }
    buckets["opt.step.chunk_of_parameters"] = Bucket(("opt.step.0.weight",))
    batch = Batch(shape=(2 * ranks, dim), shard={"dp": 0})
    return Definition(
        name=f"zero1-dp{ranks}" if zero else f"ddp-bucket-dp{ranks}",
        mesh={"dp": ranks},
        build=lambda: build(dim, hidden),
        parallelize=functools.partial(Flat, zero=bool(zero)),
        optimizer=functools.partial(optimizer, zero=bool(zero)),
        step=train_step,
        parallel_step=functools.partial(parallel_step, zero=bool(zero)),
        batch={"x": batch, "y": batch},
        layouts={name: {} for name in (*names, *["chunk_of_parameters"][: bool(zero)])},
        buckets=buckets if zero else {},
        mean_over={"loss": ("dp",)},
    )
