"""Losses over a vocabulary or a batch that lies on several ranks, and look-ups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition

from ..breakages.kit import (
    Batches,
    _Pair,
    adamw,
    copy,
    gather,
    gathered,
    own,
    reduce,
    summed,
)
from .ranks import Rank, averaged, data_parallel, grads, regression


class Classifier(nn.Module):
    def __init__(self, classes: int = 6, dim: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, dim)
        self.head = nn.Linear(dim, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


def classify(
    model: nn.Module, optimizer: Any, batch: Batches, loss: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    value = loss(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": value}


def classifier(
    name: str,
    forward: Callable[..., Tensor],
    pieces: Mapping[str, tuple[str, int]],
    step: Any,
    single: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    mesh: Mapping[str, int] | None = None,
    rows: Mapping[str, int] | None = None,
    lowest: int = 0,
) -> Definition:
    tokens = Batch((4, 3), torch.int64, shard=rows or {}, bounds=(0, 6))
    labels = Batch((4, 3), torch.int64, shard=rows or {}, bounds=(lowest, 6))
    return Definition(
        name=name,
        mesh=mesh or {"tp": 2},
        build=Classifier,
        parallelize=lambda m, at: Rank(m, at, forward, pieces),
        optimizer=adamw,
        step=functools.partial(classify, loss=single),
        parallel_step=step,
        batch={"tokens": tokens, "labels": labels},
        layouts={
            n: {pieces[n][0]: pieces[n][1]} if n in pieces else {}
            for n in ("embedding.weight", "head.weight")
        },
    )


def gathered_logits() -> Definition:
    """The logits' pieces are gathered, and every rank has the whole loss."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        group = m.groups["tp"]
        h = copy(torch.tanh(m.embedding(tokens)), group)
        return _Pair.apply(m.head(h), lambda t: gathered(t, group, 2), lambda g: own(g, group, 2).clone())

    step = functools.partial(classify, loss=F.cross_entropy)
    return classifier("gathered-logits", forward, {"head.weight": ("tp", 0)}, step)


def log_sum_exp_of_pieces() -> Definition:
    """The loss as a logarithm of a sum over ranks less the label's logit, without a softmax."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        return m.head(copy(torch.tanh(m.embedding(tokens)), m.groups["tp"]))

    def step(model: Any, optimizer: Any, batch: Batches) -> dict[str, Tensor]:
        group = model.groups["tp"]

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            own_label = labels - group.rank() * logits.shape[1]
            hot = own_label[:, None] == torch.arange(logits.shape[1])
            total = reduce(logits.exp().sum(-1), group)
            picked = reduce((logits * hot).sum(-1), group)
            return (total.log() - picked).mean()

        return classify(model, optimizer, batch, loss)

    def single(logits: Tensor, labels: Tensor) -> Tensor:
        hot = labels[:, None] == torch.arange(logits.shape[1])
        return (logits.exp().sum(-1).log() - (logits * hot).sum(-1)).mean()

    return classifier("logsumexp-of-pieces", forward, {"head.weight": ("tp", 0)}, step, single)


def embedding_by_one_hot() -> Definition:
    """The rows of a table that is cut over ranks, as a product with a one-hot matrix."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        group = m.groups["tp"]
        rows = m.embedding.weight.shape[0]
        hot = (tokens[..., None] - group.rank() * rows) == torch.arange(rows)
        return m.head(torch.tanh(reduce(hot.to(torch.float32) @ m.embedding.weight, group)))

    step = functools.partial(classify, loss=F.cross_entropy)
    return classifier("embedding-one-hot", forward, {"embedding.weight": ("tp", 0)}, step)


