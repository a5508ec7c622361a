"""Pictures and pairs: convolutions in shards, statistics over ranks, neighbours, DTensor by hand."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, pair
from .sequences import _Shift

# --- a residual net in shards ------------------------------------------------------------------------------


class Stage(nn.Module):
    """Two convolutions, the first with a stride, and a shortcut of 1 x 1."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(ins, outs, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, outs)
        self.conv2 = nn.Conv2d(outs, outs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, outs)
        self.short = nn.Conv2d(ins, outs, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(Stage(3, 4), Stage(4, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.stages(x), 1).flatten(1))


class WithAverage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Pictures()
        self.ema = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def pictures_sharded(right: bool = True) -> Definition:
    """FSDP2, Nesterov, an average of weights. Wrong: gradients of the stages are added, not averaged."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, p in zip(model.ema.parameters(), model.net.parameters(), strict=True):
                average.mul_(0.99).add_(p, alpha=0.01)
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for net in (model.net, model.ema):
            for stage in net.stages:
                fully_shard(stage, mesh=mesh["dp"], mp_policy=policy)
            fully_shard(net, mesh=mesh["dp"], mp_policy=policy)
        if not right:
            for stage in model.net.stages:
                stage.set_gradient_divide_factor(1.0)
        return model

    return Definition(
        name="pictures-sharded",
        mesh={"dp": 2},
        build=WithAverage,
        parallelize=parallelize,
        optimizer=lambda ps: torch.optim.SGD(
            [p for p in ps if p.requires_grad], lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
        ),
        step=train,
        batch={
            "x": Batch((4, 3, 8, 8), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, {"dp": 0}, (0, 5)),
        },
        mean_over={"loss": ("dp",)},
    )


# --- statistics over ranks ---------------------------------------------------------------------------------


class _Added(torch.autograd.Function):
    """A sum over ranks, whose gradient is one, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Statistics(nn.Module):
    """Batch normalisation over the rows of all ranks, with running statistics."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.unbiased_by_all = True

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0] * (dist.get_world_size() if dist.is_initialized() else 1)
        sums = torch.cat([x.sum(0), x.square().sum(0)])
        if dist.is_initialized():
            sums = _Added.apply(sums)
        mean, square = (sums / n).chunk(2)
        var = square - mean.square()
        counted = n if self.unbiased_by_all else x.shape[0]
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
            self.var.lerp_(var * counted / (counted - 1), 0.1)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.weight + self.bias


def statistics_over_ranks(right: bool = True) -> Definition:
    """Wrong: the running variance is that of a sample of one rank's size."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 6, bias=False), Statistics(6), nn.ReLU6(), nn.Linear(6, 3))

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model[1].unbiased_by_all = right
        return model

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.huber_loss(model(batch["x"]), batch["y"])
        loss.backward()
        if dist.is_initialized():
            for p in model.parameters():
                p.grad = p.grad / dist.get_world_size()
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="statistics-over-ranks",
        mesh={"dp": 3},
        build=build,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        step=step,
        batch=pair((6, 5), (6, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- neighbours' texts -------------------------------------------------------------------------------------


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)
        self.log_scale, self.bias = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-10.0))
        self.group: Any = None

    def pairs(self, images: Tensor, texts: Tensor, same: bool) -> Tensor:
        logits = images @ texts.T * self.log_scale.exp() + self.bias
        signs = -torch.ones_like(logits)
        if same:
            signs = signs + 2 * torch.eye(len(images))
        return -F.logsigmoid(signs * logits).sum() / len(images)


