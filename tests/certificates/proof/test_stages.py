"""Stages as data."""

from __future__ import annotations

import numpy as np
import pytest

from certificates.proof.stages import strides


@pytest.mark.parametrize("sizes", [(), (5,), (2, 3), (4, 1, 6)])
def test_strides_are_row_major(sizes: tuple[int, ...]) -> None:
    """A tree whose strides are these is written without them."""
    assert strides(sizes) == tuple(s // 8 for s in np.zeros(sizes).strides)
