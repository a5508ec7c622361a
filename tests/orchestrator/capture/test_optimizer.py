"""Fused pointwise ops of optimizers."""

from __future__ import annotations

import pytest
import torch

x, y, z = (torch.rand(3, 2, dtype=torch.float64) + 0.5 for _ in range(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: torch.lerp(a, b, 0.25) + torch.lerp(a, b, c),
        lambda a, b, c: torch.addcmul(a, b, c, value=-0.5) + torch.addcmul(a, b, c),
        lambda a, b, c: torch.addcdiv(a, b, c, value=2) + torch.addcdiv(a[0], b, c),
        lambda a, b, c: a.clone().lerp_(b, 0.9).addcmul_(b, c, value=0.1).addcdiv_(b, c, value=-1),
    ],
)
def test_fused_ops(agrees, function) -> None:
    agrees(function, x, y, z)


def test_a_factor_of_one_is_no_op(lowered) -> None:
    names = [d.name for d in lowered(lambda a, b, c: torch.addcmul(a, b, c), x, y, z).drafts]
    assert names == ["multiply", "add"]
