"""Key heads that pairs of ranks share, rows added along edges, smoothed labels, pictures put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, _Enter, _Leave, own, pair


def _averaged(model: nn.Module, right: bool) -> None:
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG if right else dist.ReduceOp.SUM)


def _averaging(loss_of: Callable[[Any, Batches], Tensor], right: bool) -> Callable[..., dict[str, Tensor]]:
    """A step whose ranks average gradients, or add them up."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = loss_of(model, batch)
        loss.backward()
        if dist.is_initialized():
            _averaged(model, right)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return step


def _unchanged(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return model


# --- fewer key heads than ranks: two ranks have the same one ---------------------------------------------


class SharedKeys(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 4, keys: int = 2) -> None:
        super().__init__()
        self.heads, self.keys, self.group, self.pair = heads, keys, None, None
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, dim * keys // heads, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        x = x if self.group is None else _Enter.apply(x, self.group)
        q, k, v = (f(x).view(b, s, -1, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.o(y.transpose(1, 2).reshape(b, s, -1))
        return y if self.group is None else _Leave.apply(y, self.group)


def shared_keys(right: bool = True) -> Definition:
    """TP 4. Wrong: gradients of the shared key head are not added up over the two ranks that have it."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        if model.pair is not None:
            for layer in (model.k, model.v) if right else (model.v,):
                dist.all_reduce(layer.weight.grad, group=model.pair)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        rank = model.group.rank()
        model.pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        model.q.weight, model.o.weight = (
            own(model.q.weight, model.group, 0),
            own(model.o.weight, model.group, 1),
        )
        for layer in (model.k, model.v):
            layer.weight = nn.Parameter(layer.weight.detach().chunk(2)[rank // 2].clone())
        model.heads = model.keys = 1
        return model

    return Definition(
        name="shared-keys",
        mesh={"tp": 4},
        build=SharedKeys,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=step,
        batch=pair((2, 3, 8)),
    )


# --- messages along the edges of graphs ------------------------------------------------------------------


class Graphs(nn.Module):
    """Each graph has its own edges."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        there = (t[..., None].expand(-1, -1, x.shape[-1]) for t in (source, target))
        source, target = there
        for layer in self.layers:
            sent = layer(x).gather(1, source)
            x = x + torch.relu(torch.zeros_like(x).scatter_add(1, target, sent))
        return x.mean(1)


def messages_along_edges(right: bool = True) -> Definition:
    """DP 2. Wrong: gradients are added up, not averaged."""

    def loss(model: Any, batch: Batches) -> Tensor:
        return F.l1_loss(model(batch["x"], batch["source"], batch["target"]), batch["y"])

    edges = Batch((4, 5), torch.int64, {"dp": 0}, (0, 3))
    return Definition(
        name="messages-along-edges",
        mesh={"dp": 2},
        build=Graphs,
        parallelize=_unchanged,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=_averaging(loss, right),
        batch={**pair((4, 3, 4), (4, 4), dp=0), "source": edges, "target": edges},
        mean_over={"loss": ("dp",)},
    )


# --- Megatron's smoothed labels --------------------------------------------------------------------------

WORDS, SMOOTH = 16, 0.15


class _Smoothed(torch.autograd.Function):
    """Megatron's cross-entropy over a vocabulary in parts; the mean of log-probabilities is of all parts."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float, group: Any) -> Tensor:
        most = logits.max(dim=-1)[0]
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        logits = logits - most.unsqueeze(-1)
        columns = logits.shape[-1]
        first = group.rank() * columns
        mask = (target < first) | (target >= first + columns)
        local = target.clone() - first
        local[mask] = 0
        flat, at = logits.view(-1, columns), local.view(-1)
        rows = torch.arange(flat.shape[0])
        predicted = flat[rows, at].clone().contiguous().view_as(target)
        predicted[mask] = 0.0
        dist.all_reduce(predicted, group=group)
        exped = torch.exp(logits)
        total = exped.sum(-1)
        dist.all_reduce(total, group=group)
        loss = torch.log(total) - predicted
        exped = exped / total.unsqueeze(-1)
        words = columns * group.size()
        logs = torch.log(exped).sum(-1)
        dist.all_reduce(logs, group=group)
        loss = (1.0 - smoothing) * loss - smoothing * logs / words
        ctx.smoothing, ctx.words = smoothing, words
        ctx.save_for_backward(exped, mask, at)
        return loss

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, mask, at = ctx.saved_tensors
        grad = softmax.clone()
        flat = grad.view(-1, softmax.shape[-1])
        rows = torch.arange(flat.shape[0])
        flat[rows, at] -= (1.0 - ctx.smoothing) * (1.0 - mask.view(-1).float())
        flat -= ctx.smoothing / ctx.words
        return grad.mul_(of_loss.unsqueeze(-1)), None, None, None


class Speaker(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, dim), nn.Linear(dim, dim)
        self.head = nn.Linear(dim, WORDS, bias=False)

    def hidden(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.mix(self.embed(ids)))


def smoothed_as_megatron(right: bool = True) -> Definition:
    """TP 2 of the vocabulary, DP 2. Wrong: the smoothing is not rescaled for the words beside the label."""
    smoothing = SMOOTH * WORDS / (WORDS - 1)

    def single(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logs = F.log_softmax(model.head(model.hidden(batch["ids"])).flatten(0, 1), -1)
        loss = F.nll_loss(logs, batch["labels"].flatten())
        loss = (1.0 - smoothing) * loss - smoothing * logs.mean(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits = model.head(_Enter.apply(model.hidden(batch["ids"]), model.tp))
        loss = _Smoothed.apply(logits, batch["labels"], smoothing if right else SMOOTH, model.tp).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=model.dp)
            p.grad /= model.dp.size()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.tp, model.dp = mesh["tp"].get_group(), mesh["dp"].get_group()
        model.head.weight = own(model.head.weight, model.tp, 0)
        return model

    ids = Batch((4, 5), torch.int64, {"dp": 0}, (0, WORDS))
    return Definition(
        name="smoothed-as-megatron",
        mesh={"dp": 2, "tp": 2},
        build=Speaker,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=single,
        parallel_step=parallel,
        batch={"ids": ids, "labels": ids},
        mean_over={"loss": ("dp",)},
    )


# --- what a U-Net puts beside each other -----------------------------------------------------------------


class Down(nn.Module):
    """Once down and up again; weights of the last convolution are normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.leave = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 2, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        fine = F.silu(self.norm(self.enter(x)))
        coarse = F.interpolate(F.silu(self.down(fine)), scale_factor=2, mode="nearest")
        return self.leave(torch.cat([fine, coarse], 1))


def down_and_up(right: bool = True) -> Definition:
    """DP 2. Wrong: gradients are added up, not averaged."""

    def loss(model: Any, batch: Batches) -> Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"])

    return Definition(
        name="down-and-up",
        mesh={"dp": 2},
        build=Down,
        parallelize=_unchanged,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=_averaging(loss, right),
        batch=pair((2, 2, 4, 4), dp=0),
        mean_over={"loss": ("dp",)},
    )
