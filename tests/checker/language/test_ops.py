"""The table of ops: what follows from it is what the documents say."""

from __future__ import annotations

from pathlib import Path

import pytest

from checker.language.ops import ATTRIBUTES, OPERANDS, ROWS, named

ROOT = Path(__file__).resolve().parents[3]


def test_operands_are_the_letters_of_a_row() -> None:
    assert (OPERANDS["select"], OPERANDS["add"], OPERANDS["tanh"], OPERANDS["constant"]) == (3, 2, 1, 0)
    assert "concatenate" not in OPERANDS, "it has any number"
    assert {op.split()[0] for op in ROWS} == set(ATTRIBUTES)


@pytest.mark.parametrize(
    ("column", "word", "ops"),
    [
        ("sign", "plus", "abs exponential logistic sqrt"),
        ("infinity", "plus", ""),
        ("defined", "a > 0", "log power rsqrt"),
        ("defined", "a >= 0", "sqrt"),
    ],
)
def test_ops_are_found_by_column(column: str, word: str, ops: str) -> None:
    assert named(column, word) == set(ops.split())
