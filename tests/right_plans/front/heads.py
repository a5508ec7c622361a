"""Heads that are unlike: keys and values that two ranks share, and biases with a slope for each head."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Definition

from .by_hand import Batches, own, pair, regress
from .many_habits import Enter
from .whole_batches import Total

RANKS, SHARED, HEAD, WIDTH = 4, 2, 4, 6


class _Grouped(nn.Module):
    """One head of queries for each rank, one of keys and values for two of them."""

    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, RANKS * HEAD), nn.Linear(RANKS * HEAD, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, RANKS // SHARED * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, RANKS // SHARED * HEAD, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.group is None else Enter.apply(x, self.group)
        q, k, v = (f(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.group is None)
        y = self.o(y.transpose(1, 2).flatten(2))
        return y if self.group is None else Total.apply(y, self.group, False)  # type: ignore[no-any-return]


def shared_heads(right: bool = True) -> Definition:
    """Gradients of all ranks are gathered, as no group has those that share a head. Wrong: of two."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        group = model.group = mesh["tp"].get_group()
        model.q.weight, model.q.bias = own(model.q.weight, group, 0), own(model.q.bias, group, 0)
        model.o.weight = own(model.o.weight, group, 1)
        for keys in (model.k, model.v):
            head = dist.get_rank(group) // SHARED
            keys.weight = nn.Parameter(keys.weight.data[HEAD * head : HEAD * (head + 1)].clone())
        return model  # type: ignore[no-any-return]

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        for keys in (model.k, model.v) if model.group is not None else ():
            grads = [torch.empty_like(keys.weight) for _ in range(RANKS)]
            dist.all_gather(grads, keys.weight.grad, group=model.group)
            first = dist.get_rank(model.group) // SHARED * SHARED if right else 0
            keys.weight.grad = sum(grads[first : first + SHARED])
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="shared-heads",
        mesh={"tp": RANKS},
        build=_Grouped,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step=train,
        batch=pair((2, 5, WIDTH)),
    )


class _Sloped(nn.Module):
    """Attention with a bias by distance, steeper or flatter head by head."""

    group: dist.ProcessGroup | None = None
    right = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * heads * HEAD)
        self.o = nn.Linear(heads * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.group is None else Enter.apply(x, self.group)
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        first = 0 if self.group is None or not self.right else q.shape[1] * dist.get_rank(self.group)
        slopes = torch.tensor([2.0 ** (-8 * (first + i + 1) / self.heads) for i in range(q.shape[1])])
        at = torch.arange(x.shape[1])
        bias = slopes[:, None, None] * (at[None, :] - at[:, None])
        scores = q @ k.transpose(-1, -2) * HEAD**-0.5 + bias
        scores = scores.masked_fill(at[None, :] > at[:, None], float("-inf"))
        y = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y if self.group is None else Total.apply(y, self.group, False)  # type: ignore[no-any-return]


def sloped_heads(right: bool = True) -> Definition:
    """Wrong: each rank has the slopes of the first heads."""
    heads, ranks = 4, 2

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        group = model.group = mesh["tp"].get_group()
        model.right = right
        for name in ("weight", "bias"):
            parts = [t.chunk(ranks)[dist.get_rank(group)] for t in getattr(model.qkv, name).data.chunk(3)]
            setattr(model.qkv, name, nn.Parameter(torch.cat(parts)))
        model.o.weight = own(model.o.weight, group, 1)
        return model  # type: ignore[no-any-return]

    return Definition(
        name="sloped-heads",
        mesh={"tp": ranks},
        build=lambda: _Sloped(heads),
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step=regress,
        batch=pair((2, 5, WIDTH)),
    )
