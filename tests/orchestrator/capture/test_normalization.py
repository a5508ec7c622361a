"""Normalisation layers and GELU against the kernels, forward and backward."""

import itertools

import pytest
import torch
import torch.nn.functional as F

x, g = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
w, b = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)


def gradients(function):
    def run(*tensors):
        *operands, grad = (t.detach() for t in tensors)
        operands = [t.requires_grad_() for t in operands]
        out = function(*operands)
        return out.detach(), *torch.autograd.grad(out, operands, grad)

    return run


def test_layer_norm(agrees) -> None:
    agrees(gradients(lambda x, w, b: F.layer_norm(x, (4,), w, b, 1e-5)), x, w, b, g)


def test_layer_norm_without_parameters_over_two_dimensions(agrees) -> None:
    agrees(gradients(lambda x: F.layer_norm(x, (3, 4), eps=1e-3)), x, g)


@pytest.mark.parametrize("wanted", list(itertools.product((False, True), repeat=3))[1:])
def test_gradients_of_a_layer_norm_with_frozen_operands(agrees, wanted) -> None:
    """A frozen weight, or a batch input: the kernel gives only the gradients that are asked for."""

    def run(*tensors):
        *operands, grad = tensors
        operands = [t.detach().requires_grad_(r) for t, r in zip(operands, wanted, strict=True)]
        out = F.layer_norm(operands[0], (4,), *operands[1:])
        return torch.autograd.grad(out, [t for t in operands if t.requires_grad], grad)

    agrees(run, x, w, b, g)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_gradients_of_an_rms_norm_with_frozen_operands(agrees, wanted) -> None:
    def run(*tensors):
        *operands, grad = tensors
        operands = [t.detach().requires_grad_(r) for t, r in zip(operands, wanted, strict=True)]
        out = F.rms_norm(operands[0], (4,), operands[1], 1e-5)
        return torch.autograd.grad(out, [t for t in operands if t.requires_grad], grad)

    agrees(run, x, w, g)


def test_rms_norm_without_a_weight(agrees) -> None:
    agrees(gradients(lambda x: F.rms_norm(x, (4,), eps=1e-5)), x, g)


def test_rms_norm(agrees) -> None:
    agrees(gradients(lambda x, w: F.rms_norm(x, (4,), w, 1e-5)), x, w, g)


def test_gelu(agrees) -> None:
    agrees(gradients(lambda x: F.gelu(x, approximate="tanh")), x, g)


def test_exact_gelu(agrees) -> None:
    agrees(gradients(F.gelu), x, g)
