"""Models that are converted while they are built and made parallel, and their steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition


def device() -> torch.device:
    there = torch.cuda.is_available()
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if there else "cpu")


#: Ways to convert a model, by what they are called in a test.
CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "no": lambda model: model,
    "device": lambda model: model.to(device()),
    "float": lambda model: model.float(),
    "half and back": lambda model: model.half().float(),
    "double": lambda model: model.double(),
    "doubled": lambda model: model._apply(lambda tensor: tensor * 2),
    "without memory": lambda model: model.to_empty(device="cpu"),
}


def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
    """Data parallel by hand, where there are several ranks."""
    loss = F.mse_loss(model(batch["x"].to(model[2].weight.dtype)).float(), batch["x"])
    loss.backward()
    for parameter in model.parameters() if dist.is_initialized() else ():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def overwritten(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
    """The gradients that are added up are those of the parameters that were there before a conversion."""
    loss = F.mse_loss(model(batch["x"]), batch["x"])
    loss.backward()
    for parameter in model.before if dist.is_initialized() else ():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def overwriting(overwrite: bool) -> Definition:
    """Parameters are listed and then converted, which keeps the objects, or does not."""

    def parallelize(model: Any, _: object) -> Any:
        model.before = list(model.parameters())
        if overwrite:
            torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            return model.to("cpu")
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)

    return replace(converting("no", "no"), step=overwritten, parallelize=parallelize)


def converting(build: str, parallelize: str) -> Definition:
    """Two data parallel ranks of a model that is changed in these two functions."""
    rows = Batch((4, 3), shard={"dp": 0})
    return Definition(
        name="converted",
        mesh={"dp": 2},
        build=lambda: CHANGES[build](nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))),
        parallelize=lambda model, _: CHANGES[parallelize](model),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=step,
        batch={"x": rows},
        mean_over={"loss": ("dp",)},
    )
