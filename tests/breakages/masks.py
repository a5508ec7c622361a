"""Part 9: padding and packed documents, with the sequence cut over ``cp`` and rows over ``dp``.

Documents of one row are told apart by segment ids; id 0 is padding. A position sees earlier ones of its own
document. A rank has the queries of its piece of the sequence and gathers all keys and values.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Batch, Definition

from .kit import Batches, gather, join, own, part, summed

DIM, LENGTH, ROWS = 4, 6, 4
NAMES = ("query", "key", "value", "out")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(DIM, DIM, bias=False))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.where(mask, q @ k.transpose(1, 2) * 0.5, float("-inf"))
        return self.out(F.softmax(scores, dim=-1) @ v)

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        return self.attend(self.query(x), self.key(x), self.value(x), visible(segments, segments, 0))


def visible(queries: Tensor, keys: Tensor, first: int, mistake: str = "") -> Tensor:
    """Which keys a query sees, by segment ids of both; queries start at position ``first``."""
    at = torch.arange(queries.shape[1]) + first
    earlier = at[:, None] >= torch.arange(keys.shape[1])
    if mistake == "causal mask off by one":
        earlier = at[:, None] + 1 >= torch.arange(keys.shape[1])
    if mistake == "causal mask transposed":
        earlier = at[:, None] <= torch.arange(keys.shape[1])
    if mistake == "documents not separated":
        return earlier.expand(queries.shape[0], -1, -1)
    return (queries[:, :, None] == keys[:, None, :]) & earlier


class Parallel(nn.Module):
    def __init__(self, model: nn.Module, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        assert isinstance(model, Attention)
        self.inner, self.mistake = model, mistake
        self.dp, self.cp = mesh["dp"].get_group(), mesh["cp"].get_group()

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        group, mistake = self.cp, self.mistake
        collect = join if mistake == "gradient of gathered keys not reduced" else gather
        q, k, v = self.inner.query(x), self.inner.key(x), self.inner.value(x)
        k, v = collect(k, group, 1), collect(v, group, 1)
        first = 0 if mistake == "queries of every rank start at 0" else group.rank() * x.shape[1]
        mine = own(segments, group, 1)
        keys = torch.cat([mine] * group.size(), 1) if mistake == "own segment ids for all keys" else segments
        return self.inner.attend(q, k, v, visible(mine, keys, first, mistake))


def masked_loss(y: Tensor, target: Tensor, valid: Tensor, mistake: str) -> Tensor:
    error = (y - target) ** 2
    if mistake == "padding not left out of the loss":
        return error.sum()
    return torch.where(valid[..., None], error, 0.0).sum()


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batches, mistake: str = ""
) -> dict[str, Tensor]:
    segments = batch["segments"]
    valid, count = segments != 0, (segments != 0).sum()
    if isinstance(model, Parallel):
        valid = own(valid, model.cp, 1)
        if mistake == "padding counted":
            count = torch.full((), segments.numel())
        if mistake == "count reduced over the sequence's ranks too":
            count = summed(count, model.cp)
        count = summed(count, model.dp)
    total = masked_loss(model(batch["x"], segments), batch["y"], valid, mistake)
    loss = total / count
    loss.backward()
    loss = loss.detach()
    if isinstance(model, Parallel):
        for group in (model.cp, model.dp):
            loss = summed(loss, group)
            for parameter in model.parameters():
                if not (mistake == "gradient not reduced over the sequence" and group is model.cp):
                    dist.all_reduce(parameter.grad, group=group)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


class Whole(nn.Module):
    """The single device's model under the names of the parallel one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        return self.inner(x, segments)


def define(mistake: str) -> Definition:
    shard = {"dp": 0, "cp": 1}
    rows = Batch(shape=(ROWS, LENGTH, DIM), shard=shard)
    return Definition(
        name="breakages-masks",
        mesh={"dp": 2, "cp": 2},
        build=Whole,
        parallelize=lambda model, mesh: Parallel(model.inner, mesh, mistake),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
        step=step,
        parallel_step=functools.partial(step, mistake=mistake),
        batch={
            "x": rows,
            "y": rows,
            "segments": Batch(shape=(ROWS, LENGTH), dtype=torch.int64, shard={"dp": 0}, bounds=(0, 4)),
        },
        layouts={f"inner.{name}.weight": {} for name in NAMES},
    )


PART = part(
    "padding and packed documents",
    {
        "attention over dp 2 x cp 2": (
            define,
            {
                "documents not separated": "loss",
                "causal mask off by one": "loss",
                "causal mask transposed": "loss",
                "queries of every rank start at 0": "*",
                "own segment ids for all keys": "loss",
                "padding not left out of the loss": "loss",
                "padding counted": "loss",
                "count reduced over the sequence's ranks too": "loss",
                "gradient of gathered keys not reduced": "params.inner.[kv]*",
                "gradient not reduced over the sequence": "params.inner.*",
            },
        )
    },
)
