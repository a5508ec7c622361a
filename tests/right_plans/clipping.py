"""Gradients clipped by a norm, in several ways to compute it."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition

from ..breakages.kit import (
    Batches,
    adamw,
    copy,
    reduce,
    summed,
)
from .layers import MLP, PIECES
from .ranks import Rank, averaged, data_parallel, grads


def clip(gradients: list[Tensor], norm: Tensor, most: float = 1.0) -> None:
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)
    for g in gradients:
        g.mul_(factor)


def _clipping(model: nn.Module, optimizer: Any, batch: Batches, after: Any, norm: Any) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    with torch.no_grad():
        after(model)
        total = norm(grads(model))
        clip(grads(model), total)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss, "norm": total}


def _flat_norm(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients]).pow(2).sum().sqrt()


def _norm_of_norms(gradients: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))


def clipped_by_norms() -> Definition:
    """The norm of all parameters' norms, against the norm of one flat vector."""
    one = functools.partial(_clipping, after=lambda _: None, norm=_flat_norm)
    many = functools.partial(_clipping, after=averaged("dp"), norm=_norm_of_norms)
    return data_parallel("clipped-by-norms", many, one, mean_over={"loss": ("dp",)})


def clipped_over_pieces() -> Definition:
    """Sharded and replicated parameters: the sharded ones' squares are added over ranks."""

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["tp"]
        h = F.relu(m.up(copy(x, group)))
        return reduce(F.linear(h, m.down.weight), group) + m.down.bias

    class Net(MLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.relu(self.up(x)))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        def norm(_: list[Tensor]) -> Tensor:
            squares = sum(g.grad.pow(2).sum() for g in (model.up.weight, model.up.bias, model.down.weight))
            return (summed(squares, model.groups["tp"]) + model.down.bias.grad.pow(2).sum()).sqrt()

        return _clipping(model, optimizer, batch, lambda _: None, norm)

    one = functools.partial(_clipping, after=lambda _: None, norm=_norm_of_norms)
    return Definition(
        name="clipped-over-pieces",
        mesh={"tp": 2},
        build=Net,
        parallelize=lambda m, mesh: Rank(m, mesh, forward, PIECES),
        optimizer=adamw,
        step=one,
        parallel_step=step,
        batch={"x": Batch((4, 6)), "y": Batch((4, 6))},
        layouts={**{n: {a: d} for n, (a, d) in PIECES.items()}, "down.bias": {}},
    )


def clipped_elementwise() -> Definition:
    """Gradients are clamped after the mean over ranks."""

    def step(model: nn.Module, optimizer: Any, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        if isinstance(model, Rank):
            with torch.no_grad():
                averaged("dp")(model)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return data_parallel("clipped-elementwise", step, step, mean_over={"loss": ("dp",)})
