"""Losses and optimizers that look at more than the rows of a rank, and adapters with a norm over ranks.

These were written without a look at the prover, and were proved as they stand.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own
from .many_habits import Enter
from .preferences import Pair, grouped

WIDTH, WORDS, LENGTH = 8, 16, 6


class Total(torch.autograd.Function):
    """Added up over ranks; so is its gradient, if ``both``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, both: bool) -> Tensor:
        ctx.group, ctx.both = group, both
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.both:
            gradient = gradient.contiguous().clone()
            dist.all_reduce(gradient, group=ctx.group)
        return gradient, None, None


def barlow_twins(right: bool = True) -> Definition:
    """Features of two views are normalised and correlated over all rows. Wrong: correlated over a rank's."""

    def train(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, right: bool
    ) -> dict[str, Tensor]:
        group = getattr(model, "group", None)
        rows = batch["a"].shape[0] * (group.size() if group else 1)

        def total(x: Tensor) -> Tensor:
            return Total.apply(x, group, True) if group else x

        def normalised(x: Tensor) -> Tensor:
            x = x - total(x.sum(0)) / rows
            return x / torch.sqrt(total(x.square().sum(0)) / rows + 1e-5)

        a, b = normalised(model(batch["a"])), normalised(model(batch["b"]))
        c = total(a.T @ b) / rows if right else a.T @ b / batch["a"].shape[0]
        apart = c.flatten()[:-1].view(5, 7)[:, 1:]
        loss = (torch.diagonal(c) - 1).square().sum() + 0.005 * apart.square().sum()
        loss.backward()
        for p in model.parameters() if group else ():
            assert p.grad is not None
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    view = Batch((4, WIDTH), shard={"dp": 0})
    return Definition(
        name="barlow-twins",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, 6)),
        parallelize=grouped,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4),
        step=lambda model, optimizer, batch: train(model, optimizer, batch, True),
        parallel_step=lambda model, optimizer, batch: train(model, optimizer, batch, right),
        batch={"a": view, "b": view},
        mean_over={} if right else {"loss": ("dp",)},
    )


def sharpness_aware(right: bool = True) -> Definition:
    """SAM: up along the gradient by its norm, and down from there. Wrong: the first gradient is kept."""

    def train(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, right: bool
    ) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        params = list(model.parameters())
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in params]))
            climbs = [p.grad * (0.05 / (norm + 1e-12)) for p in params if p.grad is not None]
            torch._foreach_add_(params, climbs)
        if right:
            optimizer.zero_grad()
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        with torch.no_grad():
            torch._foreach_sub_(params, climbs)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="sharpness-aware",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 4)),
        parallelize=lambda model, mesh: DistributedDataParallel(model, process_group=mesh["dp"].get_group()),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        step=lambda model, optimizer, batch: train(model, optimizer, batch, True),
        parallel_step=lambda model, optimizer, batch: train(model, optimizer, batch, right),
        batch={
            "x": Batch((4, WIDTH), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, {"dp": 0}, (0, 4)),
        },
        mean_over={"loss": ("dp",)},
    )


def _logs(model: nn.Module, ids: Tensor) -> Tensor:
    logs = torch.log_softmax(model(ids[:, :-1]), dim=-1)
    return torch.gather(logs, 2, ids[:, 1:, None]).squeeze(-1)


def grouped_advantages(right: bool = True) -> Definition:
    """GRPO: rewards are normalised in groups of answers, tokens counted over all ranks. Wrong: over one."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches, right: bool) -> dict[str, Tensor]:
        ids, mask = batch["ids"].flatten(0, 1), batch["mask"].flatten(0, 1)[:, 1:]
        rewards, old = batch["rewards"], batch["old"].flatten(0, 1)[:, 1:]
        gains = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        gains = gains.flatten()[:, None]
        now = _logs(model.policy, ids)
        with torch.no_grad():
            before = _logs(model.reference, ids)
        ratio = torch.exp(now - old)
        losses = -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
        apart = before - now
        losses = losses + 0.04 * (torch.exp(apart) - apart - 1)
        count, group = mask.sum(), getattr(model, "group", None)
        if group and right:
            dist.all_reduce(count, group=group)
        loss = (losses * mask).sum() / count.clamp(min=1.0)
        loss.backward()
        for p in model.policy.parameters() if group else ():
            dist.all_reduce(p.grad, group=group)
            if not right:
                p.grad /= dist.get_world_size(group)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach().clone()
        if group:
            dist.all_reduce(loss, group=group)
        return {"loss": loss}

    numbers = Batch((4, 3, LENGTH), shard={"dp": 0})
    return Definition(
        name="grouped-advantages",
        mesh={"dp": 2},
        build=Pair,
        parallelize=grouped,
        optimizer=lambda params: torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-5),
        step=lambda model, optimizer, batch: train(model, optimizer, batch, True),
        parallel_step=lambda model, optimizer, batch: train(model, optimizer, batch, right),
        batch={
            "ids": Batch((4, 3, LENGTH), torch.int64, {"dp": 0}, (0, WORDS)),
            "mask": numbers,
            "old": numbers,
            "rewards": Batch((4, 3), shard={"dp": 0}),
        },
    )


class _Magnitudes(nn.Module):
    """DoRA: a frozen weight and a low-rank change, each row scaled to a learned length."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outer, inner), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(2, inner)), nn.Parameter(torch.zeros(outer, 2))
        self.length = nn.Parameter(torch.ones(outer))
        #: Its columns are on these ranks; ``whole``: so are the squares that are added up.
        self.group: dist.ProcessGroup | None = None
        self.whole = True

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + 2.0 * (self.b @ self.a)
        squares, y = weight.square().sum(1), F.linear(x, weight)
        if self.group is not None:
            y = Total.apply(y, self.group, False)
            squares = Total.apply(squares, self.group, False) if self.whole else squares
        return y * (self.length / squares.sqrt())


class _Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = _Magnitudes(WIDTH, 12), _Magnitudes(12, WIDTH)
        self.group: dist.ProcessGroup | None = None

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.group is None else Enter.apply(x, self.group)
        return x + self.down(F.silu(self.up(inner)))


def lengths_of_rows(right: bool = True) -> Definition:
    """DoRA under tensor parallel. Wrong: the second weight's rows have the length of a rank's piece."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = group = mesh["tp"].get_group()
        pieces = {"up": (("weight", 0), ("b", 0), ("length", 0)), "down": (("weight", 1), ("a", 1))}
        for at, names in pieces.items():
            layer = getattr(model, at)
            for name, dim in names:
                whole = getattr(layer, name)
                setattr(layer, name, own(whole, group, dim).requires_grad_(whole.requires_grad))
        model.down.group, model.down.whole = group, right
        return model

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        if model.group is not None:
            for p in (model.up.a, model.down.b):
                dist.all_reduce(p.grad, group=model.group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    rows = Batch((4, WIDTH))
    return Definition(
        name="lengths-of-rows",
        mesh={"tp": 2},
        build=_Adapted,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-3),
        step=train,
        batch={"x": rows, "y": rows},
    )
