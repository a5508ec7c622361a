"""Losses over tokens as they are counted by hand: weights, smoothing, teachers, tied words, microbatches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own
from .sequences import _F, _G

# --- a vocabulary in pieces, weights of tokens -------------------------------------------------------------


class _CrossEntropy(torch.autograd.Function):
    """Smoothed losses of tokens, and the logarithm of their normaliser; logits are a rank's columns."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smooth: float, group: Any) -> tuple[Tensor, Tensor]:
        columns, count = logits.shape[-1], logits.shape[-1] * group.size()
        most = logits.max(dim=-1).values
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - most.unsqueeze(-1)
        first = group.rank() * columns
        outside = (labels < first) | (labels >= first + columns)
        local = (labels - first).masked_fill(outside, 0)
        chosen = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        exped = shifted.exp()
        sums = torch.stack([exped.sum(-1), chosen, shifted.sum(-1)])
        dist.all_reduce(sums, group=group)
        total, chosen, everything = sums.unbind(0)
        log_z = total.log()
        ctx.save_for_backward(exped / total.unsqueeze(-1), local, outside)
        ctx.smooth, ctx.count = smooth, count
        loss = log_z - (1 - smooth) * chosen
        if smooth:
            loss = loss - smooth / count * everything
        return loss, log_z + most

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, of_log_z: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, local, outside = ctx.saved_tensors
        hit = torch.zeros_like(softmax).scatter_(-1, local.unsqueeze(-1), 1.0)
        hit = hit.masked_fill(outside.unsqueeze(-1), 0.0)
        grad = softmax - (1 - ctx.smooth) * hit
        if ctx.smooth:
            grad = grad - ctx.smooth / ctx.count
        return grad * of_loss.unsqueeze(-1) + softmax * of_log_z.unsqueeze(-1), None, None, None


class Reader(nn.Module):
    def __init__(self, words: int = 16, dim: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, words, bias=False)

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.norm(x + self.mlp(x))


def _words(rows: int = 4, **more: Batch) -> dict[str, Batch]:
    return {
        "ids": Batch((rows, 5), torch.int64, {"dp": 0}, (0, 16)),
        "labels": Batch((rows, 5), torch.int64, {"dp": 0}, (0, 16)),
        **more,
    }


def weighted_tokens(right: bool = True, smooth: float = 0.0) -> Definition:
    """TP 2 of the vocabulary, DP 2. Wrong: the weights are added up on each replica for itself."""

    def single(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits = model.head(model.hidden(batch["ids"]))
        flat, weights = logits.flatten(0, 1), batch["weights"].flatten()
        losses = F.cross_entropy(flat, batch["labels"].flatten(), reduction="none", label_smoothing=smooth)
        z = torch.logsumexp(flat, -1).square()
        loss = ((losses + 1e-3 * z) * weights).sum() / weights.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        x = _F.apply(model.hidden(batch["ids"]), model.tp)
        losses, log_z = _CrossEntropy.apply(model.head(x), batch["labels"], smooth, model.tp)
        total = batch["weights"].sum()
        if right:
            dist.all_reduce(total, group=model.dp)
        else:
            total = total * 2
        loss = ((losses + 1e-3 * log_z.square()) * batch["weights"]).sum() / total
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=model.dp)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss, group=model.dp)
        return {"loss": loss}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.tp, model.dp = mesh["tp"].get_group(), mesh["dp"].get_group()
        model.head.weight = own(model.head.weight, model.tp, 0)
        return model

    return Definition(
        name="weighted-tokens",
        mesh={"dp": 2, "tp": 2},
        build=Reader,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=single,
        parallel_step=parallel,
        batch=_words(weights=Batch((4, 5), shard={"dp": 0})),
    )


def smoothed_tokens(right: bool = True) -> Definition:
    """The same with smoothed labels."""
    return weighted_tokens(right, smooth=0.1)


# --- tied words --------------------------------------------------------------------------------------------


