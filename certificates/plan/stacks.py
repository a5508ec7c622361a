"""Long concatenations, of which a plan is read part by part."""

from __future__ import annotations

import math

from .program import Op

#: A concatenation of more parts is a stack.
PARTS = 8


def is_stack(op: Op) -> bool:
    """A concatenation of many parts, or of single elements, such as the norms of all gradients."""
    single = math.prod(op.type.shape) == len(op.ins) > 2
    return op.name == "concatenate" and (single or len(op.ins) > PARTS)
