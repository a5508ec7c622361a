"""Fused attention against the kernel, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from orchestrator.capture.errors import LoweringError

q, k, v, g = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, 5, 5, 5))


def attention(q, k, v, g, **options):
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, **options)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), g)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_forward_and_backward(agrees, lowered, causal, scale) -> None:
    def function(*tensors):
        return attention(*tensors, is_causal=causal, scale=scale)

    program = agrees(function, q, k, v, g)
    assert sum(op.name == "exponential" for op in program.ops) == 1


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads(agrees, causal) -> None:
    def function(q, k, v, g):
        return attention(q, k, v, g, is_causal=causal, enable_gqa=True)

    shared = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(2))
    wide = torch.randn(2, 6, 5, 4, dtype=torch.float64)
    agrees(function, wide, *shared, torch.randn_like(wide))


def test_the_fused_kernel_is_what_was_lowered(lowered) -> None:
    names: list[str] = []

    def function(*tensors):
        out = attention(*tensors, is_causal=True)
        names.append(type(out[0]).__name__)
        return out

    program = lowered(function, q, k, v, g)
    assert names == ["FakeTensor"] and "select" in {d.name for d in program.drafts}


def test_saved_tensors_of_another_call_are_refused(lowered) -> None:
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def function(q, k, v, g):
        out, total = forward(q, k, v)
        return backward(g, q, v, k, out, total, 0.0, False)

    with pytest.raises(LoweringError, match="not those of these queries") as caught:
        lowered(function, q, k, v, g)
    assert caught.value.op == "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"


def test_dropout_is_refused(lowered) -> None:
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with pytest.raises(LoweringError, match="dropout"):
        lowered(lambda q, k, v: forward(q, k, v, 0.1)[0], q, k, v)
