"""Values that are one value: made in the same way of the same values."""

from __future__ import annotations

from ..builder import Builder, Value


def same(b: Builder, x: Value, y: Value, depth: int = 12) -> bool:
    """Are they made in the same way of the same values? Literals of integers are anew each time."""
    mine, theirs = b.draft(x), b.draft(y)
    if x.name == y.name or mine is None or theirs is None or not depth:
        return x.name == y.name
    if (mine.name, mine.type, mine.attrs) != (theirs.name, theirs.type, theirs.attrs) or mine.meeting:
        return False
    pairs = [(b.operand(x, i), b.operand(y, i)) for i in range(len(mine.ins))]
    return len(mine.ins) == len(theirs.ins) and all(same(b, a, c, depth - 1) for a, c in pairs)
