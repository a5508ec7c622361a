"""Elementwise lowerings against the kernels."""

import pytest
import torch
import torch.nn.functional as F

x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
positive = x.abs() + 0.5


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b,
        lambda a, b: torch.add(a, b, alpha=3),
        lambda a, b: a - 2 * b,
        lambda a, b: 1 - a / b,
        lambda a, b: torch.maximum(a, b) * torch.minimum(a, b),
        lambda a, b: a.neg().exp() + b.sin() * a.cos(),
        lambda a, b: a.pow(2) + a**3 + b.square(),
        lambda a, b: a.sigmoid() * b.tanh() + a.abs(),
        lambda a, b: F.silu(a) + F.relu(b),
        lambda a, b: torch.where((a > b) & (a != 0.5) | ~(b <= 0), a, b),
        lambda a, b: a.masked_fill(a < 0, 0.25) + b,
        lambda a, b: 0.9**a,
    ],
)
def test_pointwise(agrees, function) -> None:
    agrees(function, x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.log() + a.sqrt() - a.rsqrt(),
        lambda a: a.reciprocal() + a**-1 + a**0.5 + a**-0.5,
    ],
)
def test_functions_of_positive_numbers(agrees, function) -> None:
    agrees(function, positive)


@pytest.mark.parametrize("function", [F.silu, torch.sigmoid, torch.tanh, F.relu, lambda a: a.pow(2)])
def test_gradients(agrees, function) -> None:
    def gradient(a, g):
        a = a.detach().requires_grad_()
        return torch.autograd.grad(function(a), a, g)

    agrees(gradient, x, torch.randn_like(x))


def test_a_float_literal_is_its_decimal(lowered) -> None:
    program = lowered(lambda a: a * 0.1, x)
    (constant,) = [d for d in program.drafts if d.name == "constant"]
    assert constant.attr("value") == "1/10" and constant.type.shape == (3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda p, n: (p == 2, p != 1, p > 0, p <= 0.5, p == n, p < ~p),
        lambda p, n: (n > 0.5, n == 2.0, n == 2.5, n >= p, n < n.double() + 0.5),
    ],
)
def test_comparisons_are_made_in_the_larger_type(agrees, function) -> None:
    """``bool == 2`` compares 0 and 1 with 2, not truth with truth."""
    agrees(lambda p, n: [1 * r for r in function(p, n)], torch.tensor([True, False, True]), torch.arange(3))


def test_mixed_dtypes_are_converted(agrees) -> None:
    agrees(lambda a, n: a * n + (n == 2).sum(), x, torch.arange(4))
