"""Programs with rows of tables that they make of numbers in the step, or look up twice, or have one of."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from orchestrator.capture import Batch, Definition

from .by_hand import _Enter, _Leave, own
from .own_models import Batches

WORDS, WIDTH, HEADS, LENGTH = 10, 8, 4, 6


def words(*names: str, **shard: int) -> dict[str, Batch]:
    return {n: Batch((4, LENGTH), torch.int64, shard=shard, bounds=(0, WORDS)) for n in names}


# --- T5: buckets of distances by logarithms, one table for all layers -----------------------------------


def bucket(apart: Tensor, buckets: int = 8, far: int = 16) -> Tensor:
    """T5's own: near distances have a bucket each, far ones share them by their logarithms."""
    buckets //= 2
    found = (apart > 0).to(torch.long) * buckets
    apart = torch.abs(apart)
    near = buckets // 2
    scaled = torch.log(apart.float() / near) / math.log(far / near) * (buckets - near)
    large = near + scaled.to(torch.long)
    large = torch.min(large, torch.full_like(large, buckets - 1))
    found += torch.where(apart < near, apart, large)
    return found


class T5Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class T5Layer(nn.Module):
    """On ranks some heads, and some of the columns between; ``early`` keys are not of the entered stream."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.before, self.between = T5Norm(), T5Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.wi, self.wo = nn.Linear(WIDTH, 12, bias=False), nn.Linear(12, WIDTH, bias=False)
        if first:
            self.relative = nn.Embedding(8, HEADS)
        self.group: Any = None
        self.early = False

    def _enter(self, x: Tensor) -> Tensor:
        return x if self.group is None else _Enter.apply(x, self.group)

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.group is None else _Leave.apply(x, self.group)

    def forward(self, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        normed = self.before(x)
        y = self._enter(normed)
        rows, length, _ = x.shape
        q, k, v = (
            w(z).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2)
            for w, z in ((self.q, y), (self.k, normed if self.early else y), (self.v, y))
        )
        if bias is None:
            place = torch.arange(length)
            bias = self.relative(bucket(place[None, :] - place[:, None])).permute(2, 0, 1).unsqueeze(0)
        mixed = F.softmax(q @ k.transpose(3, 2) + bias, dim=-1) @ v
        x = x + self._leave(self.o(mixed.transpose(1, 2).reshape(rows, length, -1)))
        return x + self._leave(self.wo(F.relu(self.wi(self._enter(self.between(x)))))), bias


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.block = nn.ModuleList(T5Layer(first=i == 0) for i in range(3))
        self.norm = T5Norm()

    def forward(self, ids: Tensor) -> Tensor:
        x, bias = self.shared(ids), None
        for layer in self.block:
            x, bias = layer(x, bias)
        return F.linear(self.norm(x) * WIDTH**-0.5, self.shared.weight)


def buckets_of_distances(right: bool = True) -> Definition:
    """Heads over TP 2, each rank its columns of the table. Wrong: keys' gradients are the rank's own."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        group = mesh.get_group("tp")
        for layer in model.block:
            layer.group, layer.early = group, not right
            for linear in (layer.q, layer.k, layer.v, layer.wi):
                linear.weight = own(linear.weight, group, 0)
            for linear in (layer.o, layer.wo):
                linear.weight = own(linear.weight, group, 1)
        model.block[0].relative.weight = own(model.block[0].relative.weight, group, 1)
        return model

    return Definition(
        name="buckets-of-distances",
        mesh={"tp": 2},
        build=T5,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch=words("ids", "labels"),
    )


# --- tokens that choose their depth, a head for the token after the next ------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)


class Chosen(nn.Module):
    """Tokens with a positive score go through, the others pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = Scale(), nn.Linear(WIDTH, 1, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 24, bias=False), nn.Linear(12, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        score = self.router(x).squeeze(-1)
        mask = (score > 0).to(score.dtype)
        a, gate = self.up(self.norm(x)).chunk(2, -1)
        return x + (mask * torch.sigmoid(score)).unsqueeze(-1) * self.down(F.silu(a) * gate)


class FarAhead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.trunk, self.after = nn.ModuleList(Chosen() for _ in range(3)), Chosen()
        self.norm, self.hidden, self.embedded = Scale(), Scale(), Scale()
        self.join = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.register_buffer("steps", torch.zeros(()))

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.trunk:
            x = layer(x)
        both = torch.cat([self.hidden(x[:, :-1]), self.embedded(self.words(ids[:, 1:]))], dim=-1)
        ahead = self.output(self.norm(self.after(self.join(both))))
        first = F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), labels.flatten())
        return first + 0.3 * F.cross_entropy(ahead.flatten(0, 1), labels[:, 1:].flatten())


@torch.no_grad()
def warm_stable_decay(model: Any) -> None:
    """Each gradient is clipped by its own root mean square; the rate rises, stays and falls."""
    model.steps += 1
    t = model.steps
    falling = (1 - (t - 900) / 100).clamp(min=0.0)
    rate = 0.01 * torch.where(t < 100, t / 100, torch.where(t < 900, torch.ones_like(t), falling))
    for p in model.parameters():
        p.sub_(rate * p.grad / p.grad.square().mean().sqrt().add(1e-8).clamp(min=1.0))
        p.grad = None


def token_after_next(right: bool = True) -> Definition:
    """Gradients go in one flat tensor. Wrong: that of what joins both streams stays the rank's own."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches, ranks: bool) -> dict[str, Tensor]:
        loss = model.loss(batch["ids"], batch["labels"])
        loss.backward()
        if ranks:
            params = list(model.parameters())
            flat = torch.cat([p.grad.flatten() for p in params])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
                if right or p is not model.join.weight:
                    p.grad = g.view_as(p)
        warm_stable_decay(model)
        return {"loss": loss.detach()}

    return Definition(
        name="token-after-next",
        mesh={"dp": 2},
        build=FarAhead,
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=1.0),  # the step has a rule of its own
        step=functools.partial(step, ranks=False),
        parallel_step=functools.partial(step, ranks=True),
        batch=words("ids", "labels", dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- a parameter of one row, sharded over more ranks, and one norm of all gradients ----------------------


class Patches(nn.Module):
    """A class token before patches, both with learned positions: parameters of one row."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, dim), nn.Linear(dim, 3)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, dim)), nn.Parameter(torch.zeros(1, 3, dim))
        self.mix = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))

    def forward(self, patches: Tensor) -> Tensor:
        x = self.embed(patches)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.mix:
            x = x + torch.tanh(layer(x.mean(1, keepdim=True)))
        return self.head(x[:, 0])


def class_token(right: bool = True) -> Definition:
    """FSDP2 over two ranks, of which one owns no row of the token. Wrong: the gradients of one layer are
    added up, not averaged."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for layer in model.mix:
            fully_shard(layer, mesh=mesh)
        if not right:
            model.mix[1].set_gradient_divide_factor(1.0)
        return fully_shard(model, mesh=mesh)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["patches"]), batch["kinds"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="class-token",
        mesh={"dp": 2},
        build=Patches,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch={
            "patches": Batch((4, 2, 6), shard={"dp": 0}),
            "kinds": Batch((4,), torch.int64, shard={"dp": 0}, bounds=(0, 3)),
        },
        mean_over={"loss": ("dp",)},
    )
