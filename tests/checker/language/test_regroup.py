"""Parts of a reshape: the finest of equal products."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.language.regroup import reshape_parts

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.mark.parametrize(
    "result,operand,parts",
    [
        ([4, 6], [24], [([0, 1], [0])]),
        ([2, 3, 5], [6, 5], [([0, 1], [0]), ([2], [1])]),
        ([4, 1, 6], [4, 6], [([0, 1], [0]), ([2], [1])]),
        ([1, 4, 6], [4, 6], [([0, 1], [0]), ([2], [1])]),
        ([4, 6], [1, 4, 6, 1], [([0], [0, 1]), ([1], [2, 3])]),
        ([], [], []),
        ([1, 1], [], [([0, 1], [])]),
        ([], [1], [([], [0])]),
        ([2, 6], [4, 3], [([0, 1], [0, 1])]),
        ([8, 3], [2, 4, 3], [([0], [0, 1]), ([1], [2])]),
        ([6, 4, 5], [2, 12, 5], [([0, 1], [0, 1]), ([2], [2])]),
        ([2, 1, 3, 2, 5], [6, 1, 2, 1, 5, 1], [([0, 1, 2], [0, 1]), ([3], [2, 3]), ([4], [4, 5])]),
    ],
)
def test_parts_of_a_reshape(result: list[int], operand: list[int], parts: Any) -> None:
    assert reshape_parts(result, operand) == parts
