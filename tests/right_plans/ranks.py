"""A rank's model with another forward pass, and steps around it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from ..breakages.kit import (
    Batches,
    adamw,
    mse_step,
    shard,
)


class Rank(nn.Module):
    """A rank's model: the parameters of the single device, some of them in pieces, and another forward."""

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        forward: Callable[..., Tensor],
        pieces: Mapping[str, tuple[str, int]],
    ) -> None:
        super().__init__()
        self.groups = {a: mesh[a].get_group() for a in mesh.mesh_dim_names or ()}
        for name, value in vars(model).items():
            if not name.startswith("_"):
                setattr(self, name, value)
        for name, layer in model.named_children():
            self.add_module(name, layer)
        for name, parameter in list(model.named_parameters(recurse=False)):
            setattr(self, name, parameter)
        for name, (axis, dim) in pieces.items():
            owner, _, last = name.rpartition(".")
            shard(self.get_submodule(owner), last, dim, self.groups[axis])
        self.of = forward

    def forward(self, *batch: Tensor) -> Tensor:
        return self.of(self, *batch)


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def regression(
    name: str,
    mesh: Mapping[str, int],
    build: Callable[[], nn.Module],
    forward: Callable[..., Tensor],
    pieces: Mapping[str, tuple[str, int]],
    shape: tuple[int, ...],
    rows: Mapping[str, int],
    after: Callable[[Rank], None] = lambda _: None,
    out: tuple[int, ...] | None = None,
    optimizer: Any = sgd,
) -> Definition:
    """A step with a mean squared error; ``after`` is what follows the backward pass."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            after(model)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    with torch.device("meta"):
        names = [n for n, _ in build().named_parameters()]
    return Definition(
        name=name,
        mesh=mesh,
        build=build,
        parallelize=lambda model, m: Rank(model, m, forward, pieces),
        optimizer=optimizer,
        step=functools.partial(mse_step) if optimizer is sgd else mse_step,
        parallel_step=step,
        batch={"x": Batch(shape, shard=rows), "y": Batch(out or shape, shard=rows)},
        layouts={n: {pieces[n][0]: pieces[n][1]} if n in pieces else {} for n in names},
        mean_over={"loss": tuple(rows)},
    )


def averaged(*axes: str) -> Callable[[Rank], None]:
    """Mean of all gradients over some axes."""

    def after(model: Rank) -> None:
        for axis in axes:
            for grad in grads(model):
                dist.all_reduce(grad, group=model.groups[axis])
                grad /= model.groups[axis].size()

    return after


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))


def chain(m: Any, x: Tensor) -> Tensor:
    for layer in m.children():
        x = layer(x)
    return x


def data_parallel(
    name: str,
    step: Any,
    single: Any = mse_step,
    mesh: Mapping[str, int] | None = None,
    optimizer: Any = adamw,
    build: Callable[[], nn.Module] = net,
    forward: Callable[..., Tensor] = chain,
    shape: tuple[int, ...] = (4, 5),
    rows: Mapping[str, int] | None = None,
    **more: Any,
) -> Definition:
    mesh = mesh or {"dp": 2}
    with torch.device("meta"):
        names = [n for n, _ in build().named_parameters()]
    batch = Batch(shape, shard=rows or {"dp": 0})
    return Definition(
        name=name,
        mesh=mesh,
        build=build,
        parallelize=lambda model, m: Rank(model, m, forward, {}),
        optimizer=optimizer,
        step=single,
        parallel_step=step,
        batch={"x": batch, "y": batch},
        **{"layouts": {n: {} for n in names}, **more},
    )
