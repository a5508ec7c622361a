"""Parallel layers in Megatron's way: autograd functions, vocabulary in pieces, distributed optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition

Batches = Mapping[str, Tensor]
VOCABULARY = 12


# --- mappings ----------------------------------------------------------------------------------------------


class _CopyToModelParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _ReduceFromModelParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _gather_first(x: Tensor, group: Any) -> Tensor:
    out = torch.empty((x.size(0) * group.size(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def _scatter_first(x: Tensor, group: Any) -> Tensor:
    out = torch.empty((x.size(0) // group.size(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


class _GatherFromSequenceParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gather_first(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _scatter_first(grad, ctx.group), None


class _ReduceScatterToSequenceParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _scatter_first(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather_first(grad, ctx.group), None


class _ScatterToSequenceParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.chunk(group.size(), dim=0)[group.rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather_first(grad, ctx.group), None


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """Of logits in pieces: the maximum, the predicted logit and the sum of exponentials over ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: Any) -> Tensor:
        logits_max = torch.max(logits, dim=-1)[0]
        dist.all_reduce(logits_max, op=dist.ReduceOp.MAX, group=group)
        logits = logits - logits_max.unsqueeze(dim=-1)
        size = logits.size(-1)
        start = group.rank() * size
        target_mask = (target < start) | (target >= start + size)
        masked_target = target.clone() - start
        masked_target[target_mask] = 0
        logits_2d, masked_target_1d = logits.view(-1, size), masked_target.view(-1)
        arange_1d = torch.arange(start=0, end=logits_2d.size(0), device=logits.device)
        predicted = logits_2d[arange_1d, masked_target_1d].clone().contiguous().view_as(target)
        predicted[target_mask] = 0.0
        dist.all_reduce(predicted, group=group)
        exp_logits = torch.exp(logits)
        sum_exp_logits = exp_logits.sum(dim=-1)
        dist.all_reduce(sum_exp_logits, group=group)
        loss = torch.log(sum_exp_logits) - predicted
        exp_logits = exp_logits / sum_exp_logits.unsqueeze(dim=-1)
        ctx.save_for_backward(exp_logits, target_mask, masked_target_1d)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        softmax, target_mask, masked_target_1d = ctx.saved_tensors
        grad_input = softmax.clone()
        grad_2d = grad_input.view(-1, softmax.size(-1))
        arange_1d = torch.arange(start=0, end=grad_2d.size(0), device=grad_2d.device)
        update = 1.0 - target_mask.view(-1).float()
        grad_2d[arange_1d, masked_target_1d] -= update
        grad_input.mul_(grad_output.unsqueeze(dim=-1))
        return grad_input, None, None


def _piece(w: Tensor, group: Any, dim: int) -> nn.Parameter:
    return nn.Parameter(w.detach().chunk(group.size(), dim)[group.rank()].clone())


