"""Writes and sums along one dimension at places that an index names."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import LoweringError

x, source = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
index = torch.tensor([[0, 2, 2], [1, 1, 0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda a, s, i: a.scatter_add(0, i, s),
        lambda a, s, i: a.scatter_add(1, i, s),
        lambda a, s, i: a.scatter(1, i, 7.0),
        lambda a, s, i: a.scatter(1, i[:, :1], s),
        lambda a, s, i: a.scatter(1, i, torch.full((3, 4), 2.0, dtype=torch.float64)),
        lambda a, s, i: a.scatter_reduce(1, i, s, "amax"),
        lambda a, s, i: a.index_add(0, i[0], s, alpha=-2),
        lambda a, s, i: a.index_fill(1, i[1], 0.5),
        lambda a, s, i: a.clone().scatter_add_(1, i, s),
    ],
)
def test_scatters(agrees, function) -> None:
    """The index is smaller than the tensor, entries meet, and the source is larger than the index."""
    agrees(function, x, source, index)


def test_one_entry_of_a_row_is_compared_alone(lowered) -> None:
    """One-hot rows by ``scatter``: any of one comparison is that comparison, which relates to others."""
    program = lowered(lambda a, i: torch.zeros_like(a).scatter(1, i[:, :1], 1.0), x, index)
    assert "reduce" not in {d.name for d in program.drafts}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, s, i: a.scatter(1, i, s), "two may be equal"),
        (lambda a, s, i: a.scatter_reduce(1, i, s, "mean"), "reduce='mean'"),
        (lambda a, s, i: a.scatter_reduce(1, i, s, "sum", include_self=False), "include_self=False"),
        (lambda a, s, i: a.scatter(1, i, s, reduce="multiply"), "reduce='multiply'"),
        (lambda a, s, i: i.scatter_reduce(1, i, i, "amax"), "the max of integers"),
    ],
)
def test_what_has_no_one_meaning_is_refused(lowered, function, reason) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(function, x, source, index)


def test_the_gradient_of_a_largest_element_goes_to_its_first_place(agrees) -> None:
    def step(a):
        a = a.detach().requires_grad_()
        return torch.autograd.grad((a.max(1).values * torch.arange(3)).sum(), a)

    agrees(step, torch.tensor([[1.0, 3, 3], [2, 2, 2], [0, 1, 0]], dtype=torch.float64))
