"""Drawn numbers come out of where they are kept as they went in, and take no more bytes than they need."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.lowering.kept_numbers import SMALL, KeptNumbers, narrowed


@pytest.mark.parametrize(
    ("low", "high", "size"),
    [(0, 255, 1), (-1, 255, 2), (0, 256, 2), (-40000, 5, 4), (0, 1 << 31, 8), (-(1 << 62), 0, 8)],
)
def test_integers_are_kept_in_the_narrowest_type_that_holds_them(low: int, high: int, size: int) -> None:
    x = torch.full((SMALL,), low)
    x[7], x[9] = high, (low + high) // 2
    assert narrowed(x).element_size() == size
    kept = KeptNumbers()
    kept["a"] = (x, x.flip(0))
    assert kept.bytes == 2 * SMALL * size
    back = kept["a"]
    assert all(b.dtype == torch.int64 for b in back)
    assert torch.equal(back[0], x) and torch.equal(back[1], x.flip(0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32, torch.float64])
def test_what_is_no_long_integer_stays_what_it_is(dtype: torch.dtype) -> None:
    x = torch.arange(SMALL).remainder(2).to(dtype)
    kept = KeptNumbers()
    kept["a"] = (x,)
    (back,) = kept["a"]
    assert back.dtype == dtype and torch.equal(back, x)
    assert kept.bytes == x.numel() * x.element_size()


def test_what_is_let_go_takes_nothing() -> None:
    kept = KeptNumbers()
    assert not kept
    for name in "abc":
        kept[name] = (torch.zeros(3, dtype=torch.int64),)
    assert kept.bytes == 72
    kept["a"] = (torch.zeros(1, dtype=torch.int64),)
    kept.only({"a", "b"})
    assert kept.bytes == 32 and "c" not in kept and len(kept) == 2
    empty = torch.zeros((0, SMALL), dtype=torch.int64)
    kept["b"] = (empty,)
    assert kept["b"][0].shape == empty.shape and kept.bytes == 8
