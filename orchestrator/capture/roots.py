"""Numbers in Python as the numbers they stand for, where floating point has several for one.

``1 / math.sqrt(d)``, ``d ** -0.5`` and a division by ``math.sqrt(d)`` are one scale of an attention, and not
always one double; ``loss * (1 / n)`` is a mean over ``n``, whose double is near ``1 / n``; a number in a
tensor of float32 is another double than the same number in Python.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch

#: Roots and quotients of larger numbers are taken as they are printed.
_LARGEST = 1 << 20
#: Units in the last place by which ways to compute a root differ.
_ULPS = 2
#: Significant digits of a number that nobody wrote as it is.
_COMPUTED = 15
#: Significant digits of a number that somebody wrote.
_WRITTEN = 10
#: Significant decimal digits that tell all numbers of a type apart.
_DIGITS = {torch.float32: 9, torch.float16: 5, torch.bfloat16: 4}


def meant(value: float) -> Fraction:
    """The decimal that ``repr`` prints. What is a root of a whole number but for rounding, or one divided by
    it, is the inverse root as ``1 / math.sqrt`` gives it, and what its inverse is; what is a quotient of
    whole numbers but for rounding is that quotient; what a short decimal, or a quotient, leaves of one is
    what it leaves."""
    printed = repr(value)
    if _digits(printed) < _COMPUTED or not math.isfinite(value):
        return Fraction(printed)
    size = abs(value)
    found = _root(size) or _quotient(size) or _rest_of_one(size) or Fraction(printed.lstrip("-"))
    return -found if value < 0 else found


def _digits(printed: str) -> int:
    return len(printed.lstrip("-0.").replace(".", "").partition("e")[0])


def _root(size: float) -> Fraction | None:
    for inverse in (True, False):
        length = 1 / size if inverse else size
        square = length * length
        whole = round(square) if 1.5 < square < _LARGEST else 0
        if whole and math.isqrt(whole) ** 2 != whole:
            root = 1 / math.sqrt(whole) if inverse else math.sqrt(whole)
            if abs(size - root) <= _ULPS * math.ulp(root):
                exact = Fraction(repr(1 / math.sqrt(whole)))
                return exact if inverse else 1 / exact
    return None


def _quotient(size: float) -> Fraction | None:
    exact = Fraction(size)
    near = min(exact, 1 / exact).limit_denominator(_LARGEST)
    if not near:
        return None
    found = near if size < 1 else 1 / near
    return found if abs(found - exact) <= Fraction(math.ulp(size)) else None


def _rest_of_one(size: float) -> Fraction | None:
    """``1 - 0.9`` is no rounded tenth: it was rounded beside one."""
    taken = 1 - size
    if not 0.5 <= taken < 1 or Fraction(taken) != 1 - Fraction(size):
        return None
    found = Fraction(repr(taken)) if _digits(repr(taken)) <= _WRITTEN else _quotient(taken)
    return 1 - found if found else None


def shortest(value: float, dtype: torch.dtype) -> float:
    """The number with the fewest decimal digits that is this element in a tensor of that type."""
    if dtype not in _DIGITS or not math.isfinite(value):
        return value
    for digits in range(1, _DIGITS[dtype] + 1):
        found = float(f"{value:.{digits}g}")
        if torch.tensor(found, dtype=dtype).item() == value:
            return found
    return value
