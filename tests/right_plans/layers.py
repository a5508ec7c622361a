"""Layers in pieces: MLPs, norms, moments of a batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from orchestrator.capture import Batch, Definition

from ..breakages.kit import (
    RMSNorm,
    _Pair,
    adamw,
    copy,
    gather,
    gathered,
    mse_step,
    own,
    reduce,
    scatter,
    scattered,
    shard,
    summed,
)
from .ranks import Rank, averaged, grads, regression


class MLP(nn.Module):
    def __init__(self, dim: int = 6, hidden: int = 8, bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden, bias=bias), nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


PIECES = {"up.weight": ("tp", 0), "up.bias": ("tp", 0), "down.weight": ("tp", 1)}


def mlp_bias_divided() -> Definition:
    """Every rank adds its share of the bias before the sum over ranks."""

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["tp"]
        h = F.gelu(m.up(copy(x, group)), approximate="tanh")
        bias = copy(m.down.bias, group) / group.size()
        return reduce(F.linear(h, m.down.weight, bias), group)

    return regression("mlp-bias-divided", {"tp": 2}, MLP, forward, PIECES, (4, 6), {})


def mlp_gathered_weights() -> Definition:
    """Both weights are cut over two axes; one is gathered, the other is summed over."""

    def forward(m: Any, x: Tensor) -> Tensor:
        dp, tp = m.groups["dp"], m.groups["tp"]

        def whole(w: Tensor, dim: int) -> Tensor:
            return _Pair.apply(w, lambda t: gathered(t, dp, dim), lambda g: scattered(g, dp, dim) / dp.size())

        h = F.relu(F.linear(copy(x, tp), whole(m.up.weight, 1)))
        return reduce(F.linear(h, whole(m.down.weight, 0)), tp)

    class Net(MLP):
        def __init__(self) -> None:
            super().__init__(bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.relu(self.up(x)))

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        rank = Rank(model, mesh, forward, {"up.weight": ("tp", 0), "down.weight": ("tp", 1)})
        shard(rank.up, "weight", 1, rank.groups["dp"])
        shard(rank.down, "weight", 0, rank.groups["dp"])
        return rank

    batch = Batch((4, 6), shard={"dp": 0})
    return Definition(
        name="mlp-2d",
        mesh={"dp": 2, "tp": 2},
        build=Net,
        parallelize=parallelize,
        optimizer=adamw,
        step=mse_step,
        batch={"x": batch, "y": batch},
        layouts={"up.weight": {"tp": 0, "dp": 1}, "down.weight": {"tp": 1, "dp": 0}},
        mean_over={"loss": ("dp",)},
    )


class Normed(nn.Module):
    def __init__(self, layer: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6) if layer else RMSNorm(6)
        self.out = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


def _both(x: Tensor, group: ProcessGroup) -> Tensor:
    """A sum over ranks that every rank goes on with for its own part of the result."""
    return _Pair.apply(x, lambda t: summed(t, group), lambda g: summed(g, group))


def rms_norm_of_pieces() -> Definition:
    """The normalised dimension is cut over ranks: sums of squares are added."""

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["tp"]
        x = own(x, group, 1)
        squares = _both(x.pow(2).sum(-1, keepdim=True), group) / 6
        y = x * torch.rsqrt(squares + m.norm.eps) * m.norm.weight
        return reduce(F.linear(y, m.out.weight), group)

    return regression(
        "rms-norm-of-pieces",
        {"tp": 2},
        lambda: Normed(False),
        forward,
        {"norm.weight": ("tp", 0), "out.weight": ("tp", 1)},
        (4, 6),
        {},
    )


def layer_norm_of_pieces() -> Definition:
    """Mean and variance of a dimension that is cut over ranks."""

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["tp"]
        x = own(x, group, 1)
        mean = _both(x.sum(-1, keepdim=True), group) / 6
        centred = x - mean
        variance = _both(centred.pow(2).sum(-1, keepdim=True), group) / 6
        y = centred * torch.rsqrt(variance + m.norm.eps) * m.norm.weight + m.norm.bias
        return reduce(F.linear(y, m.out.weight), group)

    return regression(
        "layer-norm-of-pieces",
        {"tp": 2},
        lambda: Normed(True),
        forward,
        {"norm.weight": ("tp", 0), "norm.bias": ("tp", 0), "out.weight": ("tp", 1)},
        (4, 6),
        {},
    )


def sequence_parallel_norm() -> Definition:
    """Norms on pieces of the sequence, whose gradients are added over the tensor-parallel ranks."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(6), MLP()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(self.norm(x))

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["tp"]
        h = gather(m.norm(x), group, 1)
        h = F.linear(F.gelu(m.mlp.up(h), approximate="tanh"), m.mlp.down.weight)
        return x + scatter(h, group, 1) + m.mlp.down.bias

    def after(m: Any) -> None:
        n = m.groups["tp"].size()
        for p in (m.norm.weight, m.norm.bias, m.mlp.down.bias):
            dist.all_reduce(p.grad, group=m.groups["tp"])
        for grad in grads(m):
            grad /= n

    pieces = {f"mlp.{n}": p for n, p in PIECES.items()}
    return regression("sp-norm", {"tp": 2}, Block, forward, pieces, (2, 4, 6), {"tp": 1}, after)


def recomputed() -> Definition:
    """Activations are recomputed in the backward pass, collectives included."""

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["tp"]

        def block(h: Tensor) -> Tensor:
            h = F.gelu(m.up(copy(h, group)), approximate="tanh")
            return reduce(F.linear(h, m.down.weight), group) + m.down.bias

        return checkpoint(block, x, use_reentrant=False)

    return regression("recomputed", {"tp": 2}, MLP, forward, PIECES, (4, 6), {})


def synchronised_batch_norm() -> Definition:
    """Moments of all ranks' rows, by sums of values and of squares."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(5)), nn.Parameter(torch.zeros(5))

        def forward(self, x: Tensor) -> Tensor:
            mean, square = x.mean(0), (x * x).mean(0)
            return (x - mean) * torch.rsqrt(square - mean * mean + 1e-5) * self.scale + self.shift

    def forward(m: Any, x: Tensor) -> Tensor:
        sums = _both(torch.cat([x.sum(0), (x * x).sum(0)]), m.groups["dp"])
        mean, square = (sums / (2 * x.shape[0])).chunk(2)
        return (x - mean) * torch.rsqrt(square - mean * mean + 1e-5) * m.scale + m.shift

    return regression("sync-batch-norm", {"dp": 2}, Net, forward, {}, (6, 5), {"dp": 0}, averaged("dp"))
