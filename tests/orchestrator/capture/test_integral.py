"""Counts in floats that become places: whole numbers, as long as only whole numbers were added up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestrator.capture.errors import CaptureError

Count = Callable[[Tensor], Tensor]
x = torch.randn(6, 4, dtype=torch.float64)


def slots(x: Tensor) -> Tensor:
    """Places of rows in the queues of their choices, as GShard and Switch count them."""
    chosen = F.one_hot(x.argmax(-1), 4).to(x.dtype)
    place = ((chosen.cumsum(0) - 1) * chosen).sum(-1).long()
    return F.one_hot(place.clamp(max=2), 3).to(x.dtype) @ x[:3]


def shifted(x: Tensor) -> Tensor:
    kept = torch.where(x[:, 0] > 0, 1.0, 0.0)
    place = torch.maximum(kept.flip(0), torch.cat((kept[1:], kept[:1]))) * 2 + 1
    return x.T[:, place.view(2, 3).t().reshape(6).long()]


def looked_up(x: Tensor) -> Tensor:
    order = torch.tensor([2.0, 0.0, 1.0])
    return x[order[(x[:, 0] > 0).long()].long()]


@pytest.mark.parametrize("function", [slots, shifted, looked_up])
def test_counts_in_floats_are_the_integers_that_they_are(
    function: Callable[[Tensor], Tensor], agrees
) -> None:
    agrees(lambda x: function(x).to(x.dtype), x)


@pytest.mark.parametrize(
    "count",
    [
        lambda x: x[:, 0],
        lambda x: (x[:, 0] > 0).double() / 2,
        lambda x: (x[:, 0] > 0).double() * 1.5,
        lambda x: (x[:, 0] > 0).double() + x[:, 1],
        lambda x: (x[:, 0] > 0).double().mean(0, keepdim=True),
    ],
)
def test_what_may_be_no_whole_number_is_not_made_an_integer(
    count: Callable[[Tensor], Tensor], lowered
) -> None:
    with pytest.raises(CaptureError, match="rounds and has no exact meaning"):
        lowered(lambda x: x * count(x).long().sum(), x)
