"""Complex tensors as pairs of reals, against PyTorch."""

import pytest
import torch

from orchestrator.capture.errors import CaptureError

x = torch.randn(2, 3, 4, 6, dtype=torch.float64)
table = torch.randn(3, 3, 2, dtype=torch.float64)


def rotate(x, table):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    turned = pairs * torch.view_as_complex(table).view(1, 3, 1, 3)
    return torch.view_as_real(turned).flatten(3)


def test_rotary_embedding_and_its_gradient(agrees) -> None:
    def step(x, table, g):
        x = x.detach().requires_grad_()
        out = rotate(x, table)
        return out.detach(), *torch.autograd.grad(out, x, g)

    program = agrees(step, x, table, torch.randn_like(x))
    assert "negate" in {op.name for op in program.ops}  # the gradient turns back


def test_conjugates_and_sums(agrees) -> None:
    def step(x, table):
        z, w = torch.view_as_complex(x.reshape(2, 3, 4, 3, 2)), torch.view_as_complex(table)[None, :, None]
        return torch.view_as_real((z.conj() * w - z.conj_physical()).resolve_conj())

    agrees(step, x, table)


def test_a_conjugate_is_not_lost_in_a_view(agrees) -> None:
    def step(x):
        z = torch.view_as_complex(x.reshape(2, 3, 4, 3, 2)).conj().transpose(0, 1)
        return torch.view_as_real(z.clone())

    agrees(step, x)


@pytest.mark.parametrize("op", [lambda z, r: z * r, lambda z, r: z + 1, lambda z, r: z.exp()])
def test_other_complex_arithmetic_is_refused(lowered, op) -> None:
    def step(x):
        z = torch.view_as_complex(x.reshape(2, 3, 4, 3, 2))
        return torch.view_as_real(op(z, x[..., :3]))

    with pytest.raises(CaptureError, match="complex"):
        lowered(step, x)


def test_a_part_of_a_complex_tensor_is_that_part(agrees) -> None:
    """Its place in memory is counted in pairs."""

    def step(x, table):
        z, w = torch.view_as_complex(x.reshape(2, 3, 4, 3, 2)), torch.view_as_complex(table)
        return torch.view_as_real(z[1:, :, 2, 1:] * w[None, :, 1:])

    agrees(step, x, table)


def test_a_product_with_a_number_is_refused_as_such(lowered) -> None:
    with pytest.raises(CaptureError, match="a product of a complex tensor and a number"):
        lowered(lambda x: torch.view_as_real(torch.view_as_complex(x[..., :2].contiguous()) * 2.0), x)


def test_complex_numbers_of_angles_and_of_parts(agrees) -> None:
    """Tables of rotations as Llama makes them."""

    def step(x, angles):
        pairs = torch.complex(x[..., :3], x[..., 3:])
        turns = torch.polar(torch.ones_like(angles) * 2, angles).view(1, 3, 1, 3)
        return torch.view_as_real(pairs * turns)

    agrees(step, x, table[..., 0].contiguous())
