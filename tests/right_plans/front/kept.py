"""What people make once: tables of rotations, masks in caches, buckets of distances; whole parameters owned.

These were written without a look at the prover. ``rotations_kept`` and ``relative_distances`` were UNKNOWN at
first (three constants alike at one size, a table's bounds), and no kept tensor was captured.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

WORDS, WIDTH, HEADS, LENGTH = 16, 8, 2, 4
_TABLES: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}


def rotations(length: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a sequence's rotations, made at its first use."""
    if (length, theta) not in _TABLES:
        rates = 1.0 / (theta ** (torch.arange(0, size, 2).float() / size))
        angles = torch.outer(torch.arange(length).float(), rates)
        angles = torch.cat((angles, angles), dim=-1)
        _TABLES[length, theta] = angles.cos(), angles.sin()
    return _TABLES[length, theta]


def turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.theta = 10000.0

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        size = WIDTH // HEADS
        q, k, v = (w(x).view(rows, length, -1, size).transpose(1, 2) for w in (self.q, self.k, self.v))
        cos, sin = rotations(length, size, self.theta)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(rows, length, -1))


class Rotating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(x + self.attention(self.norm(x)))


def tokens(*names: str) -> dict[str, Batch]:
    return {n: Batch((4, LENGTH), torch.int64, shard={"dp": 0}, bounds=(0, WORDS)) for n in names}


def next_words(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["next"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def rotations_kept(right: bool = True) -> Definition:
    """Tensor parallel and FSDP2; tables of rotations in a dictionary. Wrong: the ranks' have another base."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        attention = model.attention
        plan = {f"attention.{n}": ColwiseParallel() for n in "qkv"} | {"attention.o": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        if not right:
            attention.theta = 500000.0
        fully_shard(attention, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])

    return Definition(
        name="rotations-kept",
        mesh={"dp": 2, "tp": 2},
        build=Rotating,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=next_words,
        batch=tokens("ids", "next"),
        mean_over={"loss": ("dp",)},
    )


class Biased(nn.Module):
    """Attention with a bias by bucket of distance, as T5 has it: forwards and backwards, near and far."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.first, self.count = 0, 4

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        rows, length, _ = x.shape
        q, k, v = (w(x).view(rows, length, -1, 2).transpose(1, 2) for w in (self.q, self.k, self.v))
        apart = torch.arange(length)[None] - torch.arange(length)[:, None]
        buckets = (apart > 0).long() * 4 + apart.abs().clamp(max=3)
        bias = self.bias(buckets).permute(2, 0, 1)[self.first : self.first + self.count]
        y = (q @ k.mT + bias).softmax(-1) @ v
        return F.linear(x + self.o(y.transpose(1, 2).reshape(rows, length, -1)), self.words.weight)


def relative_distances(right: bool = True) -> Definition:
    """Each rank's heads read their columns of one table. Wrong: its gradient is not added up over ranks."""

    def on_ranks(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["next"].flatten())
        loss.backward()
        if right:
            dist.all_reduce(model.bias.weight.grad, group=model.tp)
        for p in model.parameters():
            gradient = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            dist.all_reduce(gradient, group=model.dp)
            gradient.div_(dist.get_world_size(model.dp))
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        tp = mesh["tp"]
        parallelize_module(model, tp, {n: ColwiseParallel() for n in "qkv"} | {"o": RowwiseParallel()})
        model.count = 4 // tp.size()
        model.first = tp.get_local_rank() * model.count
        model.tp, model.dp = mesh.get_group("tp"), mesh.get_group("dp")
        return model

    return Definition(
        name="relative-distances",
        mesh={"dp": 2, "tp": 2},
        build=Biased,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, foreach=False),
        step=next_words,
        parallel_step=on_ranks,
        batch=tokens("ids", "next"),
        mean_over={"loss": ("dp",)},
    )


@functools.cache
def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.levels = torch.tensor([0.5, 0.75, 1.0, 1.0])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.mT * WIDTH**-0.5).masked_fill(causal(ids.shape[1]), float("-inf"))
        return F.linear(x + self.o(scores.softmax(-1) @ v) * self.levels[:, None], self.words.weight)


def owners(params: list[nn.Parameter], ranks: int) -> list[int]:
    """The rank that keeps the optimizer's state of each parameter: always the one with the least so far."""
    load, found = [0] * ranks, []
    for p in params:
        found.append(min(range(ranks), key=load.__getitem__))
        load[found[-1]] += p.numel()
    return found


def owned_whole(right: bool = True) -> Definition:
    """Each rank updates whole parameters and broadcasts them. Wrong: small gradients stay where they are."""

    def optimizer(params: object) -> torch.optim.Optimizer:
        params = list(params)  # type: ignore[call-overload]
        if dist.is_initialized():
            mine = zip(params, owners(params, dist.get_world_size()), strict=True)
            params = [p for p, owner in mine if owner == dist.get_rank()]
        return torch.optim.AdamW(params, lr=1e-3)

    def on_ranks(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["next"].flatten())
        loss.backward()
        params, ranks = list(model.parameters()), dist.get_world_size()
        pairs = list(zip(params, owners(params, ranks), strict=True))
        for p, owner in pairs:
            p.grad.div_(ranks)
            if right:
                dist.reduce(p.grad, dst=owner)
            else:
                dist.all_reduce(p.grad) if p.dim() > 1 else None
        optimizer.step()
        for p, owner in pairs:
            dist.broadcast(p.data, src=owner)
        model.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="owned-whole",
        mesh={"dp": 2},
        build=Masked,
        parallelize=lambda model, mesh: model,
        optimizer=optimizer,
        step=next_words,
        parallel_step=on_ranks,
        batch=tokens("ids", "next"),
        mean_over={"loss": ("dp",)},
    )
