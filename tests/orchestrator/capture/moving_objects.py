"""Steps that move objects from one place to the next, in a file without pytest among its globals."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from orchestrator.capture import Definition

from .world import one_layer

#: More places than steps are traced.
PLACES = 12
#: What lies in all places but the last, and there.
KEPT: Mapping[str, Callable[[Any], tuple[Callable[[], object], object]]] = {
    "groups": lambda mesh: (dist.new_group, mesh.get_group("dp")),
    "locks": lambda _: (threading.Lock, threading.Lock()),
    "objects": lambda _: (object, object()),
    "modules": lambda _: (lambda: math, logging),
    "layers": lambda _: (lambda: nn.Linear(3, 3), nn.Linear(3, 3)),
    "generators": lambda _: (torch.Generator, torch.Generator()),
    "tensors": lambda _: (lambda: torch.full((3,), 1.0), torch.full((3,), 31.0)),
    "reductions": lambda _: (lambda: dist.ReduceOp.SUM, dist.ReduceOp.MAX),
    "placements": lambda _: (lambda: Shard(0), Shard(1)),
    "formats": lambda _: (lambda: torch.contiguous_format, torch.channels_last),
}


def moving(model: Any) -> None:
    """Each object goes one place on."""
    first, *others = (model.kept[i] for i in range(PLACES))
    model.kept.update(enumerate((*others, first)))


def making(model: Any) -> None:
    """An object that is made anew in each step."""
    model.kept[0] = threading.Lock()


def passing(model: Any) -> None:
    """All objects stay where they are; somebody looks at them."""
    model.kept = dict(model.kept)


def kept(what: str, change: Callable[[Any], None]) -> Definition:
    def parallelize(model: Any, mesh: Any) -> Any:
        make, last = KEPT[what](mesh)
        model.kept = dict(enumerate((*(make() for _ in range(PLACES - 1)), last)))
        return model

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, Tensor]:
        F.mse_loss(model(batch["x"]), batch["x"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if hasattr(model, "kept"):
            change(model)
        return {}

    return replace(one_layer("kept", step), parallelize=parallelize)
