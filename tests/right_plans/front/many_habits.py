"""A small GPT with habits of code that people write by hand, on replicas and tensor-parallel ranks.

Grouped queries with norms of queries and keys, linear biases by distance, capped logits over a cut
vocabulary, smoothed labels, the squared logarithm of the normaliser, a norm that adds up cut and whole
gradients apart, Lion. The model without ranks masks labels too: it does not know that it has all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

WIDTH, HEADS, GROUPS, HIDDEN, VOCABULARY, LENGTH = 16, 4, 2, 24, 32, 8
#: Endings of the names of parameters that ranks have a part of.
CUT = ("q.weight", "k.weight", "v.weight", "v.bias", "up.weight", "up.bias", "gate.weight", "gate.bias",
       "o.weight", "down.weight", "head")  # fmt: skip


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Shared(nn.Module):
    """What a rank shares with its group, if it has one."""

    group: Any = None

    def enter(self, x: Tensor) -> Tensor:
        return x if self.group is None else Enter.apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        return x if self.group is None else Leave.apply(x, self.group)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


class Block(Shared):
    def __init__(self) -> None:
        super().__init__()
        self.size, self.first = WIDTH // HEADS, 0
        self.n1, self.n2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.qn, self.kn = nn.Parameter(torch.ones(self.size)), nn.Parameter(torch.ones(self.size))
        self.q = nn.Linear(WIDTH, HEADS * self.size, bias=False)
        self.k = nn.Linear(WIDTH, GROUPS * self.size, bias=False)
        self.v = nn.Linear(WIDTH, GROUPS * self.size)
        self.o = nn.Linear(HEADS * self.size, WIDTH)
        self.up, self.gate = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def attention(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (f(x).view(rows, length, -1, self.size) for f in (self.q, self.k, self.v))
        q, k = normed(q, self.enter(self.qn)), normed(k, self.enter(self.kn))
        k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.size)
        at = torch.arange(length)
        heads = torch.arange(self.first, self.first + q.shape[2])
        slopes = torch.exp2(-8.0 * (heads + 1) / HEADS)
        scores = scores + slopes[:, None, None] * (at[None, :] - at[:, None]).float()
        scores = scores.masked_fill(at[None, :] > at[:, None], float("-inf"))
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(rows, length, -1)
        return F.linear(out, self.o.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.leave(self.attention(self.enter(normed(x, self.n1)))) + self.o.bias
        inner = self.enter(normed(x, self.n2))
        inner = F.gelu(self.gate(inner), approximate="tanh") * self.up(inner)
        return x + self.leave(F.linear(inner, self.down.weight)) + self.down.bias


class Gpt(Shared):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = (nn.Parameter(torch.randn(n, WIDTH)) for n in (VOCABULARY, LENGTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last, self.head = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.first = 0

    def loss(self, ids: Tensor, labels: Tensor, smooth: float = 0.1, cap: float = 30.0) -> Tensor:
        x = F.embedding(ids, self.table) + self.places
        for block in self.blocks:
            x = block(x)
        logits = cap * torch.tanh((self.enter(normed(x, self.last)) @ self.head.T) / cap)
        most = logits.detach().amax(-1, keepdim=True)
        if self.group is not None:
            most = most.clone()
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        normaliser = self.leave(torch.exp(logits - most).sum(-1)).log() + most.squeeze(-1)
        own = labels - self.first
        here = (own >= 0) & (own < logits.shape[-1])
        picked = logits.gather(-1, torch.where(here, own, 0).unsqueeze(-1)).squeeze(-1) * here
        mean = self.leave(logits.sum(-1)) / VOCABULARY
        losses = normaliser - (1 - smooth) * self.leave(picked) - smooth * mean + 1e-3 * normaliser**2
        return losses.mean()


class Part(Gpt):
    """This rank's columns, rows and part of the vocabulary."""

    def __init__(self, model: Gpt, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self.replicas, self.group = mesh["dp"].get_group(), mesh["tp"].get_group()
        rank, ranks = mesh.get_local_rank("tp"), self.group.size()

        def part(x: Tensor, dim: int) -> nn.Parameter:
            return nn.Parameter(x.detach().chunk(ranks, dim)[rank].clone())

        self.table, self.places, self.last = model.table, model.places, model.last
        self.head, self.first, self.blocks = part(model.head, 0), rank * (VOCABULARY // ranks), model.blocks
        for block in self.blocks:
            block.group, block.first = self.group, rank * (HEADS // ranks)
            for name in ("q", "k", "v", "up", "gate", "o", "down"):
                layer, dim = getattr(block, name), int(name in ("o", "down"))
                layer.weight = part(layer.weight, dim)
                if layer.bias is not None and not dim:
                    layer.bias = part(layer.bias, 0)


class Lion(torch.optim.Optimizer):
    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                update = torch.sign(state["m"] * 0.9 + p.grad * 0.1)
                p.mul_(1 - group["lr"] * 0.01).add_(update, alpha=-group["lr"])
                state["m"].mul_(0.99).add_(p.grad, alpha=0.01)


def step(right: bool, model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = model.loss(batch["ids"], batch["labels"])
    loss.backward()
    if model.group is not None:
        for p in model.parameters():
            dist.all_reduce(p.grad, group=model.replicas)
            p.grad.div_(model.replicas.size())
    squares = {name: p.grad.pow(2).sum() for name, p in model.named_parameters()}
    cut = sum(s for name, s in squares.items() if name.endswith(CUT))
    if model.group is not None and right:
        dist.all_reduce(cut, group=model.group)
    norm = torch.sqrt(cut + sum(s for name, s in squares.items() if not name.endswith(CUT)))
    for p in model.parameters():
        p.grad.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss, "norm": norm}


def gpt_of_many_habits(right: bool = True) -> Definition:
    """Wrong: the squares of gradients that ranks have a part of are not added over them."""
    ids = Batch((4, LENGTH), torch.int64, {"dp": 0}, (0, VOCABULARY))
    return Definition(
        name="gpt-of-many-habits",
        mesh={"dp": 2, "tp": 2},
        build=Gpt,
        parallelize=Part,
        optimizer=Lion,
        step=functools.partial(step, right),
        batch={"ids": ids, "labels": ids},
        mean_over={"loss": ("dp",)},
    )
