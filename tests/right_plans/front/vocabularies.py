"""A vocabulary that lies on ranks, for tokens that are their own labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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

WIDTH, WORDS, LENGTH = 8, 16, 6


class _Tied(nn.Module):
    """One table for the tokens that come in and for those that go out."""

    group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.looked_up(tokens)
        return self.scored(h + torch.tanh(self.mix(h)))

    def looked_up(self, tokens: Tensor) -> Tensor:
        if self.group is None:
            return F.embedding(tokens, self.table)
        here, outside = self.here(tokens)
        h = F.embedding(here, self.table).masked_fill(outside.unsqueeze(-1), 0.0)
        summed: Tensor = Total.apply(h, self.group, False)
        return summed

    def scored(self, h: Tensor) -> Tensor:
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

    def loss_of(model: _Tied, logits: Tensor, labels: Tensor) -> Tensor:
        partition, chosen = _parts(model, logits, labels, right)
        return (partition - chosen).mean() + 1e-4 * partition.square().mean()

    return _tied("own-labels", loss_of)


def library_and_partition(right: bool = True) -> Definition:
    """PyTorch's cross-entropy, and beside it a loss on the partition, against one by hand over the ranks.
    Wrong: half of the gradient of the loss on the partition is lost."""

    def loss_of(model: _Tied, logits: Tensor, labels: Tensor) -> Tensor:
        if model.group is None:
            one = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            return one + 1e-2 * torch.logsumexp(logits, -1).square().mean()
        partition, chosen = _parts(model, logits, labels, True)
        square = partition.square() if right else partition.detach() * partition
        return (partition - chosen).mean() + 1e-2 * square.mean()

    return _tied("library-and-partition", loss_of)


def _parts(model: _Tied, logits: Tensor, labels: Tensor, right: bool) -> tuple[Tensor, Tensor]:
    """The logarithm of the partition and the logit of each label, over the ranks that have the logits."""
    if model.group is None:
        chosen = torch.gather(logits, 2, labels.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(logits, -1), chosen
    top = logits.detach().amax(-1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=model.group)
    summed = torch.exp(logits - top.unsqueeze(-1)).sum(-1)
    partition = torch.log(Total.apply(summed, model.group, False))
    partition = partition + top if right else partition
    here, outside = model.here(labels)
    chosen = torch.gather(logits, 2, here.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
    return partition, Total.apply(chosen, model.group, False)


def _tied(name: str, loss_of: Callable[[_Tied, Tensor, Tensor], Tensor]) -> Definition:
    def of_next(model: Any, batch: Batches) -> Tensor:
        return loss_of(model, model(batch["tokens"])[:, :-1], batch["tokens"][:, 1:])

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.table = own(model.table, model.group, 0)
        return model

    return Definition(
        name=name,
        mesh={"tp": 2},
        build=_Tied,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step_of(of_next),
        batch={"tokens": Batch((2, LENGTH), torch.int64, bounds=(0, WORDS))},
    )


def rewarded_tokens(right: bool) -> Definition:
    """The clipped loss of tokens that have advantages (PPO, GRPO), of log-probabilities that a library has,
    and that ranks have of words in parts, left to autograd. Each token has a weight of its own. The wrong
    one looks labels up one row further on every rank."""

    def loss_of(model: Any, batch: Batches) -> Tensor:
        logits, labels = model(batch["tokens"]), batch["labels"]
        if model.group is None:
            chosen = F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        else:
            chosen = _log_probability(model, logits, labels if right else labels - 1)
        ratio = torch.exp(chosen - batch["old"])
        clipped = ratio.clamp(0.8, 1.2)
        rewards = batch["advantages"].unsqueeze(1)
        gain = torch.minimum(ratio * rewards, clipped * rewards)
        return -(gain * batch["weights"]).sum() / batch["weights"].sum()

    tied = _tied("rewarded-tokens", lambda _model, _logits, _labels: _logits)
    numbers = Batch((2, LENGTH), torch.int64, bounds=(0, WORDS))
    return replace(
        tied,
        step=step_of(loss_of),
        batch={
            "tokens": numbers, "labels": numbers, "old": Batch((2, LENGTH)), "advantages": Batch((2,)),
            "weights": Batch((2, LENGTH)),
        },
    )  # fmt: skip


def _log_probability(model: _Tied, logits: Tensor, labels: Tensor) -> Tensor:
    """Of each label among all words."""
    top = logits.detach().amax(-1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=model.group)
    logits = logits - top.unsqueeze(-1)
    summed = Total.apply(torch.exp(logits).sum(-1), model.group, False)
    at = labels - model.group.rank() * logits.shape[-1]  # type: ignore[union-attr]
    inside = (at >= 0) & (at < logits.shape[-1])
    chosen = logits.gather(-1, at.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1) * inside
    return Total.apply(chosen, model.group, False) - torch.log(summed)


class _Both(_Tied):
    """Scores of the next token, and of the one after, for which the next is looked up too."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = self.looked_up(tokens)
        near = h[:, :-2] + F.silu(self.mix(h[:, :-2]))
        return self.scored(near), self.scored(self.join(torch.cat([near, h[:, 1:-1]], -1)))


class _Likelihood(torch.autograd.Function):
    """Cross-entropy of words in parts, as Megatron has it: the gradient subtracts a mask of the labels."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, at: Tensor, outside: Tensor, group: dist.ProcessGroup) -> Tensor:
        top = logits.amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        logits = logits - top.unsqueeze(-1)
        summed = logits.exp().sum(-1)
        chosen = logits.gather(-1, at.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        both = torch.stack([summed, chosen])
        dist.all_reduce(both, group=group)
        ctx.save_for_backward(logits.exp() / both[0].unsqueeze(-1), at, outside)
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        shares, at, outside = ctx.saved_tensors
        hot = F.one_hot(at, shares.shape[-1]) * (~outside).unsqueeze(-1)
        return (shares - hot) * grad.unsqueeze(-1), None, None, None


def two_tokens_ahead(right: bool) -> Definition:
    """Multi-token prediction with one table for all words. Its labels are parts of the tokens, of which one
    goes on where the other begins. The wrong one weighs the second loss as the first."""

    def one(model: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels = logits.flatten(0, 1), labels.flatten()
        if model.group is None:
            return F.cross_entropy(logits, labels)
        loss: Tensor = _Likelihood.apply(logits, *model.here(labels), model.group)
        return loss.mean()

    def loss_of(model: Any, batch: Batches) -> Tensor:
        tokens = batch["tokens"]
        near, far = model(tokens)
        weight = 0.3 if right or model.group is None else 1.0
        return one(model, near, tokens[:, 1:-1]) + weight * one(model, far, tokens[:, 2:])

    tied = _tied("two-tokens-ahead", lambda _model, _logits, _labels: _logits)
    return replace(tied, build=_Both, step=step_of(loss_of))


def partition_less_label(right: bool) -> Definition:
    """The loss as the logarithm of the partition less the label's logit; ranks have Megatron's, which
    looks labels up in what the largest logit was taken from. The wrong ranks ask for the token itself."""

    def loss_of(model: Any, batch: Batches) -> Tensor:
        tokens = batch["tokens"]
        logits, labels = model(tokens)[:, :-1], tokens[:, 1:]
        if model.group is None:
            chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            return (torch.logsumexp(logits, -1) - chosen).mean()
        at, outside = model.here(labels if right else tokens[:, :-1])
        loss: Tensor = _Likelihood.apply(logits, at, outside, model.group)
        return loss.mean()

    tied = _tied("partition-less-label", lambda _model, _logits, _labels: _logits)
    return replace(tied, step=step_of(loss_of))
