"""A library's word on one side and another of the same meaning on the other, which are one where numbers have
a sign: a divergence of softmaxes, and the largest of the largest gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own, pair
from .many_habits import Enter
from .masks import step_of
from .whole_batches import Total

WIDTH, WORDS = 6, 8


class _Distilled(nn.Module):
    """A student and a frozen teacher with one vocabulary, which may lie on ranks."""

    group: dist.ProcessGroup | None = None
    swapped = False

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(WIDTH, WORDS, bias=False)
        self.teacher = nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False)

    def logs(self, logits: Tensor) -> Tensor:
        """Logarithms of probabilities over all words."""
        if self.group is None:
            return logits.log_softmax(-1)
        top = logits.detach().amax(-1, keepdim=True)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=self.group)
        total = Total.apply((logits - top).exp().sum(-1, keepdim=True), self.group, False)
        return logits - Enter.apply(total.log() + top, self.group)

    def divergence(self, x: Tensor) -> Tensor:
        if self.group is None:
            target = self.teacher(x).softmax(-1)
            return F.kl_div(self.logs(self.student(x)), target, reduction="batchmean")
        q, t = self.logs(self.student(Enter.apply(x, self.group))), self.logs(self.teacher(x))
        if self.swapped:
            q, t = t, q
        return Total.apply((t.exp() * (t - q)).sum(-1), self.group, False).mean()


def divergence_by_hand(right: bool = True) -> Definition:
    """``F.kl_div`` against ``p * (log p - log q)`` over ranks. Wrong: in the other direction."""

    def loss_of(model: Any, batch: Batches) -> Tensor:
        return model.divergence(batch["x"])

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.student.weight = own(model.student.weight, model.group, 0)
        model.teacher.weight = own(model.teacher.weight, model.group, 0).requires_grad_(False)
        model.swapped = not right
        return model

    return Definition(
        name="divergence-by-hand",
        mesh={"tp": 2},
        build=_Distilled,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1),
        step=step_of(loss_of),
        batch={"x": Batch((4, WIDTH))},
    )


def largest_gradient(right: bool = True) -> Definition:
    """Clipping by the largest gradient, as PyTorch does it and by hand. Wrong: of a rank's alone."""

    def loss_of(model: nn.Module, batch: Batches) -> Tensor:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        return loss.detach()

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = loss_of(model, batch)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=float("inf"), foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = loss_of(model, batch)
        largest = torch.stack([p.grad.abs().max() for p in model.parameters()]).max()
        if right:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=model.group)
        for p in model.parameters():
            p.grad.mul_(torch.clamp(0.5 / (largest + 1e-6), max=1.0))
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.a.weight = own(model.a.weight, model.group, 0)
        model.b.weight = own(model.b.weight, model.group, 1)
        return model

    return Definition(
        name="largest-gradient",
        mesh={"tp": 2},
        build=_TwoLayers,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=single,
        parallel_step=step,
        batch=pair((4, WIDTH)),
    )


class _TwoLayers(nn.Module):
    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WORDS, bias=False), nn.Linear(WORDS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None:
            return self.b(torch.tanh(self.a(x)))
        return Total.apply(self.b(torch.tanh(self.a(Enter.apply(x, self.group)))), self.group, False)
