"""Images of another size by weights between their elements."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import LoweringError
from orchestrator.capture.lowering.interpolated import Resized

x = torch.randn(2, 4, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 8, 12])
@pytest.mark.parametrize("corners", [False, True])
def test_weighted_means_of_neighbours(agrees, size: int, corners: bool) -> None:
    def run(a: torch.Tensor) -> torch.Tensor:
        wide = F.interpolate(a[None], size=size, mode="linear", align_corners=corners)
        both = F.interpolate(a[None, None], size=(3, size), mode="bilinear", align_corners=corners)
        return wide.sum() + (both * both).sum()

    agrees(run, x)


@pytest.mark.parametrize("size", [1, 2, 4, 7, 12])
@pytest.mark.parametrize("corners", [False, True])
def test_shares_of_neighbours_go_back_to_them(agrees, size: int, corners: bool) -> None:
    aten = torch.ops.aten
    grad = torch.randn(1, 2, size, dtype=torch.float64)
    agrees(lambda g: aten.upsample_linear1d_backward(g, [size], [1, 2, 4], corners), grad)
    both = torch.randn(1, 1, 2, size, dtype=torch.float64)
    agrees(lambda g: aten.upsample_bilinear2d_backward(g, [2, size], [1, 1, 2, 4], corners), both)


def test_twice_as_large_is_a_quarter_of_each_neighbour() -> None:
    by = Resized(5, 10, corners=False)
    near, far = Fraction(3, 4), Fraction(1, 4)
    assert by.means == [[(0, far), (1, near)], [(1, near), (2, far)]]
    assert (by.periods, by.before, by.behind) == (5, 1, 1)


def test_the_same_size_is_nothing(lowered) -> None:
    run = lambda a: F.interpolate(a[None], size=4, mode="linear")  # noqa: E731
    assert "slice" not in [d.name for d in lowered(run, x).drafts]


def test_a_factor_that_is_no_quotient_of_the_sizes_is_refused(lowered) -> None:
    """PyTorch reads at multiples of the factor, not of the quotient."""
    with pytest.raises(LoweringError, match=r"by 1\.6, which is not 6 / 4"):
        lowered(lambda a: F.interpolate(a[None], scale_factor=1.6, mode="linear"), x)
