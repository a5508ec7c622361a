"""Training on preferences and rewards, and attention with a table of relative places.

Programs like these were written by others without a look at the prover; what was missing for them is here.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches

WORDS, WIDTH, LENGTH = 16, 8, 6


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.head(x + F.gelu(self.inner(self.norm(x))))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy: nn.Module = Writer()
        self.reference = Writer().requires_grad_(False)


def _said(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logs = torch.log_softmax(model(ids)[:, :-1], dim=-1)
    return (torch.gather(logs, 2, ids[:, 1:].unsqueeze(2)).squeeze(2) * mask[:, 1:]).sum(-1)


def preferred(right: bool = True) -> Definition:
    """Chosen and rejected answers stand behind each other. Wrong: both have the mask of the chosen one."""

    def train(
        model: Pair, optimizer: torch.optim.Optimizer, batch: Batches, right: bool
    ) -> dict[str, Tensor]:
        ids = torch.cat([batch["chosen"], batch["rejected"]])
        mask = torch.cat([batch["mask"], batch["other_mask"] if right else batch["mask"]])
        with torch.no_grad():
            before = _said(model.reference, ids, mask)
        gains = _said(model.policy, ids, mask) - before
        better, worse = gains.split(batch["chosen"].shape[0])
        loss = -F.logsigmoid(0.1 * (better - worse)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach(), "right": (better > worse).float().mean()}

    def parallelize(model: Pair, mesh: DeviceMesh) -> nn.Module:
        model.policy = DistributedDataParallel(model.policy, process_group=mesh["dp"].get_group())
        return model

    ids = Batch((4, LENGTH), torch.int64, {"dp": 0}, (0, WORDS))
    mask = Batch((4, LENGTH), shard={"dp": 0})
    return Definition(
        name="preferred",
        mesh={"dp": 2},
        build=Pair,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-4),
        step=lambda model, optimizer, batch: train(model, optimizer, batch, True),
        parallel_step=lambda model, optimizer, batch: train(model, optimizer, batch, right),
        batch={"chosen": ids, "rejected": ids, "mask": mask, "other_mask": mask},
        mean_over={"loss": ("dp",), "right": ("dp",)},
    )


def grouped(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The model as it is, with the group of its ranks."""
    model.group = mesh["dp"].get_group()
    return model


class Windowed(nn.Module):
    """Attention inside of a window: the bias of two places is a row of a table, by how far they are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(5, 2))
        places = torch.arange(3)
        self.register_buffer("apart", places[:, None] - places[None, :] + 2)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 3, 3, 2, 4).permute(2, 0, 3, 1, 4)
        near = q @ k.transpose(-1, -2) / 2 + self.bias[self.apart].permute(2, 0, 1)
        return self.out((near.softmax(-1) @ v).transpose(1, 2).flatten(2))


def windows(right: bool = True) -> Definition:
    """Wrong: the table's gradient stays the rank's own."""

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        group = getattr(model, "group", None)
        for name, p in model.named_parameters() if group is not None else ():
            if right or name != "bias":
                assert p.grad is not None
                dist.all_reduce(p.grad, group=group)
                p.grad.div_(group.size())
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    rows = Batch((4, 3, WIDTH), shard={"dp": 0})
    return Definition(
        name="windows",
        mesh={"dp": 2},
        build=Windowed,
        parallelize=grouped,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train,
        batch={"x": rows, "y": rows},
        mean_over={"loss": ("dp",)},
    )


def rewards_so_far(right: bool = True) -> Definition:
    """What a net says of each step is added up over time. Wrong: gradients are added, not averaged."""

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = (model(batch["x"]).squeeze(-1).cumsum(1) - batch["so_far"]).square().mean()
        loss.backward()
        group = getattr(model, "group", None)
        for p in model.parameters() if group is not None else ():
            assert p.grad is not None
            dist.all_reduce(p.grad, group=group)
            if right:
                p.grad.div_(group.size())
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="rewards-so-far",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)),
        parallelize=grouped,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=train,
        batch={"x": Batch((4, 3, WIDTH), shard={"dp": 0}), "so_far": Batch((4, 3), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )
