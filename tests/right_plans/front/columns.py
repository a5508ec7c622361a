"""Columns of layers: added up by the piece; kept as views of whole weights, and summed beside a gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.capture import Definition

from .by_hand import own, pair, regress
from .many_habits import Enter
from .whole_batches import Total

PIECES, WIDTH = 2, 3


class _Branches(nn.Module):
    """Several small layers in one, whose results are added."""

    group: dist.ProcessGroup | None = None
    right = True

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, PIECES * WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None:
            pieces = torch.tanh(self.inner(x)).unflatten(-1, (PIECES, WIDTH))
            return self.outer(torch.tanh(pieces.sum(-2)))  # type: ignore[no-any-return]
        piece = torch.tanh(self.inner(Enter.apply(x, self.group)))
        total = Total.apply(piece, self.group, False) if self.right else PIECES * piece
        return self.outer(torch.tanh(total))  # type: ignore[no-any-return]


def summed_columns(right: bool = True) -> Definition:
    """Wrong: each rank takes its own piece as often as there are some."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.right = mesh["tp"].get_group(), right
        model.inner.weight = own(model.inner.weight, model.group, 0)
        model.inner.bias = own(model.inner.bias, model.group, 0)
        return model  # type: ignore[no-any-return]

    return Definition(
        name="summed-columns",
        mesh={"tp": PIECES},
        build=_Branches,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        step=regress,
        batch=pair((3, 4), (3, 2)),
    )


class _Straight(nn.Module):
    """A hidden layer whose second half is added up over ranks, without a function of autograd's."""

    group: dist.ProcessGroup | None = None
    right = True

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6, bias=False), nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None:
            return self.outer(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]
        part = self.outer(torch.tanh(self.inner(x)))
        total = part.detach().clone()
        dist.all_reduce(total, group=self.group)
        rest = total - part
        return part + (rest.detach() if self.right else rest)  # type: ignore[no-any-return]


def straight_sums(right: bool = True) -> Definition:
    """What is added up has the value of the sum and the gradient of the part. Wrong: it has no gradient."""

    def parallelize(model: Any, mesh: DeviceMesh) -> nn.Module:
        model.group, model.right = mesh["tp"].get_group(), right
        rank = dist.get_rank(model.group)
        model.inner.weight = nn.Parameter(model.inner.weight.data[3 * rank : 3 * rank + 3])
        model.outer.weight = nn.Parameter(model.outer.weight.data[:, 3 * rank : 3 * rank + 3])
        return model  # type: ignore[no-any-return]

    return Definition(
        name="straight-sums",
        mesh={"tp": 2},
        build=_Straight,
        parallelize=parallelize,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        step=regress,
        batch=pair((3, 4), (3, 2)),
    )
