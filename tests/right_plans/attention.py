"""Attention over heads, pieces of the sequence and pieces of the keys."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from orchestrator.capture import Batch, Definition

from ..breakages.kit import (
    Batches,
    _Pair,
    copy,
    reduce,
    summed,
)
from .ranks import Rank, averaged, grads, regression, sgd


class Attention(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x: Tensor, heads: int) -> list[Tensor]:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return [t.reshape(b, s, heads, -1) for t in (q, k, v)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            at = torch.arange(scores.shape[-1])
            scores = scores.masked_fill(at[:, None] < at, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attend(*self.split(x, self.heads)).flatten(2))


class _Exchange(torch.autograd.Function):
    """All-to-all: one dimension is cut, another one made whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, cut: int, joined: int) -> Tensor:
        ctx.saved = group, cut, joined
        n = group.size()
        pieces = torch.stack(x.chunk(n, cut)).contiguous()
        received = torch.empty_like(pieces)
        dist.all_to_all_single(received, pieces, group=group)
        return torch.cat(list(received.unbind(0)), joined)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        group, cut, joined = ctx.saved
        return _Exchange.apply(grad, group, joined, cut), None, None, None


def ulysses() -> Definition:
    """Ranks have pieces of the sequence; inside the attention, heads."""

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["sp"]
        q, k, v = (_Exchange.apply(t, group, 2, 1) for t in Attention.split(m, x, 4))
        y = Attention.attend(m, q, k, v)
        return m.out(_Exchange.apply(y, group, 1, 2).flatten(2))

    return regression("ulysses", {"sp": 2}, Attention, forward, {}, (2, 6, 8), {"sp": 1}, averaged("sp"))


def fused_qkv_by_heads() -> Definition:
    """A fused projection whose heads lie on the ranks: each rank slices its rows of the three parts."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(torch.zeros(3, 8, 8))
            self.out = nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return attention(self, x)

    def attention(m: Any, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = F.linear(x, m.qkv.flatten(0, 1)).view(b, s, 3, -1, 2).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return m.out(y.transpose(1, 2).reshape(b, s, -1))

    def forward(m: Any, x: Tensor) -> Tensor:
        return reduce(attention(m, copy(x, m.groups["tp"])), m.groups["tp"])

    return regression(
        "fused-qkv", {"tp": 2}, Packed, forward, {"qkv": ("tp", 1), "out.weight": ("tp", 1)}, (2, 5, 8), {}
    )


def keys_sharded() -> Definition:
    """Each rank has some keys and values; maxima and sums of the softmax are exchanged."""

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            return (self.q(x) @ self.k(c).transpose(-2, -1)).softmax(-1) @ self.v(c)

    def forward(m: Any, x: Tensor, c: Tensor) -> Tensor:
        group = m.groups["cp"]
        scores = m.q(x) @ m.k(c).transpose(-2, -1)
        largest = summed(scores.amax(-1, keepdim=True), group, dist.ReduceOp.MAX)
        weights = (scores - largest).exp()
        both = _Pair.apply(
            weights.sum(-1, keepdim=True), lambda t: summed(t, group), lambda g: summed(g, group)
        )
        return _Pair.apply(weights @ m.v(c), lambda t: summed(t, group), lambda g: summed(g, group)) / both

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, parallel: bool
    ) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"], batch["c"]), batch["y"])
        (loss / 2 if parallel else loss).backward()
        if parallel:
            for grad in grads(model):
                dist.all_reduce(grad, group=model.groups["cp"])
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    names = ("q.weight", "k.weight", "v.weight")
    return Definition(
        name="keys-sharded",
        mesh={"cp": 2},
        build=Cross,
        parallelize=lambda m, mesh: Rank(m, mesh, forward, {}),
        optimizer=sgd,
        step=functools.partial(step, parallel=False),
        parallel_step=functools.partial(step, parallel=True),
        batch={"x": Batch((2, 3, 4)), "c": Batch((2, 6, 4), shard={"cp": 1}), "y": Batch((2, 3, 4))},
        layouts={n: {} for n in names},
    )
