"""What the parts of the corpus share: how a part is written down, and collectives that autograd knows.

A part has one or more right plans. ``define(mistake)`` is the same code with one mistake made in it, and
``define("")`` the right one. Every mistake names the outputs of which one is to be refuted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from certificates.plan.plan import Plan
from orchestrator.capture import Definition, capture
from orchestrator.emit import provable

ROOT = Path(__file__).resolve().parents[2]
Define = Callable[[str], Definition]
#: A plan from what a part's plans are written as.
Make = Callable[[Any], Plan]
Batches = Mapping[str, Tensor]


@dataclass(frozen=True)
class Mistake:
    """``plan`` is the right plan that it breaks, ``refuted`` a pattern of the output that shows it.

    ``hides`` says why outputs that it leaves alone are not proved, if they are not.
    """

    plan: str
    refuted: str
    hides: str = ""


def captured(definition: Definition) -> Plan:
    return capture(definition, jobs=2, root=ROOT, accept=provable)


@dataclass(frozen=True)
class Part:
    """A part of the training step: right plans by name, and mistakes by what was done wrong."""

    title: str
    plans: Mapping[str, Callable[[str], Any]]
    mistakes: Mapping[str, Mistake]
    make: Make = captured

    def right(self, plan: str) -> Plan:
        return self.make(self.plans[plan](""))

    def wrong(self, mistake: str) -> Plan:
        return self.make(self.plans[self.mistakes[mistake].plan](mistake))


def part(
    title: str, plans: Mapping[str, tuple[Define, Mapping[str, str]]], hides: Mapping[str, str] | None = None
) -> Part:
    """Of every right plan its mistakes, each with the pattern of the output that shows it."""
    why = hides or {}
    mistakes = {
        m: Mistake(p, shown, why.get(m, "")) for p, (_, found) in plans.items() for m, shown in found.items()
    }
    return Part(title, {p: define for p, (define, _) in plans.items()}, mistakes)


# --- collectives ------------------------------------------------------------------------------------------


def summed(x: Tensor, group: ProcessGroup, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """A fresh tensor, reduced over the group."""
    x = x.detach().clone()
    dist.all_reduce(x, op=op, group=group)
    return x


def gathered(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """All ranks' pieces, concatenated along a dimension."""
    moved = x.detach().movedim(dim, 0).contiguous()
    whole = moved.new_empty(group.size() * moved.shape[0], *moved.shape[1:])
    dist.all_gather_into_tensor(whole, moved, group=group)
    return whole.movedim(0, dim)


def scattered(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """The sum over the group, of which a rank keeps its piece along a dimension."""
    moved = x.detach().movedim(dim, 0).contiguous()
    own = moved.new_empty(moved.shape[0] // group.size(), *moved.shape[1:])
    dist.reduce_scatter_tensor(own, moved, group=group)
    return own.movedim(0, dim)


def own(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's piece along a dimension."""
    return x.chunk(group.size(), dim)[group.rank()]


Map = Callable[[Tensor], Tensor]


class _Pair(torch.autograd.Function):
    """One map forward, another one for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Map, backward: Map) -> Tensor:
        ctx.map = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.map(grad), None, None


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def copy(x: Tensor, group: ProcessGroup) -> Tensor:
    """Into a tensor-parallel region: the ranks' gradients add up."""
    return _Pair.apply(x, _same, lambda g: summed(g, group))


def reduce(x: Tensor, group: ProcessGroup) -> Tensor:
    """Out of a tensor-parallel region: the partial results add up."""
    return _Pair.apply(x, lambda y: summed(y, group), _same)


def gather(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """From pieces of the sequence to all of it, which every rank then uses in its own way."""
    return _Pair.apply(x, lambda y: gathered(y, group, dim), lambda g: scattered(g, group, dim))


def scatter(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """Partial results add up; a rank goes on with its piece of the sequence."""
    return _Pair.apply(x, lambda y: scattered(y, group, dim), lambda g: gathered(g, group, dim))


def split(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """From a replicated tensor to pieces of the sequence."""
    return _Pair.apply(x, lambda y: own(y, group, dim).clone(), lambda g: gathered(g, group, dim))


def join(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """From pieces of the sequence to all of it, which every rank then uses alike."""
    return _Pair.apply(x, lambda y: gathered(y, group, dim), lambda g: own(g, group, dim).clone())


# --- models -----------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def shard(module: nn.Module, name: str, dim: int, group: ProcessGroup) -> None:
    """Keep this rank's piece of a parameter."""
    whole = getattr(module, name).detach()
    setattr(module, name, nn.Parameter(own(whole, group, dim).clone()))


def mse_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    """The single-device step of the parts that regress."""
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}
