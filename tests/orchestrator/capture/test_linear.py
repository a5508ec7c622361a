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


table, ids = torch.randn(3, 2, dtype=torch.float64), torch.tensor([[2, 0, 5], [1, 3, -1]])
HOT = {
    "matmul": lambda w, i: (i[..., None] == torch.arange(3)).double() @ w,
    "a rank's rows": lambda w, i: ((i[..., None] - 2) == torch.arange(3)).double() @ w,
    "numbered by a rank": lambda w, i: (i[..., None] == torch.arange(2, 5)).double() @ w,
    "numbered from below": lambda w, i: (
        ((torch.arange(3) - 1).expand(2, 3, 3) == i[:2, :3, None]).double() @ w
    ),
    "the other way round": lambda w, i: (torch.arange(3) == (i + 1).unsqueeze(-1)).to(w.dtype) @ w,
    "einsum": lambda w, i: torch.einsum("bsv,vd->bsd", (i[..., None] == torch.arange(3)).double(), w),
    "with a bias": lambda w, i: torch.addmm(w[0], (i[0][:, None] == torch.arange(3)).double(), w, alpha=2),
}


def names(program) -> list[str]:
    return [d.name for d in program.drafts]


@pytest.mark.parametrize("name", HOT)
def test_one_hot_rows_of_given_integers_look_up(agrees, lowered, name: str) -> None:
    """So they are one with a look-up on the other side; a row without a 1 is zero."""
    agrees(HOT[name], table, ids)
    made = names(lowered(HOT[name], table, ids))
    assert "gather" in made and "dot_general" not in made


@pytest.mark.parametrize(
    "function",
    [
        lambda w, i: (i[..., None] != torch.arange(3)).double() @ w,  # all but one
        lambda w, i: (i[..., None] <= torch.arange(3)).double() @ w,
        lambda w, i: (i[..., None] == 3 - torch.arange(3)).double() @ w,  # numbered downwards
        lambda w, i: (i[..., None] == 2 * torch.arange(3)).double() @ w,
        lambda w, i: (i[..., None] == i[:1, :1, None] + torch.zeros(3, dtype=torch.int64)).double() @ w,
        lambda w, i: ((i * i)[..., None] == torch.arange(3)).double() @ w,  # no given integers
        lambda w, i: (w.argmax(0)[:, None] == torch.arange(3)).double() @ w,  # a choice
        lambda w, i: (i[:1] == torch.arange(3)[:, None]).double() @ w,  # columns, not rows
        lambda w, i: (i.double()[..., None] == torch.arange(3).double()).double() @ w,  # no integers
        lambda w, i: (i[..., None] == torch.arange(3)).double() @ w.masked_fill(w > 9, float("-inf")),
    ],
)
def test_other_products_stay(lowered, function) -> None:
    made = names(lowered(function, table, ids))
    assert "dot_general" in made and "gather" not in made
