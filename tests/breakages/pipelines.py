"""Pipelines as people write them by hand, each with mistakes of its own: a residual MLP in stages.

A style is the part of the step that leaves gradients in ``p.grad``: messages, forward and backward passes of
all microbatches. The single device takes the whole batch at once. ``wrong`` is one of the style's mistakes,
or empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

DIM, HIDDEN, COUNT = 4, 6, 3
Batches = Mapping[str, Tensor]
Losses = list[Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(x)))


class MLP(nn.Module):
    """Blocks by number, so that a stage can keep the names of its own."""

    def __init__(self, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


class Stage(MLP):
    """What a rank holds: the blocks of its parts, in the order in which the model runs them."""

    def __init__(self, model: MLP, mesh: DeviceMesh, parts: Sequence[str]) -> None:
        self.number, self.count = mesh.get_local_rank("pp"), mesh["pp"].size()
        super().__init__({n: model.blocks[n] for n in parts})
        self.pipe = mesh["pp"].get_group()
        self.replicas = mesh["dp"].get_group() if "dp" in (mesh.mesh_dim_names or ()) else None
        self.ranks = dist.get_process_group_ranks(self.pipe)
        self.back = _another(self.ranks, self.count)
        self.first, self.last = self.number == 0, self.number == self.count - 1
        self.before, self.behind = self.number - 1, self.number + 1

    def part(self, names: Sequence[str], x: Tensor) -> Tensor:
        for name in names:
            x = self.blocks[name](x)
        return x

    # --- messages --------------------------------------------------------------------------------------

    def send(self, x: Tensor, to: int, over: Any = None) -> Any:
        """In flight until it is waited for."""
        return dist.isend(x.detach(), self.ranks[to], group=over or self.pipe)

    def take(self, like: Tensor, source: int, over: Any = None) -> Tensor:
        x = torch.empty_like(like)
        dist.recv(x, self.ranks[source], group=over or self.pipe)
        return x

    def swap(self, x: Tensor, like: Tensor, other: int) -> Tensor:
        """Both directions in one batch, as Megatron's ``send_forward_recv_backward``."""
        found = torch.empty_like(like)
        ops = [
            dist.P2POp(dist.isend, x.detach(), self.ranks[other], self.pipe),
            dist.P2POp(dist.irecv, found, self.ranks[other], self.pipe),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return found


def _another(ranks: Sequence[int], count: int) -> Any:
    """A second communicator of the same stages: what goes one way does not wait for what comes."""
    every = [
        list(range(first, dist.get_world_size(), dist.get_world_size() // count))
        for first in range(dist.get_world_size() // count)
    ]
    made = {tuple(one): dist.new_group(one) for one in every}
    return made[tuple(ranks)]


def mean(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out, y) / COUNT


def reported(losses: Losses) -> dict[str, Tensor]:
    return {"loss": torch.stack(losses).sum()} if losses else {}


def finished(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


# --- one stage on each rank ------------------------------------------------------------------------------


def one_forward_one_backward(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Warm-up, steady state, cool-down."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    kept: deque[tuple[Tensor, Tensor]] = deque()
    losses: Losses = []
    works: list[Any] = []
    back = stage.pipe if wrong == "one communicator for both ways" else stage.back

    def forward(i: int) -> None:
        x = rows[i] if stage.first else stage.take(rows[i], stage.before).requires_grad_()
        out = stage(x)
        if stage.last:
            out = mean(out, labels[COUNT - 1 - i if wrong == "labels in another order" else i])
            losses.append(out.detach())
        else:
            works.append(stage.send(out, stage.behind))
        kept.append((x, out))

    def backward() -> None:
        x, out = kept.pop() if wrong == "last in, first out" else kept.popleft()
        out.backward(None if stage.last else stage.take(out, stage.behind, back))
        if not stage.first:
            assert x.grad is not None
            gradient = torch.zeros_like(x) if wrong == "gradient of nothing handed on" else x.grad
            gradient = gradient.half() if wrong == "sent in another type" else gradient
            if kept or wrong != "last gradient not sent":
                works.append(stage.send(gradient, stage.before, back))
        if wrong == "gradients cleared after every microbatch" and len(kept) > 0:
            stage.zero_grad()

    warm = min(stage.count - stage.number - 1, COUNT)
    for i in range(warm):
        forward(i)
    for i in range(warm, COUNT):
        forward(i)
        backward()
    for _ in range(warm):
        backward()
    finished(works)
    return reported(losses)


def both_ways(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Two stages, 1F1B, sends and receives of the steady state in one batch of messages."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    losses: Losses = []

    def swapped(x: Tensor, other: int) -> Tensor:
        if wrong == "both send, then both receive":
            dist.send(x.detach(), stage.ranks[other], group=stage.pipe)
            return stage.take(x, other)
        return stage.swap(x, x, other)

    if stage.first:
        outs = [stage(rows[0])]
        dist.send(outs[0].detach(), stage.ranks[1], group=stage.pipe)
        for i in range(1, COUNT):
            outs.append(stage(rows[i]))
            gradient = swapped(outs[i], 1)
            outs[i if wrong == "gradient of the microbatch before" else i - 1].backward(
                gradient, retain_graph=True
            )
        outs[-1].backward(stage.take(outs[-1], 1))
        return {}
    x = stage.take(rows[0], 0)
    for i in range(COUNT):
        x.requires_grad_()
        loss = mean(stage(x), labels[i])
        loss.backward()
        losses.append(loss.detach())
        assert x.grad is not None
        if i < COUNT - 1:
            x = swapped(x.grad, 0)
        else:
            dist.send(x.grad, stage.ranks[0], group=stage.pipe)
    return reported(losses)


def all_then_all(
    stage: Stage,
    batch: Batches,
    wrong: str = "",
    order: Sequence[int] = range(COUNT),
    run: Callable[[Stage, Tensor], Tensor] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = mean,
) -> dict[str, Tensor]:
    """All forward passes, then all backward passes, microbatches in ``order``."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    kept, works = [], []
    losses: Losses = []
    for k, i in enumerate(order):
        x = rows[i] if stage.first else stage.take(rows[i], stage.before).requires_grad_()
        out = run(stage, x) if run else stage(x)
        if stage.last:
            out = loss(out, labels[k if wrong == "labels in the other order" else i])
            losses.append(out.detach())
        else:
            works.append(stage.send(out, stage.behind))
        kept.append((x, out))
    for x, out in kept:
        out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    return reported(losses)


def in_reverse(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    return all_then_all(stage, batch, wrong, range(COUNT)[::-1])


def backward_in_reverse(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The last microbatch comes back first, as GPipe's paper has it."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    kept, works = [], []
    losses: Losses = []
    for x, y in zip(rows, labels, strict=True):
        x = x if stage.first else stage.take(x, stage.before).requires_grad_()
        out = stage(x)
        if stage.last:
            out = mean(out, y)
            losses.append(out.detach())
        else:
            works.append(stage.send(out, stage.behind))
        kept.append((x, out))
    order = kept if wrong == "first stage takes them forwards" and stage.first else kept[::-1]
    for x, out in order:
        out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    return reported(losses)


def computed_again(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Each stage keeps what it was given, and computes its blocks again in the backward pass."""
    return all_then_all(stage, batch, wrong, run=lambda s, x: checkpoint(s.forward, x, use_reentrant=False))


def kept_by_hand(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The same without autograd between: a forward pass under ``no_grad``, another one for the gradient."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    kept, works = [], []
    losses: Losses = []
    for x in rows:
        x = x if stage.first else stage.take(x, stage.before)
        kept.append(x)
        if not stage.last:
            with torch.no_grad():
                works.append(stage.send(stage(x), stage.behind))
    for i, y in enumerate(labels):
        at = 0 if wrong == "computed again from the first microbatch" else i
        x = kept[at].detach().requires_grad_()
        out = stage(x)
        if stage.last:
            loss = mean(out, y)
            losses.append(loss.detach())
            loss.backward()
        else:
            out.backward(stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    return reported(losses)


def in_advance(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The next microbatch is on its way, into the other of two buffers, while this one is computed."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    if stage.first:
        outs, works = [stage(x) for x in rows], []
        for out in outs:
            works.append(stage.send(out, 1))
        for out in outs:
            out.backward(stage.take(out, 1, stage.back))
        finished(works)
        return {}
    buffers = [torch.empty_like(rows[0]) for _ in range(1 if wrong == "one buffer for all" else 2)]
    losses: Losses = []
    works = []

    def post(i: int) -> Any:
        return dist.irecv(buffers[i % len(buffers)], stage.ranks[0], group=stage.pipe)

    coming = post(0)
    for i, y in enumerate(labels):
        early = wrong == "read while in flight"
        if not early:
            coming.wait()
        x = buffers[i % len(buffers)]
        following = post(i + 1) if i + 1 < COUNT else None
        x = x.detach().clone().requires_grad_()
        loss = mean(stage(x), y)
        loss.backward()
        losses.append(loss.detach())
        assert x.grad is not None
        works.append(stage.send(x.grad, 0, stage.back))
        if early:
            coming.wait()
        coming = following
    finished(works)
    return reported(losses)


def replicas_by_ddp(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The stage's replicas are those of DistributedDataParallel, which joins in at the last microbatch."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    wrapped = stage.wrapped[0]
    losses: Losses = []
    works: list[Any] = []
    for i, (x, y) in enumerate(zip(rows, labels, strict=True)):
        quiet = i < COUNT - 1 or wrong == "never reduced"
        x = x if stage.first else stage.take(x, stage.before).requires_grad_()
        with wrapped.no_sync() if quiet else torch.enable_grad():
            out = wrapped(x)
            if stage.last:
                out = mean(out, y)
                losses.append(out.detach())
            else:
                works.append(stage.send(out, stage.behind))
            out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    return reported(losses)


def kept_in_buffers(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Gradients are added up in buffers of their own, and divided by the number of microbatches after all."""
    sums = {n: torch.zeros_like(p) for n, p in stage.named_parameters()}
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    works: list[Any] = []
    losses: Losses = []
    for i, (x, y) in enumerate(zip(rows, labels, strict=True)):
        x = x if stage.first else stage.take(x, stage.before).requires_grad_()
        out = stage(x)
        if stage.last:
            out = F.mse_loss(out, y)
            losses.append(out.detach() / COUNT)
        else:
            works.append(stage.send(out, stage.behind))
        out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
        for name, p in stage.named_parameters():
            assert p.grad is not None
            if wrong == "buffer overwritten":
                sums[name].copy_(p.grad)
            elif not (wrong == "last microbatch left out" and i == COUNT - 1):
                sums[name].add_(p.grad)
            p.grad = None
    for name, p in stage.named_parameters():
        p.grad = sums[name] / (1 if wrong == "not divided by the count" else COUNT)
    finished(works)
    return reported(losses)


def unequal(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Microbatches of other sizes, each with its share of the loss."""
    sizes, total = (1, 3, 2), batch["x"].shape[0]
    rows, labels = batch["x"].split(sizes), batch["y"].split(sizes)
    works: list[Any] = []
    losses: Losses = []
    for x, y in zip(rows, labels, strict=True):
        x = x if stage.first else stage.take(x, stage.before).requires_grad_()
        out = stage(x)
        if stage.last:
            alike = wrong == "every microbatch counts the same"
            out = F.mse_loss(out, y) / COUNT if alike else F.mse_loss(out, y) * x.shape[0] / total
            losses.append(out.detach())
        else:
            works.append(stage.send(out, stage.behind))
        out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    return reported(losses)


def wrapped_in_ddp(stage: Stage) -> Stage:
    """Beside the module tree, so that parameters keep their names."""
    stage.wrapped = [DistributedDataParallel(stage, process_group=stage.replicas)]
    return stage
