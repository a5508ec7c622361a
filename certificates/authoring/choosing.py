"""The ``k`` largest of a row, written with ops of the format: nobody has to trust an op for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FormatError
from .build import ProgramBuilder, Value


@dataclass(frozen=True)
class Chosen:
    """What was chosen of rows of ``n`` numbers, the largest first.

    ``mask`` : i1[..., k, n] has one true element per row, ``ids`` : i64[..., k] its number, ``values`` :
    [..., k] the number that stands there.
    """

    values: Value
    ids: Value
    mask: Value


def top_k(b: ProgramBuilder, x: Value, k: int, allowed: Value | None = None) -> Chosen:
    """The ``k`` largest along the last dimension of ``x``; of equal numbers the one that stands first.

    With ``allowed`` : i1 of the shape of ``x``, what is not allowed comes after all that is, as if it were
    minus infinity. A row has ``n * n`` comparisons: an element is chosen as number ``t`` if ``t`` elements
    come before it. That equal numbers are taken in order is part of the program, on each side;
    ``torch.topk`` does not promise it.
    """
    if not x.shape or not 1 <= k <= x.shape[-1]:
        raise FormatError(f"{x.type} has no {k} largest along its last dimension")
    if allowed is not None and (allowed.shape != x.shape or allowed.type.sort != "Bool"):
        raise FormatError(f"{allowed.type} does not say what of {x.type} is allowed")
    last, n = len(x.shape) - 1, x.shape[-1]
    square, lead = (*x.shape, n), tuple(range(last))

    def pairs(v: Value) -> tuple[Value, Value]:
        """Along dimension ``last`` the element whose place is asked, along the one after it all others."""
        return b.broadcast(v, square, (*lead, last)), b.broadcast(v, square, (*lead, last + 1))

    one, other = pairs(x)
    here, there = b.iota(f"i64[{n},{n}]", 0), b.iota(f"i64[{n},{n}]", 1)
    earlier, later = (
        b.broadcast(b.compare(there, here, direction), square, (last, last + 1)) for direction in ("LT", "GT")
    )
    never = b.constant(False, earlier.type)
    # No element is compared with itself: enclosures of a witness could not tell.
    greater = b.select(later, b.compare(other, one, "GT"), never)
    before = b.select(earlier, b.compare(other, one, "GE"), greater)
    if allowed is not None:
        mine, others = pairs(allowed)
        before = b.select(mine, b.logical_and(others, before), b.logical_or(others, earlier))
    place = b.reduce(b.convert(before, "i64"), (last + 1,))
    shape = (*x.shape[:-1], k, n)
    number, column = b.iota(f"i64[{k}]", 0), b.iota(f"i64[{n}]", 0)
    mask = b.compare(b.broadcast(place, shape, (*lead, last + 1)), b.broadcast(number, shape, (last,)), "EQ")
    wide, column = b.broadcast(x, shape, (*lead, last + 1)), b.broadcast(column, shape, (last + 1,))
    # One of each row is chosen: its number is the greatest of these, and evidently in range.
    values, ids = (
        b.reduce(b.select(mask, v, b.constant(0, v.type)), (last + 1,), kind)
        for v, kind in ((wide, "add"), (column, "max"))
    )
    return Chosen(values, ids, mask)
