"""Convolutions, pooling and folding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from orchestrator.capture.builder import Builder
from orchestrator.capture.lowering.table import Context
from orchestrator.capture.lowering.windows import Window, folded, unfolded

x, w = torch.randn(2, 4, 6, 6, dtype=torch.float64), torch.randn(6, 2, 3, 2, dtype=torch.float64)


def gradients(function):
    def run(*tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out = function(*leaves)
        return (out.detach(), *torch.autograd.grad(out.square().sum(), leaves))

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": (2, 1)},
        {"stride": (3, 2), "dilation": (1, 2)},
    ],
)
def test_convolutions_with_groups(agrees, options) -> None:
    agrees(gradients(lambda a, b: F.conv2d(a, b, groups=2, **options)), x, w)
    kernel = w.reshape(4, 3, 3, 2)
    agrees(gradients(lambda a, b: F.conv_transpose2d(a, b, groups=2, **options)), x, kernel)


def test_patches_that_do_not_overlap_are_a_reshape_and_one_contraction(lowered) -> None:
    """The patch embedding of a vision transformer: no look-up at all."""
    program = lowered(
        lambda a, b: F.conv2d(a, b, stride=(3, 2)), x, torch.randn(5, 4, 3, 2, dtype=torch.float64)
    )
    assert {d.name for d in program.drafts} == {"reshape", "dot_general", "transpose"}


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_means_count_what_a_window_holds(agrees, ceil, counted) -> None:
    """A window at the edge has fewer elements, unless padding counts; beyond the padding nothing does."""
    agrees(gradients(lambda a: F.avg_pool2d(a, 3, 2, 1, ceil, counted)), x)
    agrees(gradients(lambda a: F.avg_pool2d(a, (4, 5), None, 0, ceil, counted)), x)


def test_the_first_of_equal_elements_is_the_largest(agrees) -> None:
    agrees(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), x.round())
    agrees(gradients(lambda a: F.max_pool2d(a, 3, 2, 1)), x.round())


def test_adaptive_windows_overlap_where_sizes_do_not_divide(agrees) -> None:
    agrees(gradients(lambda a: F.adaptive_avg_pool2d(a, (4, 3))), x)


def test_columns_and_back(agrees) -> None:
    agrees(gradients(lambda a: F.unfold(a, 3, dilation=2, padding=1, stride=2)), x)


@pytest.mark.parametrize(("dim", "size", "step"), [(3, 3, 1), (2, 2, 1), (2, 3, 3), (3, 2, 1), (3, 1, 1)])
def test_windows_as_views_and_back(agrees, dim: int, size: int, step: int) -> None:
    agrees(gradients(lambda a: a.unfold(dim, size, step) ** 2), x)


def test_elements_that_no_window_sees_get_nothing() -> None:
    c = Context(Builder(), lambda _group: ())
    window = Window(size=5, count=2, kernel=1, stride=2)
    grad = c.b.iota(0, (2, 1))
    assert folded(c, grad, 0, [window]).shape == (5,)
    assert unfolded(c, c.b.iota(0, (5,)), 0, [window]).shape == (2, 1)
    assert not window.apart and window.span == 3
