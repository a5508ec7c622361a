"""Part 5: an embedding and a cross-entropy whose vocabulary is cut over ``tp``, as Megatron has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .kit import Batches, adamw, copy, part, reduce, shard, summed

VOCABULARY, DIM = 10, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.hidden = nn.Linear(DIM, DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(F.silu(self.hidden(self.embedding(tokens))))


class CrossEntropy(torch.autograd.Function):
    """The mean over all tokens of minus the logarithm of the label's share; every rank has some logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, group: ProcessGroup, offset: int, mistake: str
    ) -> Tensor:
        largest = logits.amax(-1, keepdim=True)
        if mistake != "maximum not reduced":
            largest = summed(largest, group, dist.ReduceOp.MAX)
        shifted = logits - largest
        total = shifted.exp().sum(-1, keepdim=True)
        if mistake != "sum of exponentials not reduced":
            total = summed(total, group)
        logs = shifted - total.log()
        own = labels - offset
        inside = (own >= 0) & (own < logits.shape[1])
        picked = logs.gather(1, torch.where(inside, own, 0)[:, None])[:, 0]
        if mistake != "foreign labels not masked":
            picked = torch.where(inside, picked, 0.0)
        if mistake != "label's logit not reduced":
            picked = summed(picked, group)
        row = labels if mistake == "offset forgotten in the backward pass" else own
        hot = torch.arange(logits.shape[1]) == row[:, None]
        ctx.save_for_backward(logs, hot)
        return -picked.sum() / labels.numel()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        logs, hot = ctx.saved_tensors
        share = logs.exp()
        return (share - hot.to(share.dtype)) * (grad / logs.shape[0]), None, None, None, None


class Lookup(torch.autograd.Function):
    """Rows of this rank's part of the table, zero for foreign tokens; backward a product with a one-hot."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor, offset: int, mistake: str) -> Tensor:
        own = tokens - offset
        inside = (own >= 0) & (own < table.shape[0])
        kept = torch.where(inside, own, 0)
        rows = F.embedding(kept, table)
        ctx.save_for_backward(kept if mistake == "gradient of foreign tokens in row 0" else own)
        ctx.rows = table.shape[0]
        return rows if mistake == "foreign tokens not masked" else torch.where(inside[..., None], rows, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (own,) = ctx.saved_tensors
        hot = own.flatten()[:, None] == torch.arange(ctx.rows)
        return hot.to(grad.dtype).T @ grad.flatten(0, 1), None, None, None


class Parallel(nn.Module):
    def __init__(self, model: nn.Module, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        assert isinstance(model, Model)
        self.group, self.mistake = mesh["tp"].get_group(), mistake
        self.embedding, self.hidden, self.output = model.embedding, model.hidden, model.output
        shard(self.embedding, "weight", 0, self.group)
        shard(self.output, "weight", 0, self.group)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        rows, rank = VOCABULARY // self.group.size(), self.group.rank()
        first = rank * rows
        if self.mistake == "offset of the vocabulary off by one":
            first = rank * rows + 1
        if self.mistake == "offset of the neighbouring rank":
            first = (rank + 1) * rows
        found = self.lookup(tokens, first)
        h = found if self.mistake == "rows not reduced" else reduce(found, self.group)
        h = F.silu(self.hidden(h))
        h = h if self.mistake == "gradient of the output's input not reduced" else copy(h, self.group)
        logits = F.linear(h, self.output.weight).flatten(0, 1)
        return CrossEntropy.apply(logits, labels.flatten(), self.group, rank * rows, self.mistake)

    def lookup(self, tokens: Tensor, first: int) -> Tensor:
        rows: Tensor = Lookup.apply(self.embedding.weight, tokens, first, self.mistake)
        return rows


class Filled(Parallel):
    """The lookup as Megatron-LM has it: foreign tokens stand in row 0, what they find is overwritten by 0."""

    def lookup(self, tokens: Tensor, first: int) -> Tensor:
        table = self.embedding.weight
        foreign = (tokens < first) | (tokens >= first + table.shape[0])
        if self.mistake == "first row of a part taken for foreign":
            foreign = (tokens <= first) | (tokens >= first + table.shape[0])
        own = tokens.clone() - first
        own[foreign] = 0
        rows = F.embedding(own, table)
        if self.mistake == "foreign rows not overwritten":
            return rows
        filled = rows.clone()
        filled[foreign, :] = 0.0
        return rows + (filled - rows).detach() if self.mistake == "overwritten without autograd" else filled


def single_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = model(batch["tokens"], batch["labels"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def define(mistake: str, parallel: Callable[..., nn.Module] = Parallel) -> Definition:
    rows = Batch(shape=(2, 3), dtype=torch.int64, bounds=(0, VOCABULARY))
    return Definition(
        name="breakages-vocabulary",
        mesh={"tp": 2},
        build=Model,
        parallelize=functools.partial(parallel, mistake=mistake),
        optimizer=adamw,
        step=single_step,
        parallel_step=step,
        batch={"tokens": rows, "labels": rows},
        layouts={
            "embedding.weight": {"tp": 0},
            "hidden.weight": {},
            "hidden.bias": {},
            "output.weight": {"tp": 0},
        },
    )


PART = part(
    "vocabulary-parallel embedding and cross-entropy",
    {
        "tp 2": (
            define,
            {
                "offset of the vocabulary off by one": "loss",
                "offset of the neighbouring rank": "loss",
                "foreign tokens not masked": "loss",
                "rows not reduced": "loss",
                "maximum not reduced": "loss",
                "sum of exponentials not reduced": "loss",
                "label's logit not reduced": "loss",
                "foreign labels not masked": "loss",
                "gradient of foreign tokens in row 0": "params.embedding.weight",
                "gradient of the output's input not reduced": "params.embedding.weight",
                "offset forgotten in the backward pass": "params.embedding.weight",
            },
        ),
        "tp 2, rows overwritten": (
            functools.partial(define, parallel=Filled),
            {
                "first row of a part taken for foreign": "loss",
                "foreign rows not overwritten": "loss",
                "overwritten without autograd": "params.embedding.weight",
            },
        ),
    },
)
