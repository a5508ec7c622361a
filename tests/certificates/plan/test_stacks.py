"""What counts as a stack decides whether a proof follows its parts or the whole."""

from __future__ import annotations

import pytest

from certificates.plan.program import Op
from certificates.plan.stacks import is_stack
from certificates.plan.types import TensorType


@pytest.mark.parametrize(
    ("parts", "shape", "stack"),
    [
        (3, "f32[3]", True),
        (2, "f32[2]", False),
        (8, "f32[16]", False),
        (9, "f32[18]", True),
        (3, "f32[3,2]", False),
    ],
)
def test_many_parts_or_single_elements(parts: int, shape: str, stack: bool) -> None:
    """Norms of three gradients are one; eight shards of a weight are eight tensors."""
    ins = tuple(f"%{i}" for i in range(parts))
    assert is_stack(Op("%9", "concatenate", ins, TensorType.parse(shape), {"dim": 0})) is stack


def test_only_concatenations_are() -> None:
    assert not is_stack(Op("%9", "add", ("%0", "%1", "%2"), TensorType.parse("f32[3]"), {}))
