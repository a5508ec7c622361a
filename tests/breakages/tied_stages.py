"""A language model in stages, by hand; the first and the last one have the embedding, also the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from .pipelines import COUNT, DIM, MLP, Batches, Losses, Stage, finished, reported

VOCABULARY, LENGTH = 5, 2


class Tied(MLP):
    def __init__(self, embed: nn.Module | None, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__(blocks)
        if embed is not None:
            self.embed = embed

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.embed(x)) @ self.embed.weight.T


class TiedStage(Stage):
    """Both ends hold a copy; ``ends`` is the group of the two."""

    def __init__(self, model: Tied, mesh: DeviceMesh, parts: Sequence[str]) -> None:
        super().__init__(model, mesh, parts)
        if self.first or self.last:
            self.embed = model.embed
        self.ends = self.pipe
        if self.count > 2:
            self.ends = dist.new_group([self.ranks[0], self.ranks[-1]])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if self.first else x
        x = super().forward(x)
        return x @ self.embed.weight.T if self.last else x


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def exchanged(stage: TiedStage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The gradients of both copies are added up, so that both take one step."""
    rows, labels = batch["tokens"].chunk(COUNT), batch["labels"].chunk(COUNT)
    works: list[Any] = []
    losses: Losses = []
    for tokens, y in zip(rows, labels, strict=True):
        hidden = torch.empty(*tokens.shape, DIM)
        x = tokens if stage.first else stage.take(hidden, stage.before).requires_grad_()
        out = stage(x)
        if stage.last:
            out = cross_entropy(out, y) / COUNT
            losses.append(out.detach())
        else:
            works.append(stage.send(out, stage.behind))
        out.backward(None if stage.last else stage.take(hidden, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    if stage.first or stage.last:
        gradient = stage.embed.weight.grad
        if wrong == "the mean of both":
            dist.all_reduce(gradient, op=dist.ReduceOp.AVG, group=stage.ends)
        elif wrong == "the last stage's for both":
            dist.broadcast(gradient, stage.ranks[-1], group=stage.ends)
        elif not wrong.startswith("not exchanged"):
            dist.all_reduce(gradient, group=stage.ends)
    return reported(losses)
