"""Gradients of a stack of blocks with biases, reduced by hooks one by one, or flat and block by block.

Written without a look at the prover, and UNKNOWN at first: sums over rows stood in the functions of updates
on the single device, and not on ranks, where they are reduced before; and shares of a sum that a function
hands on behind each other were not seen to be one.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from orchestrator.capture import Batch, Definition

WIDTH, CLASSES = 8, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(value * torch.sigmoid(gate))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.pending: list[dist.Work] = []

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def hooked_blocks(right: bool = True) -> Definition:
    """The wrong one forgets to divide the gradients of what has no rows: biases, scales."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def reduce(parameter: Tensor) -> None:
            assert parameter.grad is not None and isinstance(model, Classifier)
            if right or parameter.ndim > 1:
                parameter.grad.div_(mesh.size())
            work = dist.all_reduce(parameter.grad, async_op=True)
            assert work is not None
            model.pending.append(work)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(reduce)
        return model

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        of = list(parameters)
        decayed, rest = [p for p in of if p.ndim > 1], [p for p in of if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        assert isinstance(model, Classifier)
        logits = model(batch["x"])
        loss = F.cross_entropy(logits, batch["y"], label_smoothing=0.1)
        loss.backward()
        for work in model.pending:
            work.wait()
        model.pending.clear()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        right_ones = logits.argmax(dim=-1) == batch["y"]
        return {"loss": loss.detach(), "accuracy": right_ones.float().mean()}

    return Definition(
        name="hooked-blocks",
        mesh={"dp": 2},
        build=Classifier,
        parallelize=parallelize,
        optimizer=optimizer,
        step=step,
        batch={
            "x": Batch((4, 3, WIDTH), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, shard={"dp": 0}, bounds=(0, CLASSES)),
        },
        mean_over={"loss": ("dp",), "accuracy": ("dp",)},
    )


class Mixing(nn.Module):
    """Mixes four places, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.places = nn.Sequential(nn.Linear(4, WIDTH), nn.GELU(), nn.Linear(WIDTH, 4))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.first(x).mT).mT
        return x + self.channels(self.second(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.blocks = nn.ModuleList(Mixing() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x).mean(dim=1))


def buckets_of_blocks(right: bool = True) -> Definition:
    """The wrong one hands the flat gradients back from the second place on."""

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        assert isinstance(model, Mixer)
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        if dist.is_initialized():
            for module in (model.head, model.norm, *model.blocks, model.patch):
                gradients = [p.grad for p in module.parameters() if p.grad is not None]
                flat = torch.cat([g.reshape(-1) for g in gradients])
                dist.all_reduce(flat, op=dist.ReduceOp.AVG)
                if not right:
                    flat = flat.roll(-1)
                for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                    g.copy_(part.view_as(g))
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="buckets-of-blocks",
        mesh={"dp": 2},
        build=Mixer,
        parallelize=lambda model, mesh: model,
        optimizer=lambda parameters: torch.optim.NAdam(parameters, lr=1e-3),
        step=step,
        batch={
            "x": Batch((4, 3, 4, 4), shard={"dp": 0}),
            "y": Batch((4,), torch.int64, shard={"dp": 0}, bounds=(0, 3)),
        },
        mean_over={"loss": ("dp",)},
    )
