"""A sequence in a zigzag over ranks, so that each has as much of a causal mask: pieces r and 2n - 1 - r.

Written without a look at the prover, and UNKNOWN at first: second pieces run downwards along the ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

WORDS, WIDTH, HEADS, LENGTH = 16, 8, 2, 8


class Sequence(torch.autograd.Function):
    """All keys or values, in the order of the sequence; gradients are added up and cut again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        x = x.contiguous()
        every = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(every, x, group=group)
        halves = [part.chunk(2, dim=2) for part in every]
        return torch.cat([first for first, _ in halves] + [last for _, last in reversed(halves)], dim=2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return mine(gradient, ctx.group, 2), None


def mine(x: Tensor, group: Any, dim: int = -1) -> Tensor:
    pieces, rank = x.chunk(2 * group.size(), dim=dim), group.rank()
    return torch.cat((pieces[rank], pieces[2 * group.size() - 1 - rank]), dim=dim)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.group: Any = None

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        rows, length, _ = x.shape
        size = WIDTH // HEADS
        q, k, v = (w(x).view(rows, length, HEADS, size).transpose(1, 2) for w in (self.q, self.k, self.v))
        if self.group is not None:
            k, v = Sequence.apply(k, self.group), Sequence.apply(v, self.group)
        scores = q @ k.transpose(-1, -2) / size**0.5
        later = places[:, None] < torch.arange(LENGTH)[None, :]
        y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(rows, length, WIDTH))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.before, self.attention, self.after = nn.RMSNorm(WIDTH), Attention(), nn.RMSNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        x = self.words(ids) + self.places(places)
        x = x + self.attention(self.before(x), places)
        return self.head(x + self.wide(self.after(x)))


def zigzag_context(right: bool = True) -> Definition:
    """Keys and values are gathered. Wrong: the mask takes a rank's tokens for neighbours of each other."""

    def alone(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits = model(batch["ids"], torch.arange(LENGTH))
        loss = F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def on_ranks(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        group = model.attention.group
        places = mine(torch.arange(LENGTH), group)
        if not right:
            places = torch.arange(LENGTH).chunk(group.size())[group.rank()]
        logits = model(mine(batch["ids"], group), places)
        loss = F.cross_entropy(logits.flatten(0, 1), mine(batch["next"], group).flatten())
        loss.backward()
        params = list(model.parameters())
        flat = torch.cat([p.grad.view(-1) for p in params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad.copy_(part.view_as(p))
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        model.attention.group = mesh.get_group("cp")
        return model

    tokens = Batch((4, LENGTH), torch.int64, shard={"dp": 0}, bounds=(0, WORDS))
    return Definition(
        name="zigzag-context",
        mesh={"dp": 2, "cp": 2},
        build=Reader,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=alone,
        parallel_step=on_ranks,
        batch={"ids": tokens, "next": tokens},
        mean_over={"loss": ("dp", "cp")},
    )
