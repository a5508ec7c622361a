"""A layer of experts in GShard's style: two choices, and room for some tokens at each expert.

Written without a look at the prover, from what such code looks like in the open.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own
from .fields import _Exchange

EXPERTS, SIZE, HIDDEN, TOKENS, ROOM, RANKS = 4, 8, 16, 6, 4, 2

# --- two choices, each with room for some tokens -----------------------------------------------------------


def top2_gating(logits: Tensor, room: int, shifted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """[groups, tokens, experts, room]: weights of both choices, where they go; and the balancing loss.

    Second choices come behind the first ones of their group.
    """
    gates = logits.softmax(-1)
    first = F.one_hot(gates.argmax(-1), EXPERTS)
    without = gates.masked_fill(first.bool(), float("-inf"))
    second = F.one_hot(without.argmax(-1), EXPERTS)

    place1 = torch.cumsum(first, dim=1) - 1
    place2 = torch.cumsum(second, dim=1) - 1
    if shifted:
        place2 = place2 + first.sum(dim=1, keepdim=True)
    balance = (gates.mean(1) * first.float().mean(1)).mean() * EXPERTS * EXPERTS

    first = first * (place1 < room)
    second = second * (place2 < room)
    at1, at2 = (place1 * first).sum(-1), (place2 * second).sum(-1)
    gates1, gates2 = (gates * first).sum(-1), (gates * second).sum(-1)
    total = (gates1 + gates2).clamp(min=torch.finfo(gates.dtype).eps)
    combine1 = torch.einsum("gs,gse,gsc->gsec", gates1 / total, first.float(), F.one_hot(at1, room).float())
    combine2 = torch.einsum("gs,gse,gsc->gsec", gates2 / total, second.float(), F.one_hot(at2, room).float())
    combine = combine1 + combine2
    return combine, combine.bool(), balance


class GShard(nn.Module):
    group: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(SIZE, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, SIZE, HIDDEN))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, SIZE))

    def forward(self, x: Tensor, shifted: bool) -> tuple[Tensor, Tensor]:
        combine, dispatch, balance = top2_gating(self.gate(x), ROOM, shifted)
        y = torch.einsum("gsec,gsd->egcd", dispatch.to(x.dtype), x)
        mine = EXPERTS // RANKS
        if self.group is not None:
            y = _Exchange.apply(y, self.group).reshape(RANKS, mine, -1, ROOM, SIZE)
            y = y.transpose(0, 1).reshape(mine, -1, ROOM, SIZE)
        y = torch.einsum("egcf,efd->egcd", F.relu(torch.einsum("egcd,edf->egcf", y, self.w1)), self.w2)
        if self.group is not None:
            y = y.reshape(mine, RANKS, -1, ROOM, SIZE).transpose(0, 1).reshape(EXPERTS, -1, ROOM, SIZE)
            y = _Exchange.apply(y, self.group)
        return x + torch.einsum("gsec,egcd->gsd", combine, y), balance


def gshard_two_choices(right: bool = True) -> Definition:
    """Wrong: on ranks second choices take the places of first ones."""

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        y, balance = model(batch["x"], right or model.group is None)
        loss = F.mse_loss(y, batch["y"]) + 0.01 * balance
        loss.backward()
        for name, p in model.named_parameters() if model.group is not None else ():
            if name not in ("w1", "w2"):
                dist.all_reduce(p.grad, group=model.group)
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
        name="gshard-two-choices",
        mesh={"ep": RANKS},
        build=GShard,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=train,
        batch={"x": rows, "y": rows},
        mean_over={"loss": ("ep",)},
    )
