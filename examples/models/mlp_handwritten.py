"""A residual MLP trained with collectives written by hand: no DTensor, no FSDP.

Tensor parallelism over ``tp`` (column-, then row-parallel) and sharded weights over ``dp`` in the manner of
ZeRO-3: a weight's shards are gathered before use and its gradient is reduce-scattered. Nothing in the code
says how tensors lie on the mesh, so ``LAYOUTS`` declares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

BLOCKS = 2


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(x)))


def build(dim: int, hidden: int) -> nn.Module:
    return nn.Sequential(*(Block(dim, hidden) for _ in range(BLOCKS)))


class GatherShards(torch.autograd.Function):
    """All shards of a weight, concatenated along dimension 0; the gradient is averaged and scattered."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        whole = shard.new_empty(shard.shape[0] * group.size(), *shard.shape[1:])
        dist.all_gather_into_tensor(whole, shard, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shard = grad.new_empty(grad.shape[0] // ctx.group.size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(shard, grad.contiguous(), group=ctx.group)
        return shard / ctx.group.size(), None


class EnterTensorParallel(torch.autograd.Function):
    """The identity; every rank used the value for its own columns, so their gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class LeaveTensorParallel(torch.autograd.Function):
    """Sum of the partial products of all ranks; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Shard(nn.Module):
    """This rank's part of one linear layer."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())


class ParallelBlock(nn.Module):
    def __init__(self, block: Block, mesh: DeviceMesh) -> None:
        super().__init__()
        self.tp, self.dp = mesh["tp"].get_group(), mesh["dp"].get_group()
        columns, rows = mesh.get_local_rank("tp"), mesh.get_local_rank("dp")

        def part(x: Tensor, dim: int, index: int, parts: int) -> Tensor:
            return x.detach().chunk(parts, dim)[index]

        up, down, tp, dp = block.up, block.down, self.tp.size(), self.dp.size()
        self.up = Shard(part(part(up.weight, 0, columns, tp), 0, rows, dp), part(up.bias, 0, columns, tp))
        self.down = Shard(part(part(down.weight, 1, columns, tp), 0, rows, dp), down.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        inner = EnterTensorParallel.apply(x, self.tp)
        inner = F.linear(inner, GatherShards.apply(self.up.weight, self.dp), self.up.bias)
        partial = F.linear(F.silu(inner), GatherShards.apply(self.down.weight, self.dp))
        return x + LeaveTensorParallel.apply(partial, self.tp) + self.down.bias


class ParallelMLP(nn.Sequential):
    def __init__(self, model: nn.Sequential, mesh: DeviceMesh) -> None:
        super().__init__(*(ParallelBlock(block, mesh) for block in model if isinstance(block, Block)))
        self.data_parallel = mesh["dp"].get_group()


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def parallel_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    assert isinstance(model, ParallelMLP)
    group = model.data_parallel
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # replicated over dp: its gradient is still that of this rank's rows
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= group.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


LAYOUTS: dict[str, dict[str, int]] = {}
for _i in range(BLOCKS):
    LAYOUTS |= {
        f"{_i}.up.weight": {"tp": 0, "dp": 0},
        f"{_i}.up.bias": {"tp": 0},
        f"{_i}.down.weight": {"tp": 1, "dp": 0},
        f"{_i}.down.bias": {},
    }


def definition(dim: int = 4096, hidden: int = 16384, rows: int = 2048) -> Definition:
    batch = Batch(shape=(rows, dim), shard={"dp": 0})
    return Definition(
        name="mlp-handwritten",
        mesh={"dp": 2, "tp": 2},
        build=lambda: build(dim, hidden),
        parallelize=ParallelMLP,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train_step,
        parallel_step=parallel_step,
        batch={"x": batch, "y": batch},
        layouts=LAYOUTS,
        mean_over={"loss": ("dp",)},
    )
