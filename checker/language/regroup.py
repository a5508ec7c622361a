"""Reshapes as parts: which dimensions of the result and of the operand have equal products."""

from __future__ import annotations

from collections.abc import Sequence

Part = tuple[list[int], list[int]]


def reshape_parts(result: Sequence[int], operand: Sequence[int]) -> list[Part]:
    """The finest parts of equal products; size 1 joins its left neighbour's part, leading ones the first."""
    left, right = ([i for i, n in enumerate(s) if n > 1] for s in (result, operand))
    cuts, i, j = [(0, 0)], 0, 0
    while i < len(left):
        if i:
            cuts.append((left[i], right[j]))
        a, b, i, j = result[left[i]], operand[right[j]], i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * result[left[i]], i + 1
            else:
                b, j = b * operand[right[j]], j + 1
    ends = [*cuts[1:], (len(result), len(operand))]
    return [
        (list(range(a, c)), list(range(b, d))) for (a, b), (c, d) in zip(cuts, ends, strict=True) if c or d
    ]
