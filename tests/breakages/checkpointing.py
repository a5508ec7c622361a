"""Part 7: activations recomputed in the backward pass; a rank keeps its piece of a block's input only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .kit import Batches, RMSNorm, copy, gathered, mse_step, own, part, reduce, shard

MESH = {"dp": 2, "tp": 2}


class Block(nn.Module):
    """A residual block that is normalised at its end, so that the backward pass needs its result."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.norm = RMSNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.silu(self.up(x))))


class Checkpoint(torch.autograd.Function):
    """Run a block without a graph, and again with one in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[..., Tensor], group: ProcessGroup, mistake: str) -> Tensor:
        result = run(x, False)
        ctx.run, ctx.group, ctx.mistake, ctx.shape = run, group, mistake, x.shape
        ctx.piece = own(result if mistake == "result kept instead of the input" else x, group, 1).clone()
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.mistake == "pieces of the input gathered along the rows":
            x = gathered(ctx.piece, ctx.group, 0).reshape(ctx.shape)
        elif ctx.mistake == "own piece of the input repeated":
            x = torch.cat([ctx.piece] * ctx.group.size(), 1)
        else:
            x = gathered(ctx.piece, ctx.group, 1)
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            result = ctx.run(x, True)
        if ctx.mistake == "backward pass run twice":
            torch.autograd.backward(result, grad, retain_graph=True)
            x.grad = None
        torch.autograd.backward(result, grad)
        assert x.grad is not None
        return x.grad, None, None, None


class ParallelBlock(nn.Module):
    def __init__(self, block: nn.Module, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        assert isinstance(block, Block)
        self.tp, self.dp, self.mistake = mesh["tp"].get_group(), mesh["dp"].get_group(), mistake
        self.up, self.down, self.norm = block.up, block.down, block.norm
        shard(self.up, "weight", 0, self.tp)
        shard(self.down, "weight", 1, self.tp)

    def run(self, x: Tensor, again: bool) -> Tensor:
        inner = F.linear(F.silu(self.up(copy(x, self.tp))), self.down.weight)
        if again and self.mistake == "recomputed without the reduction":
            inner = inner * 1.0
        elif again and self.mistake == "recomputed over the data-parallel group":
            inner = reduce(inner, self.dp)
        else:
            inner = reduce(inner, self.tp)
        kept = x.detach() if again and self.mistake == "residual left out of the recomputed graph" else x
        return self.norm(kept + inner)

    def forward(self, x: Tensor) -> Tensor:
        return Checkpoint.apply(x, self.run, self.tp, self.mistake)


class Parallel(nn.Sequential):
    def __init__(self, model: nn.Module, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__(*(ParallelBlock(block, mesh, mistake) for block in model.children()))
        self.dp = mesh["dp"].get_group()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    assert isinstance(model, Parallel)
    loss = F.mse_loss(model(batch["x"].requires_grad_()), batch["y"])
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=model.dp)
        parameter.grad /= model.dp.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def define(mistake: str) -> Definition:
    dim, hidden = 4, 6
    batch = Batch(shape=(4, dim), shard={"dp": 0})
    layouts: dict[str, dict[str, int]] = {}
    for i in range(2):
        layouts |= {f"{i}.up.weight": {"tp": 0}, f"{i}.down.weight": {"tp": 1}, f"{i}.norm.weight": {}}
    return Definition(
        name="breakages-checkpointing",
        mesh=MESH,
        build=lambda: nn.Sequential(Block(dim, hidden), Block(dim, hidden)),
        parallelize=functools.partial(Parallel, mistake=mistake),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
        step=mse_step,
        parallel_step=step,
        batch={"x": batch, "y": batch},
        layouts=layouts,
        mean_over={"loss": ("dp",)},
    )


PART = part(
    "activation checkpointing",
    {
        "two blocks": (
            define,
            {
                "recomputed over the data-parallel group": "params.0.*",
                "recomputed without the reduction": "params.0.*",
                "pieces of the input gathered along the rows": "params.0.*",
                "own piece of the input repeated": "params.0.*",
                "result kept instead of the input": "params.0.*",
                "backward pass run twice": "params.0.*",
                "residual left out of the recomputed graph": "params.0.*",
            },
        )
    },
)
