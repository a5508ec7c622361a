"""Replicas and shards: gradients reduced, scattered, accumulated."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from orchestrator.capture import Definition

from ..breakages.kit import (
    Batches,
    _Pair,
    gathered,
    own,
    scattered,
    summed,
)
from .layers import MLP
from .ranks import averaged, chain, data_parallel, grads, net, regression


def scattered_then_gathered() -> Definition:
    """A reduce-scatter and an all-gather in place of an all-reduce, over padded flat gradients."""

    def after(m: Any) -> None:
        group, n = m.groups["dp"], m.groups["dp"].size()
        flat = torch.cat([g.flatten() for g in grads(m)])
        padded = F.pad(flat, (0, -flat.numel() % n))
        mine = padded.new_empty(padded.numel() // n)
        dist.reduce_scatter_tensor(mine, padded, group=group)
        mine /= n
        dist.all_gather_into_tensor(padded, mine, group=group)
        at = 0
        for g in grads(m):
            g.copy_(padded[at : at + g.numel()].view_as(g))
            at += g.numel()

    return regression("rs-ag", {"dp": 2}, net, chain, {}, (4, 5), {"dp": 0}, after)


def scaled_before() -> Definition:
    """The loss is divided by the number of ranks; gradients are summed, one by one."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"], reduction="sum")
        loss = loss / (batch["y"].numel() * model.groups["dp"].size())
        loss.backward()
        for grad in grads(model):
            dist.all_reduce(grad, group=model.groups["dp"])
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": summed(loss, model.groups["dp"])}

    return data_parallel("scaled-before", step)


def gathered_losses() -> Definition:
    """All losses are gathered, stacked and averaged for the log."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            averaged("dp")(model)
        every = [torch.empty_like(loss) for _ in range(2)]
        dist.all_gather(every, loss.detach(), group=model.groups["dp"])
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": torch.stack(every).mean()}

    return data_parallel("gathered-losses", step)


def _accumulating(
    model: nn.Module, optimizer: Any, batch: Batches, group: ProcessGroup | None
) -> dict[str, Tensor]:
    total = torch.zeros(())
    for x, y in zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        total += loss.detach()
    if group is not None:
        for grad in grads(model):
            dist.all_reduce(grad, op=dist.ReduceOp.AVG, group=group)
    return {"loss": total}


def accumulated_chunks() -> Definition:
    """The single device takes the whole batch, a rank its rows in two chunks."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        out = _accumulating(model, optimizer, batch, model.groups["dp"])
        optimizer.step()
        optimizer.zero_grad()
        return out

    return data_parallel("accumulated-chunks", step, shape=(8, 5), mean_over={"loss": ("dp",)})


def accumulated_in_a_buffer() -> Definition:
    """Gradients of microbatches are added up in a flat buffer beside the parameters' own."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        main, losses = None, []
        for x, y in zip(batch["x"].chunk(2), batch["y"].chunk(2), strict=True):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            flat = torch.cat([g.flatten() for g in grads(model)])
            main = flat if main is None else main + flat
            losses.append(loss.detach())
            for p in model.parameters():
                p.grad = None
        main = summed(main, model.groups["dp"]) / 4
        for p, piece in zip(
            model.parameters(), main.split([p.numel() for p in model.parameters()]), strict=True
        ):
            p.grad = piece.view_as(p)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": summed(torch.stack(losses).sum(), model.groups["dp"]) / 4}

    return data_parallel("accumulated-buffer", step, shape=(8, 5))


def hybrid_by_hand() -> Definition:
    """Replicas of shards: gradients are scattered over the shards, then summed over the replicas."""

    def forward(m: Any, x: Tensor) -> Tensor:
        dp, rep = m.groups["dp"], m.groups["rep"]

        def whole(p: Tensor) -> Tensor:
            return _Pair.apply(
                p,
                lambda t: gathered(t, dp, 0),
                lambda g: summed(scattered(g, dp, 0), rep) / (dp.size() * rep.size()),
            )

        h = torch.tanh(F.linear(x, whole(m.up.weight), whole(m.up.bias)))
        return F.linear(h, whole(m.down.weight), whole(m.down.bias))

    class Net(MLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.tanh(self.up(x)))

    pieces = {n: ("dp", 0) for n in ("up.weight", "up.bias", "down.weight", "down.bias")}
    return regression(
        "hybrid-by-hand", {"rep": 2, "dp": 2}, Net, forward, pieces, (8, 6), {"rep": 0, "dp": 0}
    )


def momentum_shards() -> Definition:
    """Each rank steps its rows of every weight, and all rows are gathered: the first stage of ZeRO without
    an optimizer class.
    """

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        group, rate = model.groups["dp"], optimizer.param_groups[0]["lr"]
        with torch.no_grad():
            for p in model.parameters():
                mine = own(p, group, 0) - rate * scattered(p.grad, group, 0) / group.size()
                p.copy_(gathered(mine, group, 0))
        model.zero_grad()
        return {"loss": loss}

    def single(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches) -> dict[str, Tensor]:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return data_parallel(
        "sgd-shards",
        step,
        single,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        build=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)),
        shape=(4, 6),
        mean_over={"loss": ("dp",)},
    )
