"""Shapes that follow from operands, one rule per op: for who builds programs and for who checks them."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]
#: Dimensions of the left and of the right operand, paired.
Pairs = tuple[Sequence[int], Sequence[int]]


def transposed(shape: Shape, perm: Sequence[int]) -> Shape:
    return tuple(shape[p] for p in perm)


def padded(shape: Shape, low: Sequence[int], high: Sequence[int]) -> Shape:
    """One ``low`` and one ``high`` per dimension."""
    return tuple(a + n + b for a, n, b in zip(low, shape, high, strict=True))


def concatenated(shapes: Sequence[Shape], dim: int) -> Shape:
    """Of tensors that differ along ``dim`` only."""
    return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])


def gathered(shape: Shape, index: Shape, axis: int, batch_dims: int) -> Shape:
    return shape[:axis] + index[batch_dims:] + shape[axis + 1 :]


def reduced(shape: Shape, dims: Sequence[int]) -> Shape:
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def contracted(left: Shape, right: Shape, contract: Pairs, batch: Pairs) -> Shape:
    """Of ``dot_general``: batch dimensions, then the free ones of the left and of the right operand."""
    (lc, rc), (lb, rb) = contract, batch
    return tuple(left[d] for d in lb) + reduced(left, (*lb, *lc)) + reduced(right, (*rb, *rc))
