"""Elements in another order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import LoweringError

x = torch.randn(3, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.flip(0, -1),
        lambda a: a.roll((1, -5), (0, 1)) + a.roll(3),
        lambda a: a.roll(4, 1),
        lambda a: a.repeat(2, 1, 3),
        lambda a: a.cumsum(0) + a.cumsum(-1),
        lambda a: (a > 0).cumsum(1),
        lambda a: a.sum().cumsum(0),
        lambda a: F.interpolate(a[None], scale_factor=3),
    ],
)
def test_moves(agrees, function) -> None:
    agrees(function, x)


def test_a_roll_by_a_whole_turn_is_nothing(lowered) -> None:
    assert [d.name for d in lowered(lambda a: a.roll(4, 1), x).drafts] == []


def test_an_image_that_grows_by_no_whole_number_is_refused(lowered) -> None:
    with pytest.raises(LoweringError, match=r"\[4\] made one of \[6\], which is no multiple"):
        lowered(lambda a: F.interpolate(a[None], size=6), x)
