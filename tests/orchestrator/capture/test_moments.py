"""Variances over some elements, with what is taken from their number."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import LoweringError

x = torch.randn(3, 4, 2, dtype=torch.float64)


@pytest.mark.parametrize("correction", [0, 1, 0.5])
@pytest.mark.parametrize("dim", [None, 0, (0, -1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_variance_deviation_and_mean(agrees, correction, dim, keepdim) -> None:
    options = {"correction": correction, "keepdim": keepdim}
    agrees(lambda a: (a.var(dim, **options), a.std(dim, **options)), x)
    agrees(lambda a: (*torch.var_mean(a, dim, **options), *torch.std_mean(a, dim, **options)), x)


def test_the_variance_of_one_element_is_no_number(lowered) -> None:
    with pytest.raises(LoweringError, match="the variance of 1 elements with correction 1"):
        lowered(lambda a: a[:1, :1, :1].var(), x)
