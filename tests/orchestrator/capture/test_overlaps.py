"""Ops that write what they read: element by element they may, sums and choices may not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.capture.errors import AliasingError

A = torch.arange(9, dtype=torch.float64).reshape(3, 3) / 7
BATCH = A.clone()[None]
x = torch.eye(3, dtype=torch.float64) + A


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.addmm_(A, a),
        lambda a: a.addmm_(a, A),
        lambda a: torch.mm(A, a, out=a),
        lambda a: torch.matmul(a, A, out=a),
        lambda a: torch.addmm(a, A, a, out=a),
        lambda a: torch.sort(a, 0, out=(a, torch.empty(3, 3, dtype=torch.int64))),
        lambda a: a.view(1, 3, 3).baddbmm_(BATCH, a.view(1, 3, 3)),
        lambda a: a.index_copy_(0, torch.tensor([2, 0, 1]), a),
        lambda a: a.scatter_(0, torch.zeros(3, 3, dtype=torch.int64), a),
    ],
)
def test_what_is_summed_or_moved_is_not_written_on_the_way(agrees: Any, write: Any) -> None:
    """BLAS gives neither the old nor the new product: a Newton-Schulz step written so trains on noise."""

    def step(a: torch.Tensor) -> torch.Tensor:
        a = a.clone()
        write(a)
        return a

    with pytest.raises(AliasingError, match=r"while it reads it|that it also reads elsewhere"):
        agrees(step, x)


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.addmm_(A, A),
        lambda a: torch.addmm(a, A, A, out=a),
        lambda a: a.mul_(a),
        lambda a: a.copy_(a),
        lambda a: a.addcmul_(a, a),
        lambda a: torch.add(a, a, out=a),
        lambda a: a.cumsum_(0),
        lambda a: torch.cumsum(a, 0, out=a),
        lambda a: a.addmm_(A, a.clone()),
        lambda a: a.index_add_(0, torch.arange(3), a.clone()),
    ],
)
def test_what_goes_element_by_element_may_write_where_it_reads(agrees: Any, write: Any) -> None:
    def step(a: torch.Tensor) -> torch.Tensor:
        a = a.clone()
        write(a)
        return a

    agrees(step, x)
