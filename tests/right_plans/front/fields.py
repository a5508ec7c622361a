"""Training of other fields than language: contrastive, recommendation, diffusion, reinforcement; experts.

Written without a look at the prover, from what such code looks like in the open.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own

# --- images and texts in one space -------------------------------------------------------------------------


class _Gathered(torch.autograd.Function):
    """All ranks' rows; a row's gradient is the sum of what all ranks make of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        out = torch.empty(group.size() * x.shape[0], *x.shape[1:], dtype=x.dtype)
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size())[dist.get_rank(ctx.group)], None


class Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.ln, self.b = nn.Linear(width, 32), nn.LayerNorm(32), nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.b(self.ln(F.gelu(self.a(x)))), dim=-1)


class Towers(nn.Module):
    mesh: DeviceMesh | None = None

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = Tower(24), Tower(12)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def loss(self, batch: Batches, right: bool) -> Tensor:
        image, text, first = self.image(batch["image"]), self.text(batch["text"]), 0
        images, texts = image, text
        if self.mesh is not None:
            group = self.mesh["dp"].get_group()
            images, texts = _Gathered.apply(image, group), _Gathered.apply(text, group)
            first = self.mesh.get_local_rank("dp") * image.shape[0] if right else 0
        scale = self.scale.exp()
        labels = torch.arange(image.shape[0]) + first
        of_images, of_texts = scale * image @ texts.T, scale * text @ images.T
        return (F.cross_entropy(of_images, labels) + F.cross_entropy(of_texts, labels)) / 2


def contrastive(right: bool = True) -> Definition:
    """Wrong: a rank takes its own rows for the first ones."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = model.loss(batch, right)
        loss.backward()
        for p in model.parameters() if model.mesh is not None else ():
            dist.all_reduce(p.grad, group=model.mesh["dp"].get_group())
            p.grad /= model.mesh.size()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.scale.clamp_(0, math.log(100))
        return {"loss": loss}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.mesh = mesh
        return model

    return Definition(
        name="contrastive",
        mesh={"dp": 4},
        build=Towers,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        step=train,
        batch={"image": Batch((8, 24), shard={"dp": 0}), "text": Batch((8, 12), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


# --- tables that are whole on a rank -----------------------------------------------------------------------

TABLES, ROWS, WIDTH, CLICKS, BAG = 4, 10, 8, 8, 3


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, x = group, x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(grad, ctx.group), None


class Recommender(nn.Module):
    mesh: DeviceMesh | None = None

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(TABLES, ROWS, WIDTH))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        features = WIDTH + TABLES * (TABLES + 1) // 2
        self.top = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def bags(self, ids: Tensor) -> Tensor:
        """Of this rank's tables, for all rows; then of all tables, for this rank's rows."""
        count, first = self.tables.shape[0], 0
        if self.mesh is not None:
            first = self.mesh.get_local_rank("dp") * count
        sums = [F.embedding(ids[:, first + t], self.tables[t]).sum(1) for t in range(count)]
        bags = torch.stack(sums, 1)
        if self.mesh is None:
            return bags
        ranks = self.mesh.size()
        got = _Exchange.apply(bags, self.mesh["dp"].get_group()).view(ranks, -1, count, WIDTH)
        return got.transpose(0, 1).reshape(-1, TABLES, WIDTH)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.cat([x[:, None], self.bags(ids)], 1)
        pairs = torch.bmm(features, features.transpose(1, 2))
        below = torch.cat([pairs[:, i, :i] for i in range(1, TABLES + 1)], 1)
        return self.top(torch.cat([x, below], 1)).squeeze(-1)


def tables_by_rank(right: bool = True) -> Definition:
    """Wrong: gradients of tables, to which all ranks' losses add, are not divided by the ranks."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.binary_cross_entropy_with_logits(model(batch["dense"], batch["ids"]), batch["click"])
        loss.backward()
        for name, p in model.named_parameters() if model.mesh is not None else ():
            if name != "tables":
                dist.all_reduce(p.grad, group=model.mesh["dp"].get_group())
            if name != "tables" or right:
                p.grad.div_(model.mesh.size())
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.mesh, model.tables = mesh, own(model.tables, mesh["dp"].get_group(), 0)
        return model

    return Definition(
        name="tables-by-rank",
        mesh={"dp": 2},
        build=Recommender,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adagrad(params, lr=1e-2),
        step=train,
        layouts={"tables": {"dp": 0}},
        batch={
            "dense": Batch((CLICKS, 5), shard={"dp": 0}),
            "ids": Batch((CLICKS, TABLES, BAG), torch.int64, {}, (0, ROWS)),
            "click": Batch((CLICKS,), shard={"dp": 0}),
        },
        mean_over={"loss": ("dp",)},
    )


