"""Advice for ops without a lowering."""

from __future__ import annotations

import pytest

from orchestrator.capture.lowering.decompositions import taken_apart
from orchestrator.capture.lowering.table import find
from orchestrator.capture.missing import OPS, instead_of


@pytest.mark.parametrize("op", [f"aten.{name}.default" for row in OPS for name in row.ops])
def test_no_advice_is_given_against_an_op_that_is_lowered(op: str) -> None:
    assert find(op) is None and not taken_apart(op)


def test_forms_of_an_op_have_its_advice_and_others_that_of_all() -> None:
    assert instead_of("aten.rand_like.default") == instead_of("aten.rand.default") == instead_of("aten.rand_")
    assert instead_of("aten.floor_divide.Scalar") == instead_of("aten.floor.default")
    assert instead_of("aten.i0.default").startswith("the formula in ops")
