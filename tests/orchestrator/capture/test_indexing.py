"""Look-ups, joins, padding and writes of views."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import LoweringError

x = torch.randn(3, 4, dtype=torch.float64)
index = torch.tensor([[1, 0], [2, 2], [0, 1]])


@pytest.mark.parametrize(
    "function",
    [
        lambda a, i: a.gather(0, i) + a.gather(1, i),
        lambda a, i: a[i] + F.embedding(i, a),
        lambda a, i: a.index_select(1, i[0]),
        lambda a, i: torch.cat([a, a[:, :1] * 2], 1),
        lambda a, i: torch.stack([a, a + 1], -1),
        lambda a, i: F.pad(a, (1, -2, -1, 3), value=0.5),
        lambda a, i: a.slice_scatter(a[:, :2], 1, 0, 4, 2),
        lambda a, i: a.select_scatter(a[0] * 2, 0, -1),
        lambda a, i: a.index_put((i[:, 0],), a * 2, accumulate=True),
        lambda a, i: a.masked_fill(a > 0, 3.0).index_put((a < 0,), torch.zeros((), dtype=torch.float64)),
    ],
)
def test_places(agrees, function) -> None:
    agrees(function, x, index)


def test_rows_of_a_padding_index_get_no_gradient(agrees) -> None:
    def step(a, i):
        a = a.detach().requires_grad_()
        return torch.autograd.grad(F.embedding(i, a, padding_idx=2).square().sum(), a)

    agrees(step, x, index)


def test_a_gradient_that_is_scaled_by_frequency_is_refused(lowered) -> None:
    def step(a, i):
        a = a.detach().requires_grad_()
        return torch.autograd.grad(F.embedding(i, a, scale_grad_by_freq=True).sum(), a)

    with pytest.raises(LoweringError, match="scaled by frequency"):
        lowered(step, x, index)


def test_a_mask_names_no_order_of_values(lowered) -> None:
    with pytest.raises(LoweringError, match="in the order of the true elements"):
        lowered(lambda a, i: a.index_put((a > 0,), a[0]), x, index)