# --- experts with room for some tokens each ----------------------------------------------------------------

EXPERTS, SIZE, HIDDEN, TOKENS, ROOM, RANKS = 4, 8, 16, 6, 3, 2


class Switch(nn.Module):
    group: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(SIZE, EXPERTS, bias=False), nn.Linear(SIZE, SIZE)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, SIZE, HIDDEN))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, SIZE))

    def routes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Places of tokens with their experts, and scores there; where there is no room a token has none."""
        gates = self.gate(x).softmax(-1)
        mask = F.one_hot(gates.argmax(-1), EXPERTS)
        position = torch.cumsum(mask, 1) - 1
        balance = (gates.mean(1) * mask.float().mean(1)).sum(-1).mean() * EXPERTS
        mask = mask * (position < ROOM)
        slot = F.one_hot((position * mask).sum(-1), ROOM).float()
        kept = mask.float()
        places = torch.einsum("gse,gsc->gsec", kept, slot)
        return places, (gates * kept).sum(-1)[..., None, None] * places, balance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places, scores, balance = self.routes(x)
        y = torch.einsum("gsec,gsd->egcd", places, x)
        mine = EXPERTS // RANKS
        if self.group is not None:
            y = _Exchange.apply(y, self.group).reshape(RANKS, mine, -1, ROOM, SIZE)
            y = y.transpose(0, 1).reshape(mine, -1, ROOM, SIZE)
        y = torch.einsum("egcf,efd->egcd", F.relu(torch.einsum("egcd,edf->egcf", y, self.w1)), self.w2)
        if self.group is not None:
            y = y.reshape(mine, RANKS, -1, ROOM, SIZE).transpose(0, 1).reshape(EXPERTS, -1, ROOM, SIZE)
            y = _Exchange.apply(y, self.group)
        return x + self.out(torch.einsum("gsec,egcd->gsd", scores, y)), balance


def switch_experts(right: bool = True) -> Definition:
    """Wrong: the experts' gradients are not divided by the ranks, whose losses are means."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        y, balance = model(batch["x"])
        loss = F.mse_loss(y, batch["y"]) + 0.01 * balance
        loss.backward()
        for name, p in model.named_parameters() if model.group is not None else ():
            if name not in ("w1", "w2"):
                dist.all_reduce(p.grad, group=model.group)
            if right or name not in ("w1", "w2"):
                p.grad /= RANKS
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["ep"].get_group()
        for name in ("w1", "w2"):
            setattr(model, name, own(getattr(model, name), model.group, 0))
        return model

    rows = Batch((2 * RANKS, TOKENS, SIZE), shard={"ep": 0})
    return Definition(
        name="switch-experts",
        mesh={"ep": RANKS},
        build=Switch,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        step=train,
        layouts={"w1": {"ep": 0}, "w2": {"ep": 0}},
        batch={"x": rows, "y": rows},
        mean_over={"loss": ("ep",)},
    )


# --- denoising ---------------------------------------------------------------------------------------------

