"""Ops that are lowered by what PyTorch says they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import UnsupportedOpError
from orchestrator.capture.lowering import decompositions
from orchestrator.capture.lowering.decompositions import DECOMPOSED, functional, taken_apart
from orchestrator.capture.lowering.table import LOWERINGS

x = torch.randn(3, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("op", "pure"),
    [
        ("aten.elu.default", "aten.elu.default"),
        ("aten.elu_.default", "aten.elu.default"),
        ("aten.elu.out", "aten.elu.default"),
        ("aten.baddbmm_.default", "aten.baddbmm.default"),
        ("aten.no_such_op.default", None),
        ("c10d.allreduce_.default", None),
    ],
)
def test_a_form_that_writes_is_the_functional_form(op: str, pure: str | None) -> None:
    assert functional(op) == pure
    assert taken_apart(op) == (pure is not None)


def test_no_op_has_a_lowering_and_is_taken_apart() -> None:
    """The table would win, and the entry here would say nothing."""
    assert not {f"aten.{name}" for name in DECOMPOSED} & set(LOWERINGS)


def test_in_place_and_out_forms_write_what_the_op_gives(agrees) -> None:
    def step(a):
        b, c = a.clone(), torch.empty_like(a)
        F.elu_(b[1:], 0.5)
        torch.logaddexp(a, b, out=c)
        return b, c

    agrees(step, x)


def test_the_arguments_reach_the_decomposition(agrees) -> None:
    """A smooth loss with another corner, and a sum that is scaled."""
    agrees(lambda a: F.huber_loss(a, a.flip(0), delta=0.25, reduction="sum"), x)
    agrees(lambda a: torch.baddbmm(a[:, :, None], a[:, :, None], a[:, None, :1], beta=2, alpha=-3), x)


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
def test_the_gradient_of_a_mean_is_divided_by_the_exact_count(agrees, lowered, loss) -> None:
    """The double nearest to 1/3 is not a third of what three ranks add up to."""

    def step(a):
        a = a.detach().requires_grad_()
        return torch.autograd.grad(loss(a, a.detach().flip(0)), a)

    odd = torch.randn(3, 7, dtype=torch.float64)
    agrees(step, odd)
    values = {str(d.attr("value")) for d in lowered(step, odd).drafts if d.name == "constant"}
    assert "21" in values and not any("/1" in v and len(v) > 8 for v in values)


def test_an_op_outside_the_list_is_refused_though_pytorch_takes_it_apart(lowered, monkeypatch) -> None:
    monkeypatch.setattr(decompositions, "DECOMPOSED", DECOMPOSED - {"mish"})
    with pytest.raises(UnsupportedOpError, match="no lowering for mish"):
        lowered(F.mish, x)


def test_a_part_without_lowering_is_refused_at_the_op(lowered, monkeypatch) -> None:
    monkeypatch.setattr(decompositions, "DECOMPOSED", DECOMPOSED | {"frac"})
    with pytest.raises(UnsupportedOpError, match=r"trunc .*op aten\.frac\.default"):
        lowered(torch.frac, x)
