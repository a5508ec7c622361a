"""A residual MLP whose blocks lie on the stages of a pipeline, with messages written by hand.

Each rank runs the program of its stage: it receives activations from the stage before it, and the gradient
of what it handed on from the stage behind it. The first stage reads the batch, the last one has the labels,
and alone returns the loss. Gradients of microbatches add up, replicas over ``dp`` average them. Stages keep
the names of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(x)))


class MLP(nn.Module):
    """``blocks`` are held by number, so that a stage can keep the names of its own."""

    def __init__(self, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


class Stage(MLP):
    """The blocks of this rank's stage, and the ranks before and behind it."""

    def __init__(self, model: MLP, mesh: DeviceMesh) -> None:
        stage, stages = mesh.get_local_rank("pp"), mesh["pp"].size()
        each = len(model.blocks) // stages
        names = [str(i) for i in range(stage * each, (stage + 1) * each)]
        super().__init__({name: model.blocks[name] for name in names})
        self.pipe, self.replicas = mesh["pp"].get_group(), mesh["dp"].get_group()
        ranks = dist.get_process_group_ranks(self.pipe)
        self.before = ranks[stage - 1] if stage else None
        self.behind = ranks[stage + 1] if stage + 1 < stages else None


def build(blocks: int, dim: int, hidden: int) -> nn.Module:
    return MLP({str(i): Block(dim, hidden) for i in range(blocks)})


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def stage_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor], *, microbatches: int
) -> dict[str, Tensor]:
    """All forward passes, then all backward passes (GPipe)."""
    assert isinstance(model, Stage)
    rows, labels = batch["x"].chunk(microbatches), batch["y"].chunk(microbatches)
    kept, sent, losses = [], [], []
    for x, y in zip(rows, labels, strict=True):
        if model.before is not None:
            x = torch.empty_like(x)
            dist.recv(x, model.before, group=model.pipe)
            x.requires_grad_()
        out = model(x)
        if model.behind is None:
            out = F.mse_loss(out, y) / microbatches
            losses.append(out.detach())
        else:
            sent.append(dist.isend(out.detach(), model.behind, group=model.pipe))
        kept.append((x, out))
    for x, out in kept:
        gradient = None
        if model.behind is not None:
            gradient = torch.empty_like(out)
            dist.recv(gradient, model.behind, group=model.pipe)
        out.backward(gradient)
        if model.before is not None:
            sent.append(dist.isend(x.grad, model.before, group=model.pipe))
    for work in sent:
        work.wait()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=model.replicas)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": torch.stack(losses).sum()} if losses else {}


def definition(
    stages: int = 2,
    dp: int = 2,
    microbatches: int = 8,
    blocks: int = 4,
    dim: int = 1024,
    hidden: int = 4096,
    rows: int = 512,
) -> Definition:
    batch = Batch(shape=(rows, dim), shard={"dp": 0})
    return Definition(
        name="pipeline-handwritten",
        mesh={"pp": stages, "dp": dp},
        build=lambda: build(blocks, dim, hidden),
        parallelize=Stage,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train_step,
        parallel_step=functools.partial(stage_step, microbatches=microbatches),
        batch={"x": batch, "y": batch},
        mean_over={"loss": ("dp",)},
    )
