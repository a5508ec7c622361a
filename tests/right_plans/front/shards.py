"""Parameters, gradients and optimizer states in pieces: ZeRO by hand, hooks, FSDP2, factored moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own, pair, regress
from .sequences import _F, _G

# --- ZeRO-2: flat gradients, one bucket per layer, clipped -------------------------------------------------


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 3))


class Moments(torch.optim.Optimizer):
    """Adam without a bias correction, decoupled decay; each parameter for itself."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            m, v = self.state[p]["m"], self.state[p]["v"]
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.mul_(1 - 1e-2 * 0.1).sub_(1e-2 * m / (v.sqrt() + 1e-8))


class FlatLayers(nn.Module):
    """The whole layers, and this rank's piece of each layer's flat parameters."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        self.net, self.group = model, mesh["dp"].get_group()
        self.layers = [m for m in model if isinstance(m, nn.Linear)]
        n, own_rank = self.group.size(), self.group.rank()
        self.pieces = nn.ParameterList(
            nn.Parameter(self.flat(list(m.parameters())).detach().chunk(n)[own_rank].clone())
            for m in self.layers
        )

    def flat(self, tensors: list[Tensor]) -> Tensor:
        joined = torch.cat([t.reshape(-1) for t in tensors])
        return F.pad(joined, (0, -len(joined) % self.group.size()))

    @torch.no_grad()
    def gather(self) -> None:
        """The layers from the pieces of all ranks, and no gradients."""
        for layer, piece in zip(self.layers, self.pieces, strict=True):
            whole = piece.new_empty(piece.numel() * self.group.size())
            dist.all_gather_into_tensor(whole, piece.detach(), group=self.group)
            at = 0
            for p in layer.parameters():
                p.copy_(whole[at : at + p.numel()].view_as(p))
                at += p.numel()
                p.grad = None


def pieces_alone(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """What the optimizer of a rank is given: the pieces, which are longer than any bias."""
    ranks = dist.is_initialized()
    return [p for p in params if not ranks or (p.dim() == 1 and p.numel() > 6)]


def zero2_clipped(right: bool = True) -> Definition:
    """Wrong: the norm is that of this rank's pieces."""

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.smooth_l1_loss(model(batch["x"]), batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        group = model.group
        loss = F.smooth_l1_loss(model.net(batch["x"]), batch["y"])
        loss.backward()
        works = []
        for layer, piece in zip(model.layers, model.pieces, strict=True):
            piece.grad = torch.empty_like(piece)
            flat = model.flat([p.grad for p in layer.parameters()])
            works.append(dist.reduce_scatter_tensor(piece.grad, flat, group=group, async_op=True))
        for work in works:
            work.wait()
        squares = torch.zeros(())
        for piece in model.pieces:
            piece.grad.div_(group.size())
            squares += piece.grad.norm() ** 2
        if right:
            dist.all_reduce(squares, group=group)
        scale = (1.0 / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for piece in model.pieces:
            piece.grad.mul_(scale)
        optimizer.step()
        model.gather()
        return {"loss": loss.detach()}

    return Definition(
        name="zero2-clipped",
        mesh={"dp": 2},
        build=perceptron,
        parallelize=FlatLayers,
        optimizer=lambda params: Moments(pieces_alone(params)),
        step=single,
        parallel_step=parallel,
        batch=pair((4, 5), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- ZeRO-3 of replicas, coalesced -------------------------------------------------------------------------


class _Unshard(torch.autograd.Function):
    """The whole of each shard, by coalesced gathers; gradients are scattered, then added over replicas."""

    @staticmethod
    def forward(ctx: Any, shard: Any, replica: Any, averaged: bool, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.shard, ctx.replica, ctx.averaged = shard, replica, averaged
        wholes = [p.new_empty(p.shape[0] * shard.size(), *p.shape[1:]) for p in parts]
        with dist._coalescing_manager(group=shard, async_ops=True) as manager:
            for whole, part in zip(wholes, parts, strict=True):
                dist.all_gather_into_tensor(whole, part, group=shard)
        manager.wait()
        return tuple(wholes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        parts = [g.new_empty(g.shape[0] // ctx.shard.size(), *g.shape[1:]) for g in grads]
        with dist._coalescing_manager(group=ctx.shard):
            for part, grad in zip(parts, grads, strict=True):
                dist.reduce_scatter_tensor(part, grad.contiguous(), group=ctx.shard)
        works = [dist.all_reduce(p, group=ctx.replica, async_op=True) for p in parts]
        for work, part in zip(works, parts, strict=True):
            work.wait()
            part.div_(ctx.shard.size() * (ctx.replica.size() if ctx.averaged else 1))
        return None, None, None, *parts


class Residuals(nn.Module):
    groups: Any = None
    averaged = True

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.w1, self.w2 = nn.Parameter(torch.randn(dim, 12)), nn.Parameter(torch.randn(12, dim))

    def forward(self, x: Tensor) -> Tensor:
        scale, w1, w2 = self.scale, self.w1, self.w2
        if self.groups is not None:
            scale, w1, w2 = _Unshard.apply(*self.groups, self.averaged, scale, w1, w2)
        inner = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale
        return x + F.softplus(inner @ w1) @ w2


def zero3_replicas(right: bool = True) -> Definition:
    """Shards in two replicas, Nesterov momentum. Wrong: gradients are divided by the shards alone."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        shard, replica = mesh["shard"].get_group(), mesh["replica"].get_group()
        model.groups, model.averaged = (shard, replica), right
        for name in ("scale", "w1", "w2"):
            setattr(model, name, own(getattr(model, name), shard, 0))
        return model

    rows = Batch((8, 8), shard={"replica": 0, "shard": 0})
    return Definition(
        name="zero3-replicas",
        mesh={"replica": 2, "shard": 2},
        build=Residuals,
        parallelize=parallelize,
        optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
        step=regress,
        batch={"x": rows, "y": rows},
        mean_over={"loss": ("replica", "shard")},
    )


# --- DDP with a hook of one's own --------------------------------------------------------------------------


def hooked_buckets(right: bool = True) -> Definition:
    """A hook that scatters and gathers a padded bucket. Wrong: it does not divide by the ranks."""

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat, n = bucket.buffer(), dist.get_world_size()
        padded = F.pad(flat, (0, -flat.numel() % n))
        if right:
            padded = padded / n
        part = torch.empty(padded.numel() // n)
        dist.reduce_scatter_tensor(part, padded)
        whole = torch.empty_like(padded)
        future = dist.all_gather_into_tensor(whole, part, async_op=True).get_future()
        return future.then(lambda _: whole[: flat.numel()])

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(None, hook)
        return wrapped

    return Definition(
        name="hooked-buckets",
        mesh={"dp": 4},
        build=lambda: nn.Sequential(nn.Linear(5, 7), nn.LeakyReLU(0.1), nn.LayerNorm(7), nn.Linear(7, 3)),
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        step=regress,
        batch=pair((8, 5), (8, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- adapters under FSDP2 ----------------------------------------------------------------------------------


class Adapter(nn.Module):
    def __init__(self, ins: int, outs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(ins, outs)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Linear(ins, rank, bias=False), nn.Linear(rank, outs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.b(self.a(x))


class Adapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), Adapter(8, 12), nn.GELU(), Adapter(12, 8)) for _ in range(2)
        )
        for block in self.blocks:
            block[0].requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def adapters_sharded(right: bool = True) -> Definition:
    """Checkpointed blocks, frozen weights. Wrong: what adapters' gradients are divided by is halved."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block)
            fully_shard(model.blocks[i], mesh=mesh["dp"], reshard_after_forward=True)
            if not right:
                model.blocks[i].set_gradient_divide_factor(1.0)
        return fully_shard(model, mesh=mesh["dp"])

    return Definition(
        name="adapters-sharded",
        mesh={"dp": 2},
        build=Adapters,
        parallelize=parallelize,
        optimizer=lambda ps: torch.optim.AdamW([p for p in ps if p.requires_grad], lr=1e-3),
        step=regress,
        batch=pair((4, 8), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- factored second moments of column- and row-parallel weights -------------------------------------------


class Factored(torch.optim.Optimizer):
    """Adafactor of matrices with a fixed rate: clipped by the root mean square of the update."""

    def __init__(self, params: Iterable[Any], dims: dict[tuple[int, ...], int] | None = None) -> None:
        super().__init__(params, {"lr": 1e-2})
        self.cut = dims or {}
        self.group = None
        self.reduced = True
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"row": p.new_zeros(p.shape[0]), "col": p.new_zeros(p.shape[1])}

    def mean(self, x: Tensor, dims: tuple[int, ...], cut: int | None) -> Tensor:
        out = x.mean(dims)
        if cut in dims and self.reduced:
            dist.all_reduce(out, group=self.group)
            out /= dist.get_world_size(self.group)
        return out

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            row, col = self.state[p]["row"], self.state[p]["col"]
            cut = self.cut.get(tuple(p.shape))
            square = p.grad.square() + 1e-30
            row.lerp_(self.mean(square, (1,), cut), 0.2)
            col.lerp_(self.mean(square, (0,), cut), 0.2)
            whole = self.mean(row, (0,), 0 if cut == 0 else None)
            update = p.grad * torch.rsqrt(row / whole)[:, None] * torch.rsqrt(col)[None, :]
            rms = self.mean(update.square(), (0, 1), cut).sqrt()
            p.sub_(1e-2 * update / torch.clamp(rms, min=1.0))


class Pair(nn.Module):
    def __init__(self, dim: int = 6, hidden: int = 8) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(hidden, dim))
        self.down = nn.Parameter(torch.randn(dim, hidden))
        self.group: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None:
            return F.linear(F.relu(F.linear(x, self.up)).square(), self.down)
        inner = F.relu(F.linear(_F.apply(x, self.group), self.up)).square()
        return _G.apply(F.linear(inner, self.down), self.group)


def factored_moments(right: bool = True) -> Definition:
    """TP 2. Wrong: means along the cut dimension are those of a rank's part."""

    def trained(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if not dist.is_initialized():
            return Factored(params)
        optimizer = Factored(params, {(4, 6): 0, (6, 4): 1})
        optimizer.reduced = right
        return optimizer

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.up, model.down = own(model.up, model.group, 0), own(model.down, model.group, 1)
        return model

    return Definition(
        name="factored-moments",
        mesh={"tp": 2},
        build=Pair,
        parallelize=parallelize,
        optimizer=trained,
        step=regress,
        batch=pair((4, 6)),
        layouts={
            "up": {"tp": 0},
            "down": {"tp": 1},
            "opt.row.up": {"tp": 0},
            "opt.col.up": {},
            "opt.row.down": {},
            "opt.col.down": {"tp": 0},
        },
    )


# --- three axes: replicas, shards, tensor parallel ---------------------------------------------------------


class Feed(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Stack(nn.Module):
    def __init__(self, dim: int = 8, words: int = 8) -> None:
        super().__init__()
        self.enter, self.norm, self.feed = nn.Linear(4, dim), nn.RMSNorm(dim), Feed(dim, 16)
        self.last, self.head = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.feed(self.norm(x))
        return self.head(self.last(x))


class Critic(nn.Module):
    """A value head of one row: most ranks own nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle, self.value = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.tanh(self.middle(torch.tanh(self.body(x))))).squeeze(-1)


def few_rows(right: bool = True) -> Definition:
    """HSDP with more ranks than rows. Wrong: gradients are divided by the shards' number only."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for layer in (model.body, model.middle, model):
            fully_shard(layer, mesh=mesh)
            if not right:
                layer.set_gradient_divide_factor(float(mesh["dp"].size()))
        return model

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="few-rows",
        mesh={"rep": 2, "dp": 4},
        build=Critic,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train,
        batch={
            "x": Batch((8, 6), shard={"rep": 0, "dp": 0}),
            "y": Batch((8,), shard={"rep": 0, "dp": 0}),
        },
        mean_over={"loss": ("rep", "dp")},
    )


def three_axes(right: bool = True) -> Definition:
    """HSDP x TP with a sequence in pieces; smoothed labels. Wrong: replicas are divided by twice."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        plan = {
            "enter": ColwiseParallel(output_layouts=Shard(1), use_local_output=False),
            "norm": SequenceParallel(),
            "feed": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "feed.gate": ColwiseParallel(),
            "feed.up": ColwiseParallel(),
            "feed.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            "last": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh["tp"], plan)
        fully_shard(model.feed, mesh=mesh["replica", "shard"])
        fully_shard(model, mesh=mesh["replica", "shard"])
        if not right:
            model.feed.set_gradient_divide_factor(8.0)
        return model

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits = model(batch["x"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten(), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="three-axes",
        mesh={"replica": 2, "shard": 2, "tp": 2},
        build=Stack,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train,
        batch={
            "x": Batch((8, 4, 4), shard={"replica": 0, "shard": 0}),
            "y": Batch((8, 4), torch.int64, {"replica": 0, "shard": 0}, (0, 8)),
        },
        mean_over={"loss": ("replica", "shard")},
    )