class ColumnParallelLinear(nn.Module):
    def __init__(self, whole: nn.Linear, group: Any, *, sequence: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        self.weight = _piece(whole.weight, group, 0)
        self.bias = _piece(whole.bias, group, 0) if whole.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        enter = _GatherFromSequenceParallelRegion if self.sequence else _CopyToModelParallelRegion
        return F.linear(enter.apply(x, self.group), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, whole: nn.Linear, group: Any, *, sequence: bool = False) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        self.weight = _piece(whole.weight, group, 1)
        self.bias = nn.Parameter(whole.bias.detach().clone()) if whole.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        leave = _ReduceScatterToSequenceParallelRegion if self.sequence else _ReduceFromModelParallelRegion
        out = leave.apply(F.linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias


class VocabParallelEmbedding(nn.Module):
    def __init__(self, whole: nn.Embedding, group: Any, *, masked: bool = True) -> None:
        super().__init__()
        self.group, self.masked = group, masked
        self.weight = _piece(whole.weight, group, 0)

    def forward(self, tokens: Tensor) -> Tensor:
        start = self.group.rank() * self.weight.size(0)
        mask = (tokens < start) | (tokens >= start + self.weight.size(0))
        masked = tokens.clone() - start
        masked[mask] = 0
        out = F.embedding(masked, self.weight)
        if self.masked:
            out[mask, :] = 0.0
        return _ReduceFromModelParallelRegion.apply(out, self.group)


# --- the model ---------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.dim = dim // heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.dense = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Sequence first, as Megatron has it."""
        q, k, v = (w(x) for w in (self.query, self.key, self.value))
        s, b, _ = q.shape
        q, k, v = (t.view(s, b * (t.size(-1) // self.dim), self.dim).transpose(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(
            torch.empty(q.size(0), s, s), q, k.transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(self.dim)
        )
        mask = torch.triu(torch.ones(s, s, dtype=torch.bool), diagonal=1)
        probs = scores.masked_fill(mask, -10000.0).softmax(-1)
        return self.dense(torch.bmm(probs, v).transpose(0, 1).contiguous().view(s, b, -1))


class TransformerLayer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.down(F.gelu(self.up(self.post_norm(x))))


class GPT(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.layer = TransformerLayer(dim, heads)
        self.final_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, VOCABULARY, bias=False)
        self.entropy: Any = None
        self.scatter: Any = None

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        h = self.embedding(tokens).transpose(0, 1).contiguous()
        if self.scatter is not None:
            h = self.scatter(h)
        logits = self.output(self.final_norm(self.layer(h)))
        labels = labels.transpose(0, 1).contiguous()
        if self.entropy is None:
            losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        else:
            losses = self.entropy(logits, labels).flatten()
        return losses.mean()


def _megatron(model: Any, group: Any, *, sequence: bool, masked: bool = True) -> Any:
    model.embedding = VocabParallelEmbedding(model.embedding, group, masked=masked)
    attention, layer = model.layer.attention, model.layer
    for name in ("query", "key", "value"):
        setattr(attention, name, ColumnParallelLinear(getattr(attention, name), group, sequence=sequence))
    attention.dense = RowParallelLinear(attention.dense, group, sequence=sequence)
    layer.up = ColumnParallelLinear(layer.up, group, sequence=sequence)
    layer.down = RowParallelLinear(layer.down, group, sequence=sequence)
    model.output = ColumnParallelLinear(model.output, group, sequence=sequence)
    model.entropy = lambda logits, labels: _VocabParallelCrossEntropy.apply(logits, labels, group)
    if sequence:
        model.scatter = lambda h: _ScatterToSequenceParallelRegion.apply(h, group)
    return model


def _single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
    loss = model(batch["tokens"], batch["labels"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def _tokens(shard: Mapping[str, int] | None = None) -> dict[str, Batch]:
    return {
        n: Batch((4, 4), torch.int64, shard=shard or {}, bounds=(0, VOCABULARY)) for n in ("tokens", "labels")
    }


def megatron_gpt(right: bool = True) -> Definition:
    """TP 2. Wrong: rows of foreign tokens are not zeroed before the sum."""
    return Definition(
        name="megatron-gpt",
        mesh={"tp": 2},
        build=GPT,
        parallelize=lambda m, mesh: _megatron(m, mesh["tp"].get_group(), sequence=False, masked=right),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        step=_single,
        batch=_tokens(),
    )


def megatron_gpt_sequence(right: bool = True) -> Definition:
    """TP 2 with sequence parallelism: gradients of norms and of row-parallel biases are added over ranks.

    Wrong: those of the biases are forgotten.
    """

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = model(batch["tokens"], batch["labels"])
        loss.backward()
        layer = model.layer
        replicated = [*layer.input_norm.parameters(), *layer.post_norm.parameters()]
        replicated += model.final_norm.parameters()
        if right:
            replicated += [layer.attention.dense.bias, layer.down.bias]
        grads = [p.grad for p in replicated]
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat, group=layer.up.group)
        for grad, summed in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads), strict=True):
            grad.copy_(summed)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Definition(
        name="megatron-gpt-sp",
        mesh={"tp": 2},
        build=GPT,
        parallelize=lambda m, mesh: _megatron(m, mesh["tp"].get_group(), sequence=True),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        step=_single,
        parallel_step=step,
        batch=_tokens(),
    )