def neighbours_texts(right: bool = True) -> Definition:
    """The sigmoid loss of pairs, texts go round. Wrong: the next texts count as those of the images."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        images, texts = F.normalize(model.image(batch["image"])), F.normalize(model.text(batch["text"]))
        loss = model.pairs(images, texts, True)
        if model.group is not None:
            for i in range(1, model.group.size()):
                texts = _Shift.apply(texts, model.group, 1)
                loss = loss + model.pairs(images, texts, not right and i == 1)
        loss.backward()
        if model.group is not None:
            for p in model.parameters():
                dist.all_reduce(p.grad, dist.ReduceOp.AVG, group=model.group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["dp"].get_group()
        return model

    return Definition(
        name="neighbours-texts",
        mesh={"dp": 3},
        build=Towers,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch={"image": Batch((6, 6), shard={"dp": 0}), "text": Batch((6, 5), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


# --- embeddings of all ranks, with PyTorch's differentiable collectives ------------------------------------


class Same(nn.Module):
    """Two views of each row are alike, all others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.Linear(8, 4))


def two_views(right: bool = True) -> Definition:
    """Normalised temperature-scaled cross-entropy. Wrong: a row is masked at its local place."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        spread = dist.is_initialized()
        a, b = F.normalize(model.net(batch["a"]), dim=-1), F.normalize(model.net(batch["b"]), dim=-1)
        n = len(a)
        all_a = torch.cat(dist_nn.all_gather(a)) if spread else a
        all_b = torch.cat(dist_nn.all_gather(b)) if spread else b
        first = dist.get_rank() * n if spread else 0
        at = torch.arange(n) + first
        where = at if right else torch.arange(n)
        itself = F.one_hot(where, len(all_a)).bool()
        aa = (a @ all_a.T / 0.5).masked_fill(itself, float("-inf"))
        bb = (b @ all_b.T / 0.5).masked_fill(itself, float("-inf"))
        ab, ba = a @ all_b.T / 0.5, b @ all_a.T / 0.5
        one = F.cross_entropy(torch.cat([ab, aa], 1), at)
        loss = (one + F.cross_entropy(torch.cat([ba, bb], 1), at)) / 2
        loss.backward()
        if spread:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="two-views",
        mesh={"dp": 2},
        build=Same,
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.Adamax(params, lr=1e-3),
        step=step,
        batch={"a": Batch((4, 6), shard={"dp": 0}), "b": Batch((4, 6), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


# --- DTensor by hand ---------------------------------------------------------------------------------------


class Placed(nn.Module):
    """Attention over a set, pooled by a query that is learned; on ranks parameters are DTensors."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(4, dim))
        self.w_in, self.w_out = nn.Parameter(torch.randn(dim, 16)), nn.Parameter(torch.randn(16, dim))
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        x = torch.relu(x @ self.w_in) @ self.w_out
        if isinstance(x, DTensor):
            x = x.redistribute(placements=[Shard(0), Replicate()])
        weights = torch.softmax(self.query @ x.transpose(-2, -1), -1)
        return (weights @ x * self.gain).mean(1)


def placed_by_hand(right: bool = True) -> Definition:
    """Two axes, one for rows. Wrong: the loss of each rank is divided by its own elements."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        placements = {
            "query": [Replicate(), Replicate()],
            "w_in": [Replicate(), Shard(1)],
            "w_out": [Replicate(), Shard(0)],
            "gain": [Replicate(), Replicate()],
        }
        for name, places in placements.items():
            setattr(model, name, nn.Parameter(distribute_tensor(getattr(model, name).detach(), mesh, places)))
        model.mesh = mesh
        return model

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        x, y = batch["x"], batch["y"]
        if dist.is_initialized():
            x, y = (DTensor.from_local(t, model.mesh, [Shard(0), Replicate()]) for t in (x, y))
        error = (model(x) - y).square()
        if dist.is_initialized():
            local = error.to_local(grad_placements=[Shard(0), Replicate()])
            part = local.sum() / (error.numel() if right else local.numel())
            loss = DTensor.from_local(part, model.mesh, [Partial(), Replicate()]).full_tensor()
        else:
            loss = error.sum() / error.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="placed-by-hand",
        mesh={"dp": 2, "tp": 2},
        build=Placed,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, foreach=False),
        step=step,
        batch={"x": Batch((4, 6, 8), shard={"dp": 0}), "y": Batch((4, 8), shard={"dp": 0})},
    )
