"""What is evidently positive needs no case for zero, and what is not negative no magnitude."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from certificates.plan.program import Program

from .conftest import agree

Step = Callable[[Tensor], Tensor]


def _numbers() -> Tensor:
    return torch.tensor([[0.3, -1.2, 0.0, 2.5], [1.1, 0.4, -0.7, 0.2]], dtype=torch.float64)


def _count(program: Program, name: str) -> int:
    return sum(op.name == name for op in program.ops)


def _entropy(p: Tensor) -> Tensor:
    return torch.special.xlogy(p, p.detach() + 1)


@pytest.mark.parametrize(
    "of",
    [
        lambda x: x.softmax(-1),
        lambda x: x.sigmoid().mean(-1),
        lambda x: (x.exp() + 1).sqrt()[:, :2],
        lambda x: torch.where(x > 0, x.exp(), torch.full_like(x, 0.5)),
    ],
)
def test_where_a_number_is_positive_no_case_is_left_for_zero(of: Step) -> None:
    assert _count(agree(lambda x: _entropy(of(x)), _numbers()), "compare") <= _count(
        agree(of, _numbers()), "compare"
    )


@pytest.mark.parametrize(
    "of",
    [
        lambda x: x,
        torch.abs,
        lambda x: F.softmax(x.masked_fill(x > 1, -torch.inf), -1),
        lambda x: x[:, :0].exp().sum(-1),
        lambda x: x.exp() * 0,
        lambda x: x.exp() - 1,
        lambda x: torch.where(x > 0, x.exp(), x.abs()),
    ],
)
def test_what_may_be_zero_keeps_its_case(of: Step) -> None:
    """With 0 * log(0) in its place, a target that is masked would be no number."""
    more = _count(agree(lambda x: _entropy(of(x)), _numbers()), "compare")
    assert more == _count(agree(of, _numbers()), "compare") + 1


@pytest.mark.parametrize(
    ("norm", "magnitudes"),
    [
        (lambda x: torch.linalg.vector_norm(torch.stack([x.abs().amax(), x.abs().mean()]), float("inf")), 1),
        (lambda x: (x * x).sum(-1).abs(), 0),
        (lambda x: torch.linalg.vector_norm(x.softmax(-1), 1), 0),
        (lambda x: (x.abs() / x.exp()).abs(), 1),
        (lambda x: (x.exp() / (x.abs() + 1)).abs(), 2),
        (lambda x: (x * (x + 1)).abs(), 1),
        (lambda x: (x + x).abs(), 1),
        (lambda x: (torch.zeros_like(x) + x.abs()).abs(), 1),
        (lambda x: (torch.full_like(x, -3) + x.abs()).abs(), 2),
        (lambda x: torch.maximum(x.abs(), x * x).T.abs(), 1),
        (lambda x: (x.abs() * x.exp()).abs(), 1),
        (lambda x: torch.where(x > 0, torch.inf, x.abs()).abs().clamp(max=9), 2),
        (lambda x: (x.abs() - 1).abs(), 2),
        (lambda x: torch.where(x > 1, -1.0, x.abs()).abs(), 2),
    ],
)
def test_what_is_not_negative_is_its_own_magnitude(norm: Step, magnitudes: int) -> None:
    assert _count(agree(norm, _numbers()), "abs") == magnitudes
