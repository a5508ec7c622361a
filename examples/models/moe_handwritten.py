"""A layer of experts as plain PyTorch has it, trained on replicas, expert ranks and tensor-parallel ranks.

A router with softmax scores picks ``chosen`` experts for each token by ``topk``; their scores are normalised
and scattered into a row of gates, zero for all others. All experts see all tokens, and the gates say what
counts. On the mesh a rank of ``ep`` has its own experts, of which ``tp`` cuts the hidden units; both see all
tokens of their replica, so what they give is added up. Nothing is dispatched: see docs/coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition


class Experts(nn.Module):
    """Router and gated experts, of which each token has ``chosen``."""

    def __init__(self, width: int, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, hidden))
        self.up = nn.Parameter(torch.randn(experts, width, hidden))
        self.down = nn.Parameter(torch.randn(experts, hidden, width))
        self.chosen = chosen

    def gates(self, x: Tensor) -> Tensor:
        """[tokens, experts]: the normalised scores of the experts of a token."""
        scores = F.softmax(self.router(x), dim=-1)
        best, ids = torch.topk(scores, self.chosen, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        return torch.zeros_like(scores).scatter(1, ids, best)

    def experts(self, x: Tensor, gates: Tensor) -> Tensor:
        inner = F.silu(torch.einsum("td,edh->eth", x, self.gate)) * torch.einsum("td,edh->eth", x, self.up)
        return torch.einsum("te,eth,ehd->td", gates, inner, self.down)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(x, self.gates(x))


class Enter(torch.autograd.Function):
    """The identity; every rank used the value for its own part, so their gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *groups: ProcessGroup) -> Tensor:
        ctx.groups = groups
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.clone()
        for group in ctx.groups:
            dist.all_reduce(grad, group=group)
        return grad, *(None for _ in ctx.groups)


class Leave(torch.autograd.Function):
    """The sum of the parts of all ranks; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *groups: ProcessGroup) -> Tensor:
        ctx.groups = groups
        x = x.clone()
        for group in groups:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, *(None for _ in ctx.groups)


class ParallelExperts(Experts):
    """This rank's part: its experts, and of their hidden units those of its place in ``tp``."""

    def __init__(self, model: Experts, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self.dp, self.ep, self.tp = (mesh[axis].get_group() for axis in ("dp", "ep", "tp"))
        self.place = mesh.get_local_rank("ep")
        self.router, self.chosen = model.router, model.chosen
        for name, hidden in (("gate", 2), ("up", 2), ("down", 1)):
            part = getattr(model, name).detach().chunk(self.ep.size(), 0)[self.place]
            part = part.chunk(self.tp.size(), hidden)[mesh.get_local_rank("tp")]
            setattr(self, name, nn.Parameter(part.clone()))

    def own(self, gates: Tensor) -> Tensor:
        """The columns of this rank's experts."""
        count = gates.shape[1] // self.ep.size()
        return gates[:, self.place * count : (self.place + 1) * count]

    def entered(self, x: Tensor) -> Tensor:
        entered: Tensor = Enter.apply(x, self.ep, self.tp)
        return entered

    def forward(self, x: Tensor) -> Tensor:
        gates = self.entered(self.gates(x))
        out = self.experts(self.entered(x), self.own(gates))
        return x + Leave.apply(out, self.ep, self.tp)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    if isinstance(model, ParallelExperts):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=model.dp)
            parameter.grad /= model.dp.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(
    width: int = 4096,
    hidden: int = 14336,
    experts: int = 8,
    chosen: int = 2,
    tokens: int = 4096,
    dp: int = 2,
    ep: int = 4,
    tp: int = 2,
    parallel: Callable[[Any, DeviceMesh], nn.Module] = ParallelExperts,
) -> Definition:
    """The sizes are those of a layer of Mixtral 8x7B. Every rank holds the whole router."""
    batch = Batch(shape=(tokens, width), shard={"dp": 0})
    return Definition(
        name="moe-handwritten",
        mesh={"dp": dp, "ep": ep, "tp": tp},
        build=lambda: Experts(width, hidden, experts, chosen),
        parallelize=parallel,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train_step,
        batch={"x": batch, "y": batch},
        layouts={
            "router.weight": {},
            "gate": {"ep": 0, "tp": 2},
            "up": {"ep": 0, "tp": 2},
            "down": {"ep": 0, "tp": 1},
        },
        mean_over={"loss": ("dp",)},
    )
