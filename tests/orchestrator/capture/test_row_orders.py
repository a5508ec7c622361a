"""Orders of rows: which reads and writes are packed ops, and which are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from orchestrator.capture.errors import CaptureError

from .conftest import lower

Rows = Callable[[Tensor, Tensor, Tensor], Tensor]


def ops(function: Rows, tokens: int = 6) -> list[str]:
    """Packed ops of a function of order, tokens and scores."""

    def run(scores: Tensor, x: Tensor) -> Tensor:
        best, ids = torch.topk(scores, 2)
        return function(torch.argsort(ids.view(-1), stable=True), x, best.view(-1))

    found = [d.name for d in lower(run, torch.randn(tokens, 4), torch.randn(tokens, 3)).drafts]
    return [n for n in found if n in ("sort_rows", "pack", "unpack")]


@pytest.mark.parametrize(
    "function",
    [
        lambda order, x, _: torch.zeros(12, 3).index_put((order,), x[order // 2]),
        lambda order, x, _: x[order // 2][order.argsort()],
        lambda order, x, _: torch.zeros(6, 3).index_add(0, order // 2, x[order // 2]),
        lambda order, x, _: torch.zeros(6, 3).index_add(0, order // 2, x[order // 2], alpha=-2),
        lambda order, x, _: x.repeat_interleave(2, 0)[order][order.argsort()],
        lambda order, x, s: s[order][torch.argsort(order)],
    ],
)
def test_rows_are_packed_and_unpacked(function: Rows) -> None:
    assert ops(function) == ["sort_rows", "pack", "unpack"]


def test_what_has_the_inverse_order_is_packed_by_a_write() -> None:
    def run(order: Tensor, x: Tensor, s: Tensor) -> Tensor:
        rows = torch.zeros(12).index_put((order.argsort(),), s)
        return rows[order.argsort()]

    assert ops(run) == ["sort_rows", "pack", "unpack"]


def test_a_number_that_is_always_the_same_needs_no_order() -> None:
    assert ops(lambda order, x, _: x[(order // 2)[order.argsort()]]) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda order, x, _: x[order // 2][order],
        lambda order, x, _: x[order // 4],
        lambda order, x, _: x[(order // 2).flip(0)],
        lambda order, x, _: x[order.cumsum(0) // 12],
        lambda order, x, _: torch.zeros(12, 3).index_put((order.flip(0),), x[order // 2]),
        lambda order, x, _: torch.zeros(6, 3).index_add(0, order // 2, x[order // 2][order.argsort()]),
    ],
)
def test_numbers_of_no_order_are_refused(function: Rows) -> None:
    with pytest.raises(CaptureError, match=r"no known order of rows|floor_divide"):
        ops(function)


def test_two_sorts_that_need_not_agree_are_refused() -> None:
    def run(scores: Tensor, x: Tensor) -> Tensor:
        keys = torch.topk(scores, 1).indices.flatten()
        return x[torch.argsort(keys)] + x[torch.argsort(keys)]

    with pytest.raises(CaptureError, match="two sorts of the same keys"):
        lower(run, torch.randn(6, 4), torch.randn(6, 3))


def test_of_too_few_rows_no_order_is_told() -> None:
    """Plain ops say what the sort does, counted; a look-up by them is no packed op."""
    assert ops(lambda order, x, s: s[order], tokens=1) == []


def test_rows_of_two_orders_do_not_meet() -> None:
    def run(scores: Tensor, x: Tensor) -> Tensor:
        one, other = (torch.topk(s, 1).indices.flatten().argsort() for s in (scores, scores * 2))
        return (x[one] + x[other])[one.argsort()]

    with pytest.raises(CaptureError, match="rows of two orders"):
        lower(run, torch.randn(6, 4), torch.randn(6, 3))