CHANNELS, SIDE, TIMES = 8, 4, 10


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.time = nn.GroupNorm(2, CHANNELS), nn.Linear(CHANNELS, 2 * CHANNELS)
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        return x + self.second(self.first(F.silu(self.norm(x))) * (1 + scale) + shift)


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, 3, 3, padding=1)
        self.low, self.high = Residual(), Residual()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        half = CHANNELS // 2
        angles = t[:, None].float() * torch.exp(-math.log(10000) * torch.arange(half) / half)
        time = torch.cat([angles.sin(), angles.cos()], -1)
        x = self.enter(x)
        low = self.low(F.avg_pool2d(x, 2), time)
        return self.leave(self.high(x + F.interpolate(low, scale_factor=2, mode="nearest"), time))


class Averaged(nn.Module):
    """A network and the running mean of its weights."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net: nn.Module = Unet()
        self.mean = Unet().requires_grad_(False)
        self.register_buffer("kept", torch.linspace(0.99, 0.1, TIMES))


def denoiser(right: bool = True) -> Definition:
    """Wrong: every rank trains on its own rows."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        kept = model.kept[batch["t"]].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * batch["x"] + (1 - kept).sqrt() * batch["noise"]
        weight = torch.clamp(kept / (1 - kept), max=5.0).flatten()
        error = model.net(noisy, batch["t"]) - batch["noise"]
        loss = (weight * error.pow(2).mean((1, 2, 3))).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(model.mean.parameters(), model.net.parameters(), strict=True):
                mean.lerp_(p, 0.001)
        return {"loss": loss}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        if right:
            model.net = DistributedDataParallel(model.net, process_group=mesh["dp"].get_group())
        return model

    image = Batch((4, 3, SIDE, SIDE), shard={"dp": 0})
    return Definition(
        name="denoiser",
        mesh={"dp": 2},
        build=Averaged,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-4),
        step=train,
        batch={"x": image, "noise": image, "t": Batch((4,), torch.int64, {"dp": 0}, (0, TIMES))},
        mean_over={"loss": ("dp",)},
    )


# --- a policy and its value --------------------------------------------------------------------------------


class Policy(nn.Module):
    """The value is one number: its bias has one element, and the norm of its gradient one square."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(12, 16), nn.Linear(16, 16)
        self.policy, self.value = nn.Linear(16, 12), nn.Linear(16, 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.inner(self.table(ids)))
        return F.log_softmax(self.policy(x), -1), self.value(x).squeeze(-1)


def clipped_policy(right: bool = True) -> Definition:
    """Wrong: advantages are whitened by the rank's own mean and variance."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        group, mask, old = getattr(model, "group", None), batch["mask"], batch["value"]
        gain = batch["return"] - old
        sums = torch.stack([(gain * mask).sum(), (gain.square() * mask).sum(), mask.sum()])
        all_sums = sums.clone()
        if group is not None:
            dist.all_reduce(all_sums, group=group)
        total, squares, count = all_sums if right else sums
        mean = total / count
        gain = (gain - mean) / torch.sqrt(squares / count - mean**2 + 1e-8)
        logs, value = model(batch["ids"])
        ratio = torch.exp(logs.gather(-1, batch["acts"][..., None]).squeeze(-1) - batch["logs"])
        policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2))
        near = old + (value - old).clamp(-0.2, 0.2)
        error = torch.maximum((value - batch["return"]) ** 2, (near - batch["return"]) ** 2)
        entropy = -(logs.exp() * logs).sum(-1)
        loss = ((policy + 0.25 * error - 0.01 * entropy) * mask).sum() / all_sums[2]
        loss = loss if group is None else loss * group.size()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        wrapped = DistributedDataParallel(model, process_group=mesh["dp"].get_group())
        wrapped.group = mesh["dp"].get_group()
        return wrapped

    reals = dict.fromkeys(("return", "value", "logs", "mask"), Batch((4, 6), shard={"dp": 0}))
    ids = Batch((4, 6), torch.int64, {"dp": 0}, (0, 12))
    return Definition(
        name="clipped-policy",
        mesh={"dp": 2},
        build=Policy,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train,
        batch={"ids": ids, "acts": ids, **reals},
        mean_over={"loss": ("dp",)},
    )
