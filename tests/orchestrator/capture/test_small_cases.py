"""Cases of lowerings that other tests do not reach: defaults, ends of ranges, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import CaptureError, LoweringError
from orchestrator.capture.lowering.table import find
from orchestrator.capture.recorder import reference

x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
ids = torch.tensor([2, 0, 2, 1])


def refused(lowered: Any, message: str, function: Any, *tensors: torch.Tensor) -> None:
    with pytest.raises(CaptureError, match=message):
        lowered(function, *tensors)


@pytest.mark.parametrize("padding", [-1, 0, 2])
def test_the_row_of_padding_of_an_embedding_gets_no_gradient(agrees, padding: int) -> None:
    agrees(lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 4, padding, False), x, ids)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_rows_are_added_to_what_was_there(agrees, start: float) -> None:
    def added(i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.full((4, 3), start, dtype=v.dtype).index_put((i,), v, accumulate=True)

    agrees(added, ids, x)


def test_a_write_at_indices_that_may_be_equal_is_refused(lowered) -> None:
    def write(a: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index_put(a, [None, i], v)

    refused(lowered, "which two may be equal", write, x, torch.tensor([0, 2]), x[:, :2].clone())


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_causal_mask_under_a_scale_that_is_not_positive_is_refused(lowered, scale: float) -> None:
    def attend(q: torch.Tensor) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True, scale=scale)[0]

    refused(lowered, "scale that is not positive", attend, torch.randn(1, 1, 3, 2))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_gradient_of_a_loss_by_label(agrees, reduction: str) -> None:
    def gradient(a: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        a = a.detach().requires_grad_()
        loss = F.nll_loss(a, target, reduction=reduction)
        (grad,) = torch.autograd.grad(loss.square().sum(), a)
        return grad

    agrees(gradient, x, ids)


@pytest.mark.parametrize("power", [-1, -0.5, 0, 0.5, 1, 2, 3])
def test_powers(agrees, power: float) -> None:
    agrees(lambda a: a.abs().add(1) ** power, x)


@pytest.mark.parametrize("base", [2, 0.5])
def test_a_number_to_the_power_of_a_tensor(agrees, base: float) -> None:
    agrees(lambda a: base**a, x)
    agrees(lambda a: a.abs().add(1) ** a, x)


@pytest.mark.parametrize("value", [1, 2, 2.5])
def test_products_and_quotients_are_added_with_a_factor(agrees, value: float) -> None:
    agrees(
        lambda a, b: (torch.addcmul(a, a, b, value=value), torch.addcdiv(a, a, b, value=value)), x, x.flip(0)
    )


@pytest.mark.parametrize("alpha", [1, 3])
def test_lists_of_tensors_keep_their_factor(agrees, alpha: float) -> None:
    agrees(lambda a, b: tuple(torch._foreach_add([a, b], [b, a], alpha=alpha)), x, x.flip(0))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_small_integers_that_may_wrap_around_are_refused(lowered, dtype: torch.dtype) -> None:
    refused(lowered, "which wraps around", lambda i: i.to(dtype), ids)
    refused(lowered, "which wraps around", lambda i: i + i, ids.to(dtype))


def test_a_negative_number_has_no_place_among_bytes(lowered) -> None:
    refused(lowered, "which wraps around", lambda i: i.to(torch.uint8), ids.to(torch.int8))


def test_a_literal_that_is_not_a_number_is_refused(lowered) -> None:
    refused(lowered, "nan has no meaning", lambda a: a * float("nan"), x)


def test_small_integers_are_compared_and_widened(agrees) -> None:
    def chosen(i: torch.Tensor, j: torch.Tensor) -> Any:
        return i.to(torch.int64) + 300, torch.maximum(i, j), torch.minimum(i, j)

    agrees(chosen, ids.to(torch.int8), ids.flip(0).to(torch.int8))
    agrees(lambda i: i.to(torch.int16).to(torch.int64), ids.to(torch.int8))


def test_an_op_in_place_has_the_rule_of_its_functional_form() -> None:
    assert find("aten.add_.Tensor") is find("aten.add.Tensor") is not None
    assert find("aten.nothing_.default") is None
    assert find("aten.bitwise_and.Tensor") is not None


def test_views_of_a_tensor_from_outside_have_its_numbers(agrees) -> None:
    """``rows[0]`` of ``torch.tril_indices``, that the code keeps beside the model."""
    rows, table = torch.tril_indices(3, 3, -1), torch.arange(12, dtype=torch.float64).view(3, 4)
    agrees(lambda a: a[:, rows[0]] - a[:, rows[1]], x)
    agrees(lambda a: a * table.t()[:, 2:].sum(1, keepdim=True) + table[1, 2] * table.view(-1)[3:6], x)


def test_tensors_that_no_plan_can_hold_are_refused() -> None:
    with pytest.raises(LoweringError, match="have no place in a plan"):
        reference(torch.zeros(2, dtype=torch.float8_e5m2))
    with pytest.raises(LoweringError, match="a real tensor of shape"):
        reference(torch.arange(1025.0))
    with pytest.raises(LoweringError, match="a real tensor of shape"):
        reference(torch.ones(2, dtype=torch.complex64))
    assert reference(torch.ones(2)).literal == 1
    assert reference(torch.tensor([[1.0, 2.0], [0.5, 1.0]]).t()).literal == (1.0, 0.5, 2.0, 1.0)
