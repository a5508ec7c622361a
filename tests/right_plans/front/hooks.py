"""Gradients reduced by hooks while the backward pass goes on, for a stack of blocks with biases.

Written without a look at the prover, and UNKNOWN at first: sums over rows stood in the functions of updates
on the single device, and not on ranks, where they are reduced before.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

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
