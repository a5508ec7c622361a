"""One number is one constant, however floating point came to it."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from orchestrator.capture.roots import rooted, shortest


@pytest.mark.parametrize("whole", [2, 3, 8, 32, 48, 80, 96, 128, 192, 320, 16384 * 2, 1 << 19])
def test_a_root_is_one_number_however_it_is_computed(whole: int) -> None:
    inverse = rooted(1 / math.sqrt(whole))
    assert inverse == Fraction(repr(1 / math.sqrt(whole)))
    assert rooted(whole**-0.5) == rooted(math.sqrt(1 / whole)) == inverse
    assert rooted(math.sqrt(whole)) == rooted(whole**0.5) == 1 / inverse
    assert rooted(-(whole**-0.5)) == -inverse


@pytest.mark.parametrize(
    "value",
    [0.1, 0.5, 4.0, 0.25, 1 / 3, 0.1 + 0.2, 2 / 3, 1e-5, 1.41421356, 0.7978845608028654, 3.5e300, 0.0],
)
def test_other_numbers_are_what_is_printed(value: float) -> None:
    assert rooted(value) == Fraction(repr(value))


@pytest.mark.parametrize("factor", [1 + 1e-14, 1 - 1e-14, 1 + 1e-9])
def test_what_is_near_a_root_is_none(factor: float) -> None:
    """Roots that are computed in several ways differ by rounding alone; a wrong number differs by more."""
    value = factor / math.sqrt(8)
    assert rooted(value) == Fraction(repr(value)) != rooted(1 / math.sqrt(8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [0.1, 1e-3, 0.9, 2.5, -0.3, 0.0, math.inf])
def test_an_element_of_a_tensor_is_the_number_that_was_put_there(value: float, dtype: torch.dtype) -> None:
    assert shortest(torch.tensor(value, dtype=dtype).item(), dtype) == value


def test_elements_that_differ_are_told_apart() -> None:
    one = torch.tensor(0.1)
    next_one = torch.nextafter(one, torch.tensor(1.0))
    assert shortest(one.item(), torch.float32) != shortest(next_one.item(), torch.float32)
    assert torch.tensor(shortest(next_one.item(), torch.float32)) == next_one
