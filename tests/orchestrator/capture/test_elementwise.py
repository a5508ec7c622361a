"""Elementwise lowerings against the kernels."""

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.errors import LoweringError

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


p = torch.tensor([[True, False, True, False]])
n = torch.tensor([[3], [-2], [0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda p, n: (p + ~p, p * p, torch.maximum(p, ~p), p.amax(1), p.amin()),
        lambda p, n: (p & True, p | False, p.logical_and(n), n.logical_not(), n.logical_or(0.0 * n)),
        lambda p, n: (n.bool(), n.double().bool(), torch.sum(n, dtype=torch.bool)),
        lambda p, n: (n.clamp(min=0.5), n.clamp(-1, 2), n.clamp(max=torch.tensor(0.5))),
        lambda p, n: (torch.where(p, 1, 2.5), torch.where(p, n, 0.5), torch.stack([n, n * 0.5])),
        lambda p, n: (torch.full((2,), 2.0, dtype=torch.int64), F.pad(n, (1, 0), value=2.0)),
        lambda p, n: (n.double().sum().softmax(0), torch.tensor(2.0, dtype=torch.float64) ** n.abs()),
        lambda p, n: (n.double().long(), (n.double() * 2 - n).long()),
    ],
)
def test_booleans_and_integers(agrees, function) -> None:
    """Sums of booleans are disjunctions; integers become real where a bound or another operand is."""
    agrees(lambda p, n: [1 * r for r in function(p, n)], p, n)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda p, n: n.to(torch.uint8), "to u8, which wraps around"),
        (lambda p, n: p.to(torch.uint8) - 1, "subtract of u8.*wraps around"),
        (lambda p, n: p.to(torch.int8).neg(), "negate of i8.*wraps around"),
        (lambda p, n: p.to(torch.uint8).sum(dtype=torch.uint8), "add of u8.*wraps around"),
        (lambda p, n: p.to(torch.uint8) == -1, "literal -1 does not fit u8"),
        (lambda p, n: n & 1, "bitwise operation on integers"),
        (lambda p, n: n / 0, "a division by the literal 0"),
        (lambda p, n: n / torch.zeros(1), "a division by the literal 0"),
        (lambda p, n: torch.pow(2, n), "power of i64"),
        (lambda p, n: n.double() ** float("inf"), "power inf"),
        (lambda p, n: (n.double() * 0.5).long(), "rounds and has no exact meaning"),
    ],
)
def test_what_has_no_meaning_over_unbounded_numbers_is_refused(lowered, function, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(function, p, n)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a / a.sqrt(),
        lambda a: a / (a.sum(1, keepdim=True) + 1).sqrt(),
        lambda a: a / a.sum(1).sqrt().view(3, 1).expand(3, 4),
        lambda a: a / (2 * a.sqrt()),
        lambda a: a.sqrt().reciprocal() + 3 / a.sqrt() + a.sqrt() ** -1,
    ],
)
def test_a_quotient_by_a_root_is_the_product_with_rsqrt(agrees, lowered, function) -> None:
    """A norm by ``x / sqrt(v)`` on one side and ``x * rsqrt(v)`` on the other is one: no law says so."""
    agrees(function, positive)
    made = [d.name for d in lowered(function, positive).drafts]
    assert "rsqrt" in made and "divide" not in made


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a / (a.sqrt() + 1),
        lambda a: a / torch.full((), 3.0, dtype=torch.float64).sqrt(),  # laws speak of roots of numbers
        lambda a: a / (0 * a.sqrt()),
        lambda a: a / (a.sqrt() * a),
    ],
)
def test_other_quotients_stay(lowered, function) -> None:
    made = [d.name for d in lowered(function, positive).drafts]
    assert "divide" in made and "rsqrt" not in made
