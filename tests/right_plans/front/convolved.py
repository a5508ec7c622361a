"""Causal convolutions along a sequence in parts: the tokens before a part come from the rank before."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

KERNEL, WIDTH = 4, 6


def _passed(x: Tensor, group: dist.ProcessGroup, step: int) -> Tensor:
    """What the rank ``step`` before this one hands on; zeros where there is none."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    got = torch.zeros(x.shape, dtype=x.dtype)
    ops = []
    if 0 <= rank + step < size:
        ops.append(dist.P2POp(dist.isend, x.contiguous(), dist.get_global_rank(group, rank + step), group))
    if 0 <= rank - step < size:
        ops.append(dist.P2POp(dist.irecv, got, dist.get_global_rank(group, rank - step), group))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


class _Before(torch.autograd.Function):
    """The last tokens of the part before; their gradients go back there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _passed(x, group, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _passed(grad, ctx.group, -1), None


class _Mixer(nn.Module):
    """A block with a short convolution, channel by channel, as state space models have it."""

    group: dist.ProcessGroup | None = None
    right = True

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 2 * WIDTH), nn.Linear(WIDTH, 5)
        self.conv = nn.Conv1d(WIDTH, WIDTH, KERNEL, groups=WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = self.inner(x).chunk(2, -1)
        last = h[:, 1 - KERNEL :]
        if self.group is None or not self.right:
            before = torch.zeros_like(last)
        else:
            before = _Before.apply(last, self.group)
        whole = torch.cat((before, h), 1).transpose(1, 2)
        return self.outer(F.silu(self.conv(whole).transpose(1, 2)) * F.silu(gate))  # type: ignore[no-any-return]


def _train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = (model(batch["x"]) - batch["y"]).square().mean()
    loss.backward()
    if model.group is not None:
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=model.group)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def causal_convolution(right: bool = True) -> Definition:
    """Wrong: each part begins as if it were the first."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.right = mesh["cp"].get_group(), right
        return model  # type: ignore[no-any-return]

    part = Batch((2, 12, 5), shard={"cp": 1})
    return Definition(
        name="causal-convolution",
        mesh={"cp": 2},
        build=_Mixer,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step=_train,
        batch={"x": part, "y": part},
        mean_over={"loss": ("cp",)},
    )
