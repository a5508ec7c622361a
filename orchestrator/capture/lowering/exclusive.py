"""Masks of which at most one is true at a place: the same numbers, compared with different ones.

A loop over experts writes the rows of each by `chosen == e`. Nothing is written twice, so what it writes is a
sum, in any order, and what is read by one mask is what stood there before others were written by.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..builder import Builder, Value


def compared(b: Builder, mask: Value) -> tuple[Value, int] | None:
    """Which integers a mask compares, and with which number; ``None`` if it is no such mask."""
    draft = b.made_by(mask, "compare")
    if draft is None or draft.attr("direction") != "EQ":
        return None
    sides = [b.operand(mask, i) for i in (0, 1)]
    for x, y in (sides, sides[::-1]):
        number = b.made_by(y, "constant")
        if number is not None and x.type.sort == "Int":
            return x, int(str(number.attr("value")))
    return None


def peeled(b: Builder, x: Value, mask: Value) -> Value:
    """What equals ``x`` in the rows where a mask of its first dimensions is true.

    What was written by masks that exclude it is left out.
    """
    own, rank = compared(b, mask), len(mask.shape)
    while own is not None and b.made_by(x, "select") is not None:
        condition = b.operand(x, 0)
        spread = b.made_by(condition, "broadcast_in_dim")
        if spread is not None and spread.attr("dims") == tuple(range(rank)):
            condition = b.operand(condition, 0)
        other = compared(b, condition) if condition.shape == mask.shape else None
        if other is None or other[0].name != own[0].name or other[1] == own[1]:
            break
        x = b.operand(x, 2)
    return x


@dataclass
class Written:
    """Tensors that are zero but where integers are one of some numbers: which integers, and which numbers."""

    _by_name: dict[str, tuple[str, frozenset[int]]] = field(default_factory=dict)

    def adds(self, b: Builder, target: Value, mask: Value) -> bool:
        """Is ``target`` zero in the rows of its first dimensions where the mask is true?"""
        own, zero = compared(b, mask), b.made_by(target, "constant")
        if own is None or (zero is not None and zero.attr("value") == "0"):
            return own is not None
        integers, numbers = self._by_name.get(target.name, ("", frozenset()))
        return integers == own[0].name and own[1] not in numbers

    def note(self, b: Builder, target: Value, mask: Value, written: Value) -> None:
        """Rows where the mask is true were added to such a target."""
        own = compared(b, mask)
        assert own is not None
        _, before = self._by_name.get(target.name, ("", frozenset[int]()))
        self._by_name[written.name] = own[0].name, before | {own[1]}
