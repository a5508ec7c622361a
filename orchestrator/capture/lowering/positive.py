"""Which tensors are evidently positive, or not negative, by how they are made: softmax, say, or a norm."""

from __future__ import annotations

import re
from fractions import Fraction

from ..builder import Builder, Draft, Value
from .infinities import reached

#: What these make of positive numbers is positive, and of others that are not negative not negative.
_KEEP = frozenset(
    (
        *("add", "multiply", "divide", "sqrt", "maximum", "minimum", "reduce", "all_reduce", "all_gather"),
        *("reshape", "transpose", "broadcast_in_dim", "slice", "concatenate", "select"),
    )
)


def positive(b: Builder, x: Value) -> bool:
    """Is every element a positive real number? An exponential is, but of what may be infinite."""
    return _all(b, x.name, strict=True)


def not_negative(b: Builder, x: Value) -> bool:
    """Is every element a real number of at least zero?"""
    return _all(b, x.name, strict=False)


def magnitude(b: Builder, x: Value) -> Value:
    """``|x|``, which is ``x`` where nothing is negative, as in the largest of the largest magnitudes."""
    return x if x.type.sort == "Real" and not_negative(b, x) else b.unary("abs", x)


def _all(b: Builder, name: str, *, strict: bool) -> bool:
    waiting, seen = [name], {name}
    while waiting:
        draft = b.drafts.get(waiting.pop())
        if draft is None:
            return False
        if not _begins(b, draft, strict):
            if draft.name not in _KEEP or (strict and 0 in draft.type.shape):  # a sum of nothing is zero
                return False
            if draft.name == "divide" and not _all(b, draft.ins[1], strict=True):
                return False
            read = {"select": draft.ins[1:], "divide": draft.ins[:1]}.get(draft.name, draft.ins)
            new = [v for v in read if v not in seen]
            waiting += new
            seen.update(new)
    return True


def _begins(b: Builder, draft: Draft, strict: bool) -> bool:
    """Is this so by the op alone?"""
    if draft.name in ("exponential", "logistic"):
        return not reached(b, draft.ins[0])
    if draft.name == "constant":
        value = draft.attr("value")  # a real number is written as a fraction, an infinity in letters
        number = Fraction(value) if isinstance(value, str) and re.fullmatch("[0-9/]+", value) else -1
        return number > 0 if strict else number >= 0
    return not strict and (draft.name == "abs" or (draft.name == "multiply" and len({*draft.ins}) == 1))
