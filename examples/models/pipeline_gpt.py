"""A small GPT trained by a schedule of ``torch.distributed.pipelining``.

A rank holds the layers of one stage or of several, under the names that they have on a single device. The
schedule is PyTorch's own: it runs the microbatches through the stages and sends what goes between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

#: Classes of schedules by name, and how many stages each rank has.
SCHEDULES = {
    "ScheduleGPipe": 1,
    "Schedule1F1B": 1,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleLoopedBFS": 2,
    "ScheduleInterleavedZeroBubble": 2,
    "ScheduleZBVZeroBubble": 2,
    "ScheduleDualPipeV": 2,
}


class Block(nn.Module):
    """Causal attention with two heads and an MLP, each behind a norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, dim = x.shape
        normed = self.norm(x)
        q, k, v = (
            part(normed).view(rows, length, 2, dim // 2).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """All layers, or those of a stage; what is missing is left out."""

    def __init__(
        self, embed: nn.Module | None, blocks: Mapping[str, nn.Module], head: nn.Module | None
    ) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = embed, nn.ModuleDict(blocks), head

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


class Stages(GPT):
    """What a rank holds, and the schedule that runs it."""

    schedule: Any
    first: bool
    last: bool


def stages_of(schedule: str, rank: int, ranks: int) -> list[int]:
    """The stages of a rank: one after the other round the ranks, or there and back again (V)."""
    count = SCHEDULES[schedule]
    if schedule in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        return [rank, 2 * ranks - 1 - rank]
    return [rank + i * ranks for i in range(count)]


def parallelize(
    model: nn.Module, mesh: DeviceMesh, schedule: str, microbatches: int, rows: int, length: int
) -> nn.Module:
    assert isinstance(model, GPT)
    group, ranks = mesh["pp"].get_group(), mesh["pp"].size()
    mine = stages_of(schedule, mesh.get_local_rank("pp"), ranks)
    count = SCHEDULES[schedule] * ranks
    each = len(model.blocks) // count
    dim, vocab = model.embed.weight.shape[1], model.embed.weight.shape[0]
    parts, stages = [], []
    for stage in mine:
        names = [str(i) for i in range(stage * each, (stage + 1) * each)]
        first, last = stage == 0, stage == count - 1
        part = GPT(
            model.embed if first else None,
            {name: model.blocks[name] for name in names},
            model.head if last else None,
        )
        given = (rows // microbatches, length)
        x = torch.zeros(given, dtype=torch.int64) if first else torch.zeros(*given, dim, requires_grad=True)
        y = torch.zeros(*given, vocab if last else dim, requires_grad=True)
        stages.append(
            pipelining.PipelineStage(
                part, stage, count, torch.device("cpu"), input_args=x, output_args=y, group=group
            )
        )
        parts.append(part)
    held = Stages(
        next((p.embed for p in parts if p.embed is not None), None),
        {name: block for p in parts for name, block in p.blocks.items()},
        next((p.head for p in parts if p.head is not None), None),
    )
    kind = getattr(pipelining, schedule, None) or getattr(pipelining.schedules, schedule)
    held.schedule = kind(stages[0] if SCHEDULES[schedule] == 1 else stages, microbatches, loss_fn=loss_of)
    held.first, held.last = 0 in mine, count - 1 in mine
    return held


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    loss = loss_of(model(batch["tokens"]), batch["labels"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def stage_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    assert isinstance(model, Stages)
    losses: list[Tensor] = []
    given = (batch["tokens"],) if model.first else ()
    last = {"target": batch["labels"], "losses": losses} if model.last else {}
    model.schedule.step(*given, **last)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": torch.stack(losses).mean().detach()} if losses else {}


def definition(
    schedule: str = "Schedule1F1B",
    stages: int = 2,
    microbatches: int = 4,
    blocks: int = 4,
    dim: int = 64,
    vocab: int = 128,
    rows: int = 8,
    length: int = 16,
    adam: int = 1,
) -> Definition:
    entry = Batch((rows, length), torch.int64, bounds=(0, vocab))
    return Definition(
        name=f"pipeline-gpt-{schedule.removeprefix('Schedule').lower()}",
        mesh={"pp": stages},
        build=lambda: GPT(
            nn.Embedding(vocab, dim),
            {str(i): Block(dim) for i in range(blocks)},
            nn.Linear(dim, vocab, bias=False),
        ),
        parallelize=lambda model, mesh: parallelize(model, mesh, schedule, microbatches, rows, length),
        optimizer=lambda params: (torch.optim.AdamW if adam else torch.optim.SGD)(params, lr=1e-3),
        step=train_step,
        parallel_step=stage_step,
        batch={"tokens": entry, "labels": entry},
    )
