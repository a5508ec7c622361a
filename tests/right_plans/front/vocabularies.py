"""A vocabulary that lies on ranks, for tokens that are their own labels."""

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
from .whole_batches import Total

WIDTH, WORDS, LENGTH = 8, 16, 6


class _Tied(nn.Module):
    """One table for the tokens that come in and for those that go out."""

    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.group is None:
            h = F.embedding(tokens, self.table)
        else:
            here, outside = self.here(tokens)
            h = F.embedding(here, self.table).masked_fill(outside.unsqueeze(-1), 0.0)
            h = Total.apply(h, self.group, False)
        h = h + torch.tanh(self.mix(h))
        return (h if self.group is None else Enter.apply(h, self.group)) @ self.table.T

    def here(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of this rank's part, and which tokens have none."""
        assert self.group is not None
        rows = self.table.shape[0]
        at = tokens - self.group.rank() * rows
        outside = (at < 0) | (at >= rows)
        return at.masked_fill(outside, 0), outside


def own_labels(right: bool = True) -> Definition:
    """Tied embedding by rows, cross-entropy of the next token and a loss on the partition. Wrong: the largest
    logit is not put back into the logarithm."""

    def train(
        model: _Tied, optimizer: torch.optim.Optimizer, batch: Batches, right: bool
    ) -> dict[str, Tensor]:
        logits, labels = model(batch["tokens"])[:, :-1], batch["tokens"][:, 1:]
        if model.group is None:
            partition = torch.logsumexp(logits, -1)
            chosen = torch.gather(logits, 2, labels.unsqueeze(-1)).squeeze(-1)
        else:
            top = logits.detach().amax(-1)
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=model.group)
            summed = torch.exp(logits - top.unsqueeze(-1)).sum(-1)
            partition = torch.log(Total.apply(summed, model.group, False))
            partition = partition + top if right else partition
            here, outside = model.here(labels)
            chosen = torch.gather(logits, 2, here.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
            chosen = Total.apply(chosen, model.group, False)
        loss = (partition - chosen).mean() + 1e-4 * partition.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.table = own(model.table, model.group, 0)
        return model

    return Definition(
        name="own-labels",
        mesh={"tp": 2},
        build=_Tied,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=lambda model, optimizer, batch: train(model, optimizer, batch, True),
        parallel_step=lambda model, optimizer, batch: train(model, optimizer, batch, right),
        batch={"tokens": Batch((2, LENGTH), torch.int64, bounds=(0, WORDS))},
    )
