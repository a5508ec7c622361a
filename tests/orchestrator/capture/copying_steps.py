"""Steps that copy tensors and models, in a file of its own for the steps' sake."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition


class Averaged(nn.Module):
    """Weights, and their moving average: a copy made when the model is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 3, bias=False)
        self.ema = copy.deepcopy(self.net).requires_grad_(False)


Step = Callable[[Any, Any, Any], dict[str, Tensor]]


def average(model: Any, optimizer: Any, batch: Any, change: Callable[[Any], object] | None = None) -> Any:
    loss = model.net(copy.copy(batch["x"])).square().mean()
    loss.backward()
    if dist.is_initialized():
        dist.all_reduce(model.net.weight.grad, op=dist.ReduceOp.AVG)
    if change is not None:
        with torch.no_grad():
            change(model)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.ema.weight.lerp_(model.net.weight, 0.25)
    return {"loss": loss.detach()}


def pulled_back(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
    """The weights of before the step are copied within it."""
    before = copy.deepcopy(model.net)
    kept = copy.deepcopy(model.state_dict())["net.weight"]
    results: dict[str, Tensor] = average(model, optimizer, batch)
    with torch.no_grad():
        model.net.weight.lerp_((before.weight + kept) / 2, 0.5)
    return results


def _the_same_memory(model: Any) -> None:
    copy.copy(model.net.weight.grad).mul_(3)


def _other_memory(model: Any) -> None:
    copy.deepcopy(model.net.weight.grad).mul_(3)


def _views_of_a_copy(model: Any) -> None:
    grad = model.net.weight.grad
    flat = torch.cat([grad.reshape(-1), torch.ones(2)])
    whole, first, rest = copy.deepcopy([flat, flat[:9].view(3, 3), flat[9:]])
    first.mul_(rest[0] * 3)
    flat.zero_()
    grad.copy_(whole[:9].view(3, 3).t())


def _a_view_alone(model: Any) -> None:
    one, two = copy.deepcopy([model.net.weight.grad.t()[1:], model.net.weight.grad[:, 1]])
    two.mul_(5)
    model.net.weight.grad[1:] = one


def _of_a_parameter(model: Any) -> None:
    copied = copy.copy(model.net.weight)
    copied.mul_(0.5)
    assert copied.grad is None and isinstance(copied, nn.Parameter)


CHANGES: Mapping[str, Callable[[Any], object]] = {
    change.__name__.strip("_"): change
    for change in (_the_same_memory, _other_memory, _views_of_a_copy, _a_view_alone, _of_a_parameter)
}


def changing(name: str) -> Step:
    """A step that does this to what the backward pass has left."""
    change = CHANGES[name]

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        results: dict[str, Tensor] = average(model, optimizer, batch, change)
        return results

    return step


def averaging(step: Step, parallel_step: Step | None = None, **changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "name": "averaged",
        "mesh": {"dp": 2},
        "build": Averaged,
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD([p for p in params if p.requires_grad], lr=0.1),
        "step": step,
        "parallel_step": parallel_step,
        "batch": {"x": Batch((4, 3), shard={"dp": 0})},
        "mean_over": {"loss": ("dp",)},
    }
    return Definition(**fields | changes)
