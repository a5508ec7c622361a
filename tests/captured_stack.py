"""Several layers of experts with dispatch, each as in ``examples/models/moe_packed.py``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Definition
from tests.orchestrator.capture.conftest import load_example


class Stack(nn.Module):
    """Layers with a norm before their experts."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = layer(norm(x))
        return x


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> dict[str, Tensor]:
    loss = F.mse_loss(model(batch["x"]), batch["y"])
    loss.backward()
    first: Any = model.layers[0]
    if hasattr(first, "ep"):
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad, group=first.dp)
            if "gate" not in name and "up" not in name and "down" not in name:
                dist.all_reduce(parameter.grad, group=first.ep)
            parameter.grad /= first.dp.size() * first.ep.size()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(layers: int = 2, width: int = 16, **sizes: int) -> Definition:
    """``layers`` of experts; ``sizes`` as the example has them."""
    made = load_example("moe_packed.py", width=width, **sizes)
    module: Any = sys.modules["moe_packed"]

    def parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert isinstance(model, Stack)
        model.layers = nn.ModuleList(module.ParallelExperts(layer, mesh) for layer in model.layers)
        return model

    return replace(
        made,
        build=lambda: Stack([made.build() for _ in range(layers)], width),
        parallelize=parallel,
        step=_step,
    )
