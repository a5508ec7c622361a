"""Main gradients in one buffer, norms that count a copy once, trust ratios over ranks, losses in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from orchestrator.capture import Batch, Definition

from .by_hand import Batches, own, pair
from .sequences import _F, _G


class Wide(nn.Module):
    """A norm, a column-parallel layer, a row-parallel one."""

    def __init__(self, dim: int = 6, hidden: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.tp: Any = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = F.gelu(self.up(y if self.tp is None else _F.apply(y, self.tp)))
        y = F.linear(y, self.down.weight)
        return x + (y if self.tp is None else _G.apply(y, self.tp)) + self.down.bias


def _wide_on_ranks(model: Any, mesh: DeviceMesh) -> nn.Module:
    model.tp, model.dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    for layer, name, dim in ((model.up, "weight", 0), (model.up, "bias", 0), (model.down, "weight", 1)):
        setattr(layer, name, own(getattr(layer, name), model.tp, dim))
        getattr(layer, name).tensor_model_parallel = True
    return model


def main_gradients(right: bool = True) -> Definition:
    """One buffer for all gradients, into which hooks add; a copy counts on rank 0. Wrong: on every rank."""

    def single(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        total = torch.zeros(())
        for x, y in zip(batch["x"], batch["y"], strict=True):
            loss = F.mse_loss(model(x), y)
            (loss / len(batch["x"])).backward()
            total += loss.detach() / len(batch["x"])
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    def added(p: Any) -> None:
        p.main_grad.add_(p.grad)
        p.grad = None

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model = _wide_on_ranks(model, mesh)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(added)
        return model

    def parallel(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        parameters = list(model.parameters())
        buffer, at = torch.zeros(sum(p.numel() for p in parameters)), 0
        for p in parameters:
            p.main_grad = buffer[at : at + p.numel()].view_as(p)
            at += p.numel()
        total = torch.zeros(())
        for x, y in zip(batch["x"], batch["y"], strict=True):
            loss = F.mse_loss(model(x), y)
            (loss / len(batch["x"])).backward()
            total += loss.detach() / len(batch["x"])
        buffer /= model.dp.size()
        dist.all_reduce(buffer, group=model.dp)
        counted = [
            p.main_grad
            for p in parameters
            if getattr(p, "tensor_model_parallel", False) or model.tp.rank() == 0 or not right
        ]
        norm = torch.stack([g.square().sum() for g in counted]).sum()
        dist.all_reduce(norm, group=model.tp)
        factor = 0.5 / (norm.sqrt() + 1.0e-6)
        factor = torch.where(factor < 1.0, factor, torch.ones_like(factor))
        for p in parameters:
            p.grad = p.main_grad * factor
            p.main_grad = None
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total, op=dist.ReduceOp.AVG, group=model.dp)
        return {"loss": total}

    return Definition(
        name="main-gradients",
        mesh={"dp": 2, "tp": 2},
        build=Wide,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        step=single,
        parallel_step=parallel,
        batch=pair((2, 4, 6), dp=1),
    )


# --- trust ratios ------------------------------------------------------------------------------------------


class Lars(torch.optim.Optimizer):
    """Layers' steps in proportion to the norms of their weights; with a group, of all its ranks' parts."""

    group: Any = None
    of_gradients = True

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})
        for p in self.param_groups[0]["params"]:
            self.state[p]["momentum"] = torch.zeros_like(p)

    def norm(self, x: Tensor, parted: bool) -> Tensor:
        square = x.pow(2).sum()
        if parted:
            dist.all_reduce(square, group=self.group)
        return square.sqrt()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            parted = getattr(p, "tensor_model_parallel", False)
            weights, gradient = self.norm(p, parted), self.norm(p.grad, parted and self.of_gradients)
            ratio = 0.001 * weights / (gradient + 1e-4 * weights + 1e-9)
            ratio = torch.where((weights > 0) & (gradient > 0), ratio, torch.ones_like(ratio))
            moved = (p.grad + 1e-4 * p) * ratio
            self.state[p]["momentum"].mul_(0.9).add_(moved)
            p.add_(self.state[p]["momentum"], alpha=-0.1)


def trust_ratios(right: bool = True) -> Definition:
    """TP 4. Wrong: norms of gradients are those of a rank's part."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.l1_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def trained(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = Lars(params)
        optimizer.of_gradients = right
        return optimizer

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.tp = mesh["tp"].get_group()
        for layer, name, dim in ((model.up, "weight", 0), (model.up, "bias", 0), (model.down, "weight", 1)):
            setattr(layer, name, own(getattr(layer, name), model.tp, dim))
            getattr(layer, name).tensor_model_parallel = True
        return model

    return Definition(
        name="trust-ratios",
        mesh={"tp": 4},
        build=Wide,
        parallelize=parallelize,
        optimizer=trained,
        step=step,
        batch=pair((4, 6)),
    )


# --- a loss in chunks --------------------------------------------------------------------------------------


class Chunked(nn.Module):
    def __init__(self, words: int = 11, dim: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim, padding_idx=0)
        self.rnn = nn.Linear(2 * dim, dim)
        self.head = nn.Linear(dim, words)
        self.chunks, self.group = 1, None

    def states(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        return torch.tanh(self.rnn(torch.cat([x, before], dim=-1)))

    def part(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x).float(), labels, ignore_index=0, reduction="sum")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.states(ids)[:, :-1].flatten(0, 1)
        labels = ids[:, 1:].flatten()
        if self.chunks == 1:
            return self.part(x, labels)
        pieces = zip(x.chunk(self.chunks), labels.chunk(self.chunks), strict=True)
        return sum(checkpoint(self.part, a, b, use_reentrant=False) for a, b in pieces)


def chunked_loss(right: bool = True) -> Definition:
    """Checkpointed chunks of the last layer. Wrong: the count has the first tokens, too."""

    def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        ids = batch["ids"]
        counted = ids if model.group is not None and not right else ids[:, 1:]
        count = (counted != 0).sum()
        if model.group is not None:
            dist.all_reduce(count, group=model.group)
        loss = model(ids) / count.clamp(min=1)
        loss.backward()
        if model.group is not None:
            loss = loss.detach()
            dist.all_reduce_coalesced([loss, *(p.grad for p in model.parameters())], group=model.group)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.chunks, model.group = 3, mesh["dp"].get_group()
        return model

    return Definition(
        name="chunked-loss",
        mesh={"dp": 2},
        build=Chunked,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.Adagrad(params, lr=1e-2),
        step=step,
        batch={"ids": Batch((4, 7), torch.int64, {"dp": 0}, (0, 11))},
    )