def embedding_columns() -> Definition:
    """The table's columns are cut over ranks and gathered behind the look-up."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        group = m.groups["tp"]
        rows = F.embedding(tokens, m.embedding.weight)
        h = _Pair.apply(rows, lambda t: gathered(t, group, 2), lambda g: own(g, group, 2).clone())
        return m.head(torch.tanh(h))

    step = functools.partial(classify, loss=F.cross_entropy)
    return classifier("embedding-columns", forward, {"embedding.weight": ("tp", 1)}, step)


def tokens_counted() -> Definition:
    """A sum over valid tokens, divided by their number on all ranks; the single device takes the mean."""

    def step(model: Any, optimizer: Any, batch: Batches) -> dict[str, Tensor]:
        group = model.groups["dp"]
        logits, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
        count = summed((labels != 0).sum(), group)
        loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=0) / count
        loss.backward()
        for grad in grads(model):
            dist.all_reduce(grad, group=group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": summed(loss, group)}

    def plain(m: Any, tokens: Tensor) -> Tensor:
        return m.head(torch.tanh(m.embedding(tokens)))

    single = functools.partial(F.cross_entropy, ignore_index=0)
    return classifier("tokens-counted", plain, {}, step, single, {"dp": 2}, {"dp": 0})


def tokens_weighted_after() -> Definition:
    """Ranks average over their own tokens; gradients are weighted by each rank's share of them."""

    def step(model: Any, optimizer: Any, batch: Batches) -> dict[str, Tensor]:
        group = model.groups["dp"]
        logits, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        for grad in grads(model):
            grad *= labels.numel() / (group.size() * labels.numel())
            dist.all_reduce(grad, group=group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": summed(loss * labels.numel(), group) / (labels.numel() * group.size())}

    def plain(m: Any, tokens: Tensor) -> Tensor:
        return m.head(torch.tanh(m.embedding(tokens)))

    return classifier("tokens-weighted", plain, {}, step, F.cross_entropy, {"dp": 2}, {"dp": 0})


def smoothed_labels() -> Definition:
    """Label smoothing over a vocabulary that is gathered."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        group = m.groups["tp"]
        h = copy(torch.tanh(m.embedding(tokens)), group)
        return _Pair.apply(m.head(h), lambda t: gathered(t, group, 2), lambda g: own(g, group, 2).clone())

    loss = functools.partial(F.cross_entropy, label_smoothing=0.1)
    return classifier(
        "smoothed-labels", forward, {"head.weight": ("tp", 0)}, functools.partial(classify, loss=loss), loss
    )


def contrastive() -> Definition:
    """Features of all ranks are gathered with their gradients; each rank has its rows of the scores."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 3, bias=False), nn.Linear(5, 3, bias=False)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.a(x) @ self.b(y).T
            return F.cross_entropy(logits, torch.arange(x.shape[0]))

    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        group = m.groups["dp"]
        every = gather(m.b(y), group, 0)
        labels = torch.arange(x.shape[0]) + group.rank() * x.shape[0]
        return F.cross_entropy(m.a(x) @ every.T, labels)

    def step(model: nn.Module, optimizer: Any, batch: Batches) -> dict[str, Tensor]:
        loss = model(batch["x"], batch["y"])
        loss.backward()
        if isinstance(model, Rank):
            with torch.no_grad():
                averaged("dp")(model)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return data_parallel(
        "contrastive", step, step, build=Towers, forward=forward, mean_over={"loss": ("dp",)}
    )


def dense_experts() -> Definition:
    """Every token goes through all experts, weighted by a router; ranks have some experts each."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(5, 4, bias=False)
            self.up, self.down = nn.Parameter(torch.zeros(4, 5, 6)), nn.Parameter(torch.zeros(4, 6, 5))

        def forward(self, x: Tensor) -> Tensor:
            weights = self.router(x).softmax(-1)
            h = torch.relu(torch.einsum("td,edh->teh", x, self.up))
            return torch.einsum("teh,ehd,te->td", h, self.down, weights)

    def forward(m: Any, x: Tensor) -> Tensor:
        group = m.groups["ep"]
        weights = own(copy(m.router(x).softmax(-1), group), group, 1)
        h = torch.relu(torch.einsum("td,edh->teh", copy(x, group), m.up))
        return reduce(torch.einsum("teh,ehd,te->td", h, m.down, weights), group)

    return regression(
        "dense-experts", {"ep": 2}, Mixture, forward, {"up": ("ep", 0), "down": ("ep", 0)}, (4, 5), {}
    )
