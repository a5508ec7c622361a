"""Numbers in Python as the numbers they stand for, where floating point has several for one.

``1 / math.sqrt(d)``, ``d ** -0.5`` and a division by ``math.sqrt(d)`` are one scale of an attention, and not
always one double; a number in a tensor of float32 is another double than the same number in Python.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch

#: Roots of larger numbers are taken as they are printed.
_LARGEST = 1 << 20
#: Units in the last place by which ways to compute a root differ.
_ULPS = 2
#: Significant digits of a number that nobody wrote as it is.
_COMPUTED = 15
#: Significant decimal digits that tell all numbers of a type apart.
_DIGITS = {torch.float32: 9, torch.float16: 5, torch.bfloat16: 4}


def rooted(value: float) -> Fraction:
    """The decimal that ``repr`` prints; of what is a root of a whole number, or one divided by it, but for
    rounding: the inverse root as ``1 / math.sqrt`` gives it, and what its inverse is."""
    printed, sign = repr(value), -1 if value < 0 else 1
    if len(printed.lstrip("-0.").replace(".", "").partition("e")[0]) >= _COMPUTED and math.isfinite(value):
        for inverse in (True, False):
            square = 1 / (value * value) if inverse else value * value
            whole = round(square) if 1.5 < square < _LARGEST else 0
            if whole and math.isqrt(whole) ** 2 != whole:
                root = 1 / math.sqrt(whole) if inverse else math.sqrt(whole)
                if abs(abs(value) - root) <= _ULPS * math.ulp(root):
                    exact = Fraction(repr(1 / math.sqrt(whole)))
                    return sign * (exact if inverse else 1 / exact)
    return Fraction(printed)


def shortest(value: float, dtype: torch.dtype) -> float:
    """The number with the fewest decimal digits that is this element in a tensor of that type."""
    if dtype not in _DIGITS or not math.isfinite(value):
        return value
    for digits in range(1, _DIGITS[dtype] + 1):
        found = float(f"{value:.{digits}g}")
        if torch.tensor(found, dtype=dtype).item() == value:
            return found
    return value