class _GatherColumns(torch.autograd.Function):
    """All columns; every rank has the same gradient of them, and takes its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.chunk(ctx.group.size(), -1)[ctx.group.rank()].contiguous(), None


class Tied(nn.Module):
    """Words in and out by one table; positions are learned."""

    def __init__(self, words: int = 12, dim: int = 8, length: int = 5) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.mix = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.group: Any = None
        self.entered = True

    def looked_up(self, ids: Tensor) -> Tensor:
        if self.group is None:
            return self.words(ids)
        rows = self.words.weight.shape[0]
        local = ids - self.group.rank() * rows
        inside = (local >= 0) & (local < rows)
        found = F.embedding(local.clamp(0, rows - 1), self.words.weight) * inside.unsqueeze(-1)
        return _G.apply(found, self.group)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.looked_up(ids) * self.places.weight.shape[1] ** 0.5
        x = x + self.places(torch.arange(ids.shape[1]))
        x = self.norm(x + torch.tanh(self.mix(x)))
        if self.group is None:
            return x @ self.words.weight.T
        x = _F.apply(x, self.group) if self.entered else x
        return _GatherColumns.apply(x @ self.words.weight.T, self.group)


def tied_words(right: bool = True) -> Definition:
    """TP 4. Wrong: gradients of what enters the last product are not added up."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        logits = model(batch["ids"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.entered = mesh["tp"].get_group(), right
        model.words.weight = own(model.words.weight, model.group, 0)
        return model

    ids = Batch((4, 5), torch.int64, {}, (0, 12))
    return Definition(
        name="tied-words",
        mesh={"tp": 4},
        build=Tied,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.9),
        step=step,
        batch={"ids": ids, "labels": ids},
    )


# --- microbatches of unequal counts ------------------------------------------------------------------------


def counted_microbatches(right: bool = True) -> Definition:
    """DDP averages over ranks, so the loss is multiplied by them. Wrong: it is not."""

    def losses(model: nn.Module, batch: Batches, i: int) -> Tensor:
        net = getattr(model, "module", model)
        logits = net(batch["ids"][i]) if net is model else model(batch["ids"][i])
        return F.cross_entropy(
            logits.flatten(0, 1), batch["labels"][i].flatten(), ignore_index=-100, reduction="sum"
        )

    def train(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        spread = isinstance(model, DistributedDataParallel)
        count = (batch["labels"] != -100).sum()
        if spread:
            dist.all_reduce(count)
        factor = dist.get_world_size() if spread and right else 1
        total = torch.zeros(())
        steps = len(batch["ids"])
        for i in range(steps):
            if spread:
                model.require_backward_grad_sync = i == steps - 1
            loss = losses(model, batch, i) / count
            (loss * factor).backward()
            total += loss.detach()
        if spread:
            dist.all_reduce(total)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": total}

    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 12))

    return Definition(
        name="counted-microbatches",
        mesh={"dp": 2},
        build=build,
        parallelize=lambda model, mesh: DistributedDataParallel(model),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=train,
        batch={
            "ids": Batch((3, 4, 5), torch.int64, {"dp": 1}, (0, 12)),
            "labels": Batch((3, 4, 5), torch.int64, {"dp": 1}, (-100, 12)),
        },
    )


# --- a teacher, both with columns on ranks -----------------------------------------------------------------


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: Any) -> Tensor:
        most = logits.amax(-1, keepdim=True)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        total = torch.exp(logits - most).sum(-1, keepdim=True)
        dist.all_reduce(total, group=group)
        out = logits - most - total.log()
        ctx.save_for_backward(out)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        total = grad.sum(-1, keepdim=True)
        dist.all_reduce(total, group=ctx.group)
        return grad - out.exp() * total, None


class School(nn.Module):
    """A frozen teacher and a student; both have a head for all words."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8, bias=False))
        self.student = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 8, bias=False))
        self.teacher.requires_grad_(False)


def taught(right: bool = True) -> Definition:
    """TP 2. Wrong: the gradient is not multiplied by the square of the temperature."""

    def single(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        with torch.no_grad():
            target = F.log_softmax(model.teacher(batch["x"]) / 2.0, -1)
        said = F.log_softmax(model.student(batch["x"]) / 2.0, -1)
        loss = F.kl_div(said, target, log_target=True, reduction="batchmean") * 4.0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        group, x = model.group, batch["x"]
        with torch.no_grad():
            target = _LogSoftmax.apply(model.teacher(x) / 2.0, group)
        inner = _F.apply(model.student[:2](x), group)
        said = _LogSoftmax.apply(model.student[2](inner) / 2.0, group)
        part = (target.exp() * (target - said)).sum() / x.shape[0]
        loss = _G.apply(part.clone(), group) * 4.0
        (loss if right else loss / 2.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group = mesh["tp"].get_group()
        model.student[2].weight = own(model.student[2].weight, model.group, 0)
        model.teacher[2].weight = own(model.teacher[2].weight, model.group, 0).requires_grad_(False)
        return model

    return Definition(
        name="taught",
        mesh={"tp": 2},
        build=School,
        parallelize=parallelize,
        optimizer=lambda ps: torch.optim.SGD([p for p in ps if p.requires_grad], lr=0.1, momentum=0.9),
        step=single,
        parallel_step=parallel,
        batch={"x": Batch((4, 6))},
    )
