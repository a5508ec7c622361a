"""Optimizers of flat pieces, which count steps once for all in a piece; PyTorch's count by parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition
from orchestrator.capture.definition import Bucket

from .by_hand import Batches, pair, regress
from .shards import FlatLayers, perceptron, pieces_alone


def zero2_as_shipped(right: bool = True) -> Definition:
    """AdamW as PyTorch ships it, on each layer's pieces. Wrong: gradients are not divided by the ranks."""

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        n = model.group.size()
        loss = F.mse_loss(model.net(batch["x"]), batch["y"])
        loss.backward()
        for layer, piece in zip(model.layers, model.pieces, strict=True):
            piece.grad = torch.empty_like(piece)
            flat = model.flat([p.grad for p in layer.parameters()])
            dist.reduce_scatter_tensor(piece.grad, flat / n if right else flat, group=model.group)
        optimizer.step()
        model.gather()
        return {"loss": loss.detach()}

    return Definition(
        name="zero2-as-shipped",
        mesh={"dp": 2},
        build=perceptron,
        parallelize=FlatLayers,
        optimizer=lambda params: torch.optim.AdamW(pieces_alone(params), lr=1e-2),
        step=regress,
        parallel_step=parallel,
        batch=pair((4, 5), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- one partition of everything, as DeepSpeed has it


class Partition(torch.optim.Optimizer):
    """RMSprop with momentum and a warm-up, on this rank's part of all parameters laid end to end."""

    def __init__(self, params: Iterable[Any], early: bool = False) -> None:
        super().__init__(list(params), {"lr": 1e-2})
        self.early, self.whole = early, list(self.param_groups[0]["params"])
        total = sum(p.numel() for p in self.whole)
        self.size = -(-total // dist.get_world_size())
        self.state[self.whole[0]] = {
            "flat": {name: torch.zeros(self.size) for name in ("square", "momentum")},
            "count": torch.zeros(()),
        }

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        joined = torch.cat([t.reshape(-1) for t in tensors])
        return F.pad(joined, (0, self.size * dist.get_world_size() - joined.numel()))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        state = self.state[self.whole[0]]
        own = torch.empty(self.size)
        dist.reduce_scatter_tensor(own, self.flat([p.grad for p in self.whole]) / dist.get_world_size())
        start = dist.get_rank() * self.size
        mine = self.flat(self.whole)[start : start + self.size].clone()
        if not self.early:
            state["count"] += 1
        _moved(mine, own, state["count"], **state["flat"])
        if self.early:
            state["count"] += 1
        everything = torch.empty(self.size * dist.get_world_size())
        dist.all_gather_into_tensor(everything, mine)
        at = 0
        for p in self.whole:
            p.copy_(everything[at : at + p.numel()].view_as(p))
            at += p.numel()


class Whole(torch.optim.Optimizer):
    """The same of each parameter."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"lr": 1e-2})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"square": torch.zeros_like(p), "momentum": torch.zeros_like(p)}
            self.state[p]["count"] = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["count"] += 1
            _moved(p, p.grad, **self.state[p])


def _moved(p: Tensor, grad: Tensor, count: Tensor, square: Tensor, momentum: Tensor) -> None:
    square.mul_(0.9).addcmul_(grad, grad, value=0.1)
    momentum.mul_(0.9).add_(grad / (square.sqrt() + 1e-8))
    p.sub_(1e-2 * torch.clamp(count / 100, max=1.0) * momentum)


def one_partition(right: bool = True) -> Definition:
    """Wrong: the count goes up after it was read, not before."""

    def trained(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return Partition(params, not right) if dist.is_initialized() else Whole(params)

    names = [name for name, _ in perceptron().named_parameters()]
    flat = {
        f"opt.flat.{kind}.{names[0]}": Bucket(tuple(f"opt.{kind}.{n}" for n in names), "dp")
        for kind in ("square", "momentum")
    }
    return Definition(
        name="one-partition",
        mesh={"dp": 3},
        build=perceptron,
        parallelize=lambda model, mesh: model,
        optimizer=trained,
        step=regress,
        batch={"x": Batch((6, 5), shard={"dp": 0}), "y": Batch((6, 3), shard={"dp": 0})},
        buckets={**flat, f"opt.count.{names[0]}": Bucket(tuple(f"opt.count.{n}" for n in names))},
        mean_over={"loss": ("dp",)},
    )


# --- whole parameters, each with one owner


def zero_redundancy(right: bool = True) -> Definition:
    """PyTorch's ZeroRedundancyOptimizer under DDP. Wrong: a hook adds gradients up, and does not divide."""

    def summed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
        wrapped = DistributedDataParallel(model)
        if not right:
            wrapped.register_comm_hook(None, summed)
        return wrapped

    def trained(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if dist.is_initialized():
            return ZeroRedundancyOptimizer(params, optimizer_class=torch.optim.AdamW, lr=1e-2)
        return torch.optim.AdamW(params, lr=1e-2)

    return Definition(
        name="zero-redundancy",
        mesh={"dp": 2},
        build=perceptron,
        parallelize=parallelize,
        optimizer=trained,
        step=regress,
        batch=pair((4, 5), (4, 3), dp=0),
        mean_over={"loss": ("dp",)},
    )


# --- orthogonalised momentum of sharded matrices


class Split(torch.optim.Optimizer):
    """PyTorch's Muon for matrices, AdamW for the rest."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        listed = list(params)
        super().__init__(listed, {"lr": 1e-3})
        self.matrices = torch.optim.Muon([p for p in listed if p.dim() == 2], lr=1e-3)
        self.others = torch.optim.AdamW([p for p in listed if p.dim() < 2], lr=1e-3)

    def step(self, closure: Any = None) -> None:
        self.matrices.step()
        self.others.step()


def muon_sharded(right: bool = True) -> Definition:
    """FSDP2: rows of a rank times all rows. Wrong: gradients are summed, and momentum remembers them."""

    def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
        fully_shard(model, mesh=mesh["dp"])
        if not right:
            model.set_gradient_divide_factor(1.0)
        return model

    return Definition(
        name="muon-sharded",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 8)),
        parallelize=parallelize,
        optimizer=Split,
        step=regress,
        batch=pair((4, 6), (4, 8), dp=0),
        mean_over={"loss": ("dp",)},
    )
