"""Pipelines by hand in which ranks hold several parts of the model, or join what only some of them have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .pipelines import COUNT, Batches, Losses, Stage, all_then_all, finished, mean, reported


def looped(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Two parts on each of two ranks, in turn: what leaves the last rank comes back to the first one.

    Each way has a communicator of its own."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    other = 1 - stage.number
    parts = [[str(stage.number)], [str(2 + stage.number)]]
    if wrong == "parts of a rank exchanged" and stage.last:
        parts.reverse()
    kept: list[list[tuple[Tensor, Tensor]]] = [[], []]
    works: list[Any] = []
    ways = [stage.pipe, stage.back if wrong != "one communicator for both ways of two parts" else stage.pipe]
    there, here = ways if stage.first else ways[::-1]
    losses: Losses = []
    for part in (0, 1):
        for i in range(COUNT):
            entry = stage.first and part == 0
            x = rows[i] if entry else stage.take(rows[i], other, here).requires_grad_()
            out = stage.part(parts[part], x)
            if stage.last and part == 1:
                out = mean(out, labels[i])
                losses.append(out.detach())
            else:
                works.append(stage.send(out, other, there))
            kept[part].append((x, out))
    for part in (1, 0):
        for x, out in kept[part]:
            ends = stage.last and part == 1
            out.backward(None if ends else stage.take(out, other, here))
            if not (stage.first and part == 0):
                assert x.grad is not None
                works.append(stage.send(x.grad, other, there))
    finished(works)
    return reported(losses)


def in_a_v(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The first rank has the first and the last part, the second one what lies between: no message turns."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    losses: Losses = []
    if not stage.first:
        for x in rows:
            x = stage.take(x, 0).requires_grad_()
            turned = stage.part(["1"], x)
            out = stage.part(["2"], x if wrong == "what the part before handed on is left out" else turned)
            works = [stage.send(out, 0)]
            out.backward(stage.take(out, 0))
            assert x.grad is not None
            finished([*works, stage.send(x.grad, 0)])
        return {}
    for x, y in zip(rows, labels, strict=True):
        out = stage.part(["0"], x)
        works = [stage.send(out, 1)]
        back = stage.take(out, 1).requires_grad_()
        loss = mean(stage.part(["3"], back), y)
        loss.backward()
        losses.append(loss.detach())
        assert back.grad is not None
        works.append(stage.send(back.grad, 1))
        out.backward(back.grad if wrong == "gradient of the last part" else stage.take(out, 1))
        if wrong == "gradient of the last part":
            stage.take(out, 1)
        finished(works)
    return reported(losses)


def input_to_the_end(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The last stage adds what the first one was given, handed on beside the activations."""
    rows, labels = batch["x"].chunk(COUNT), batch["y"].chunk(COUNT)
    works: list[Any] = []
    losses: Losses = []
    for i, y in enumerate(labels):
        x = given = rows[i]
        if not stage.first:
            x, given = (stage.take(rows[i], stage.before) for _ in range(2))
            if wrong == "both messages exchanged" and stage.last:
                x, given = given, x
            x.requires_grad_()
        out = stage(x)
        if stage.last:
            out = mean(out + given, y)
            losses.append(out.detach())
        else:
            works += [stage.send(out, stage.behind), stage.send(given, stage.behind)]
        out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    return reported(losses)


# --- what ranks have to join ------------------------------------------------------------------------------


