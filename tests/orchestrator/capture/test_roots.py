"""One number is one constant, however floating point came to it."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from orchestrator.capture.roots import meant, shortest


@pytest.mark.parametrize("whole", [2, 3, 8, 32, 48, 80, 96, 128, 192, 320, 16384 * 2, 1 << 19])
def test_a_root_is_one_number_however_it_is_computed(whole: int) -> None:
    inverse = meant(1 / math.sqrt(whole))
    assert inverse == Fraction(repr(1 / math.sqrt(whole)))
    assert meant(whole**-0.5) == meant(math.sqrt(1 / whole)) == inverse
    assert meant(math.sqrt(whole)) == meant(whole**0.5) == 1 / inverse
    assert meant(-(whole**-0.5)) == -inverse


#: What somebody may have written, what is no quotient of small numbers, and what is too small or too large.
OTHERS = (
    *(
        0.1,
        0.5,
        4.0,
        0.25,
        0.333,
        0.33333333333333,
        1e-5,
        1.41421356,
        0.7978845608028654,
        math.pi,
        3.5e300,
        0.0,
    ),
    *(123456.78901234567, 1 / ((1 << 20) + 7), 1e-300 / 3, 1e300 / 3, 0.09999999999999995),
    *(0.0999, 0.09999999999999, 0.09999999999999996, 1 - 0.12345678901234, 1e-20 / 7, 0.30000000000000016),
)


@pytest.mark.parametrize("value", OTHERS)
def test_other_numbers_are_what_is_printed(value: float) -> None:
    assert meant(value) == Fraction(repr(value))


#: Values, and the quotients that they are.
QUOTIENTS = (
    *((1 / 3, 1, 3), (2 / 3, 2, 3), (-1 / 12, -1, 12), (7 / 6, 7, 6), (1 / 999_983, 1, 999_983)),
    *((1048575 / 7, 1048575, 7), (1 / 3 / 7, 1, 21), (0.1 + 0.2, 3, 10), (1 / 0.9, 10, 9)),
)


@pytest.mark.parametrize(("value", "above", "below"), QUOTIENTS)
def test_a_quotient_is_one_number_however_it_is_computed(value: float, above: int, below: int) -> None:
    """``loss * (1 / n)`` is ``loss / n``; a variance times ``n / (n - 1)`` is unbiased."""
    assert meant(value) == Fraction(above, below)


#: Decimals and quotients, and what they leave of one.
TAKEN = (0.9, 0.99, 0.999, 0.9999, 0.95, 0.995, 0.99999, 0.7, 0.5, 0.1)


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_decimal_leaves_of_one_is_that_rest(taken: float, sign: int) -> None:
    """``m.mul_(0.9).add_(g, alpha=1 - 0.9)`` is ``m.lerp_(g, 0.1)``."""
    assert meant(sign * (1 - taken)) == sign * (1 - Fraction(repr(taken)))


def test_what_a_power_leaves_of_one_is_that_rest() -> None:
    """The correction of Adam's third step, computed by Python."""
    assert meant(1 - 0.9**3) == 1 - Fraction(9, 10) ** 3
    assert repr(0.9**3) == "0.7290000000000001"


@pytest.mark.parametrize("factor", [1 + 1e-14, 1 - 1e-14, 1 + 1e-9])
def test_what_is_near_a_quotient_is_none(factor: float) -> None:
    assert meant(factor / 3) == Fraction(repr(factor / 3)) != Fraction(1, 3)


@pytest.mark.parametrize("factor", [1 + 1e-14, 1 - 1e-14, 1 + 1e-9])
def test_what_is_near_a_root_is_none(factor: float) -> None:
    """Roots that are computed in several ways differ by rounding alone; a wrong number differs by more."""
    value = factor / math.sqrt(8)
    assert meant(value) == Fraction(repr(value)) != meant(1 / math.sqrt(8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [0.1, 1e-3, 0.9, 2.5, -0.3, 0.0, math.inf])
def test_an_element_of_a_tensor_is_the_number_that_was_put_there(value: float, dtype: torch.dtype) -> None:
    assert shortest(torch.tensor(value, dtype=dtype).item(), dtype) == value


def test_elements_that_differ_are_told_apart() -> None:
    one = torch.tensor(0.1)
    next_one = torch.nextafter(one, torch.tensor(1.0))
    assert shortest(one.item(), torch.float32) != shortest(next_one.item(), torch.float32)
    assert torch.tensor(shortest(next_one.item(), torch.float32)) == next_one
