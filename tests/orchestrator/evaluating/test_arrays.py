"""Arrays of the oracle: positions that index forms denote, and limits before memory runs out."""

from __future__ import annotations

import numpy as np
import pytest

from certificates.plan.affine import Affine
from certificates.plan.ops import ATTRS, OPS
from certificates.plan.types import TensorType
from orchestrator.errors import EvaluationError
from orchestrator.evaluating.arrays import (
    BINARY,
    COMPARE,
    FOLD,
    MAX_ELEMENTS,
    UNARY,
    affordable,
    flat_positions,
    random_array,
)


def test_every_elementwise_op_has_one_meaning() -> None:
    """An op of the table that is missing here would end every search for a witness."""
    elementwise = {name: row.operands for name, row in OPS.items() if row.sorts}
    assert set(UNARY) == {name for name, n in elementwise.items() if n == 1}
    assert set(BINARY) == {name for name, n in elementwise.items() if n == 2}
    assert set(COMPARE) == set(ATTRS["compare"]["direction"])
    assert set(FOLD) == set(ATTRS["reduce"]["kind"])


def test_forms_denote_row_major_positions() -> None:
    """Columns of a shard, as they lie in the whole."""
    z0, z1, tp = (Affine.symbol(s) for s in ("z0", "z1", "tp"))
    where = flat_positions((z0, tp.scale(3) + z1), (4, 6), (4, 3), {"tp": 1, "dp": 5})
    np.testing.assert_array_equal(where, np.arange(24).reshape(4, 6)[:, 3:])
    again = flat_positions((Affine(2), Affine(1)), (4, 6), (2, 2), {})
    assert (again == 13).all() and again.shape == (2, 2), "what no digit moves is repeated"
    assert flat_positions((), (), (), {}).shape == ()


@pytest.mark.parametrize(("type_", "kind"), [("f32[5]", "f"), ("i64[5]", "i"), ("i1[5]", "b")])
def test_random_elements_are_of_the_sort_of_their_type(type_: str, kind: str) -> None:
    value = random_array(TensorType.parse(type_), np.random.default_rng(0), (3, 5))
    assert value.dtype.kind == kind and value.shape == (5,)
    if kind == "i":
        assert set(value.tolist()) <= {3, 4}, "a lookup table has no other rows"


def test_what_does_not_fit_is_refused_by_name() -> None:
    affordable(MAX_ELEMENTS, "the program")
    with pytest.raises(EvaluationError, match="the program has 536870913 elements, over the oracle's limit"):
        affordable(MAX_ELEMENTS + 1, "the program")