def clipped(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Gradients are scaled by the norm of all of them, over the stages."""
    results = all_then_all(stage, batch, "")
    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    total = torch.stack([g.square().sum() for g in gradients]).sum()
    if wrong == "roots added, not squares":
        total = total.sqrt()
        dist.all_reduce(total, group=stage.pipe)
    else:
        if wrong != "norm of the own stage":
            operation = dist.ReduceOp.MAX if wrong == "largest norm of a stage" else dist.ReduceOp.SUM
            dist.all_reduce(total, op=operation, group=stage.pipe)
        total = total.sqrt()
    scale = (0.5 / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
    return results | {"grad_norm": total}


def norm_and_loss(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The norm over one communicator of the stages, the loss over another one."""
    results = all_then_all(stage, batch, "")
    loss = results.get("loss", batch["x"].new_zeros(()))
    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    total = torch.stack([g.square().sum() for g in gradients]).sum()
    crossed = wrong == "two communicators in crossed order" and stage.last
    for x, over in sorted(
        ((total, stage.pipe), (loss, stage.back)), key=lambda of: of[1] is stage.pipe, reverse=not crossed
    ):
        dist.all_reduce(x, group=over)
    scale = (0.5 / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
    return {"loss": loss, "grad_norm": total.sqrt()}


def clip_alone(parameters: Any) -> dict[str, Tensor]:
    """What the single device does."""
    return {"grad_norm": torch.nn.utils.clip_grad_norm_(list(parameters), 0.5)}


def loss_for_all(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The last stage tells all others the loss."""
    results = all_then_all(stage, batch, "")
    loss = results.get("loss", batch["x"].new_zeros(()))
    if wrong == "mean over the stages":
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=stage.pipe)
    elif wrong == "told by the first stage":
        dist.broadcast(loss, stage.ranks[0], group=stage.pipe)
    else:
        dist.broadcast(loss, stage.ranks[-1], group=stage.pipe)
    return {"loss": loss}


def averaged_over_replicas(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """Replicas of every stage, each with rows of its own."""
    results = all_then_all(stage, batch, "")
    sums = {
        "over the stages instead": stage.pipe,
        "not at all on the last stage": None if stage.last else stage.replicas,
    }
    group = sums.get(wrong, stage.replicas)
    for p in stage.parameters():
        if group is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=group)
        assert p.grad is not None
        if wrong == "divided twice":
            p.grad.div_(2)
        if wrong == "no step on the first stage" and stage.first:
            p.grad.zero_()
    return results


def valid_rows(stage: Stage, batch: Batches, wrong: str) -> dict[str, Tensor]:
    """The loss is over rows that count, by the number of all that do: of all microbatches and replicas."""
    valid = batch["valid"].to(batch["x"].dtype)
    count = valid.sum()
    if wrong != "rows of the own replica counted":
        dist.all_reduce(count, group=stage.replicas)
    rows, labels, masks = (batch[n].chunk(COUNT) for n in ("x", "y", "valid"))
    works: list[Any] = []
    losses: Losses = []
    for x, y, mask in zip(rows, labels, masks, strict=True):
        x = x if stage.first else stage.take(x, stage.before).requires_grad_()
        out = stage(x)
        if stage.last:
            total = ((out - y).square().sum(-1) * mask).sum()
            own = mask.to(x.dtype).sum() * COUNT * 2
            out = total / (own if wrong == "each microbatch by its own count" else count)
            losses.append(out.detach())
        else:
            works.append(stage.send(out, stage.behind))
        out.backward(None if stage.last else stage.take(out, stage.behind))
        if not stage.first:
            assert x.grad is not None
            works.append(stage.send(x.grad, stage.before))
    finished(works)
    for p in stage.parameters():
        operation = dist.ReduceOp.AVG if wrong == "mean over replicas" else dist.ReduceOp.SUM
        dist.all_reduce(p.grad, op=operation, group=stage.replicas)
    results = reported(losses)
    if losses:
        dist.all_reduce(results["loss"], group=stage.replicas)
    return results


def loss_of_valid_rows(out: Tensor, batch: Batches) -> Tensor:
    valid = batch["valid"].to(out.dtype)
    return ((out - batch["y"]).square().sum(-1) * valid).sum() / valid.sum()


def loss_of_all(out: Tensor, batch: Batches) -> Tensor:
    return F.mse_loss(out, batch["y"])


Loss = Callable[[Tensor, Batches], Tensor]
