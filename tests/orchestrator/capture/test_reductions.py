"""Sums, extremes, norms and softmax."""

from __future__ import annotations

import pytest
import torch

x = torch.randn(3, 4, 2, dtype=torch.float64)


@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, float("inf"), float("-inf")])
def test_norms_of_all_orders(agrees, order) -> None:
    agrees(
        lambda a: (torch.linalg.vector_norm(a, order), torch.linalg.vector_norm(a, order, (0, 2), True)), x
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.sum() + a.mean((0, -1)).sum(),
        lambda a: a.amax(1) - a.amin(1),
        lambda a: (a > 0).any(0) | (a > -1).all(0),
        lambda a: torch.softmax(a, 1) + torch.log_softmax(a, 0),
        lambda a: torch.logsumexp(a, (0, 2)),
    ],
)
def test_reductions(agrees, function) -> None:
    agrees(function, x)


def test_the_first_of_equal_elements_is_named(agrees) -> None:
    ties = torch.tensor([[1, 3, 3], [2, 2, 0]])
    agrees(lambda a: (a.argmax(1), a.argmin(1), a.argmax(), *a.max(0), *a.min(1, keepdim=True)), ties)


def test_a_mean_is_a_sum_divided_by_the_exact_count(lowered) -> None:
    drafts = lowered(lambda a: a.mean((0, 1)), x).drafts
    assert [d.name for d in drafts] == ["reduce", "constant", "divide"] and drafts[1].attr("value") == "12"
