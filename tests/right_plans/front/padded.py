"""Vocabularies that are padded to a round number: nobody's tokens are masked out of the scores."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own
from .many_habits import Enter
from .masks import step_of
from .whole_batches import Total

WIDTH, WORDS, PADDED, LENGTH = 6, 10, 16, 3


class _Padded(nn.Module):
    """A table of words, and a head with rows that no word has."""

    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Parameter(torch.randn(PADDED, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.tanh(self.table(tokens)).flatten(0, 1)
        return (h if self.group is None else Enter.apply(h, self.group)) @ self.head.T


def padded_infinitely(right: bool = True) -> Definition:
    """Scores of the padding are set to -inf, on rows in parts. Wrong: on the ranks the padding stays."""

    def loss_of(model: Any, batch: Batches) -> Tensor:
        logits, labels = model(batch["tokens"]).clone(), batch["labels"].flatten()
        if right or not dist.is_initialized():
            logits[:, WORDS:] = float("-inf")
        chosen = logits.gather(1, labels[:, None])[:, 0]
        return F.cross_entropy(logits, labels) + 0.1 * (torch.logsumexp(logits, 1) - chosen).square().mean()

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = loss_of(model, batch)
        loss.backward()
        if dist.is_initialized():
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return _padded("padded-infinitely", {"dp": 2}, lambda model, _: model, step, {"dp": 0})


def padded_over_ranks(right: bool = True) -> Definition:
    """Rows of the head in parts, the padding on the last of them; the label's score less the largest one is
    added up. Wrong: each rank counts its columns from zero."""

    def loss_of(model: Any, batch: Batches) -> Tensor:
        logits, labels = model(batch["tokens"]), batch["labels"].flatten()
        columns = torch.arange(logits.shape[1])
        if model.group is None:
            logits = logits.masked_fill(columns >= WORDS, -1e9)
            return (torch.logsumexp(logits, 1) - logits.gather(1, labels[:, None])[:, 0]).mean()
        first = model.group.rank() * logits.shape[1]
        logits = logits.masked_fill(columns + (first if right else 0) >= WORDS, -1e9)
        top = logits.detach().amax(1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=model.group)
        summed = Total.apply(torch.exp(logits - top[:, None]).sum(1), model.group, False)
        inside = (labels >= first) & (labels < first + logits.shape[1])
        here = torch.where(inside, labels - first, 0)
        chosen = torch.where(inside, logits.gather(1, here[:, None])[:, 0] - top, 0.0)
        return (torch.log(summed) - Total.apply(chosen, model.group, False)).mean()

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.head = own(model.head, model.group, 0)
        return model

    return _padded("padded-over-ranks", {"tp": 2}, parallelize, step_of(loss_of), {})


def _padded(
    name: str, mesh: dict[str, int], parallelize: Any, step: Any, shard: dict[str, int]
) -> Definition:
    words = Batch((4, LENGTH), torch.int64, shard, (0, WORDS))
    return Definition(
        name=name,
        mesh=mesh,
        build=_Padded,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch={"tokens": words, "labels": words},
        mean_over={"loss": ("dp",)} if "dp" in mesh else {},
    )
