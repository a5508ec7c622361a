"""Counts and grouped products of rows; with several ranks see ``tests/test_captured_packed.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from orchestrator.capture.errors import CaptureError

from .conftest import lower


def product(ends: Any = None, packed: bool = True) -> list[str]:
    def run(scores: Tensor, x: Tensor, w: Tensor) -> Tensor:
        keys = torch.topk(scores, 1).indices.flatten()
        order = torch.argsort(keys, stable=True)
        counts = torch.bincount(keys, minlength=4)
        offs = (counts if ends is None else ends(counts)).cumsum(0).to(torch.int32)
        rows = torch._grouped_mm(x[order] if packed else x, w, offs=offs)
        return rows[order.argsort()]

    x, w = torch.randn(9, 8).bfloat16(), torch.randn(4, 8, 16).bfloat16()
    return [d.name for d in lower(run, torch.randn(9, 4), x, w).drafts]


def test_a_grouped_product_is_one_by_key() -> None:
    assert product()[-4:] == ["sort_rows", "pack", "ragged_dot", "unpack"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ends": lambda counts: counts.flip(0)}, "groups are not the rows of each key"),
        ({"ends": lambda counts: counts + 1}, "groups are not the rows of each key"),
        ({"packed": False}, "no sort of the keys has packed"),
    ],
)
def test_other_groups_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        product(**options)


def test_counts_of_more_keys_than_there_are_places_for_are_refused() -> None:
    def run(scores: Tensor) -> Tensor:
        return torch.bincount(torch.topk(scores, 1).indices.flatten(), minlength=3)

    with pytest.raises(CaptureError, match="not known to be below their number"):
        lower(run, torch.randn(9, 4))


def test_a_histogram_with_other_bins_is_refused() -> None:
    def run(scores: Tensor) -> Tensor:
        return torch.histc(torch.topk(scores, 1).indices.flatten().float(), 4, 0, 5)

    with pytest.raises(CaptureError, match="other than of keys"):
        lower(run, torch.randn(9, 4))
