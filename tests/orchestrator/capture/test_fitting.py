"""Affine scalars from known points; no PyTorch program is run."""

import pytest

from orchestrator.capture.errors import FitError
from orchestrator.capture.fitting import fit


@pytest.mark.parametrize("size", [2, 8])
def test_one_point_of_an_axis_proves_nothing(size: int) -> None:
    with pytest.raises(FitError, match="scalar 0 along tp is known at one coordinate only"):
        fit(["dp", "tp"], [(0, 1), (0, size)], {(0, 0): (0,)})


def test_two_points_of_a_long_axis_prove_nothing() -> None:
    with pytest.raises(FitError, match="two coordinates only"):
        fit(["dp"], [(0, 64)], {(0,): (0,), (63,): (63,)})
