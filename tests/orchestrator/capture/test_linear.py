"""Matrix products."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.errors import LoweringError

x, y, z = (torch.randn(*s, dtype=torch.float64) for s in ((2, 3, 4), (2, 4, 5), (5,)))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: a @ b,
        lambda a, b, c: a[0] @ b[1] + c,
        lambda a, b, c: torch.addmm(c, a[0], b[0], beta=0.5, alpha=-2),
        lambda a, b, c: torch.mv(b[0], c) + torch.addmv(b[0, :, 0], b[0], c, alpha=3),
        lambda a, b, c: torch.baddbmm(c, a, b, beta=2) + torch.einsum("bij,bjk->bik", a, b),
        lambda a, b, c: torch.dot(c, c) + torch.linalg.vecdot(a[0], a[1]).sum(),
    ],
)
def test_products(agrees, function) -> None:
    agrees(function, x, y, z)


def test_a_product_of_bytes_wraps_and_is_refused(lowered) -> None:
    with pytest.raises(LoweringError, match="wraps around"):
        lowered(lambda a: a @ a, torch.ones(2, 2, dtype=torch.int8))
