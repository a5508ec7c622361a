"""Cross-entropy and mean squared error against the kernels, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

x = torch.randn(5, 7, dtype=torch.float64)
labels = torch.tensor([0, 6, 3, 3, 1])


def gradient(loss):
    def run(a, *rest):
        a = a.detach().requires_grad_()
        value = loss(a, *rest)
        return value.detach(), *torch.autograd.grad(value, a)

    return run


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("target", [labels, torch.tensor([0, -100, 3, -100, 1])])
def test_cross_entropy(agrees, reduction, target) -> None:
    agrees(gradient(lambda a, t: F.cross_entropy(a, t, reduction=reduction)), x, target)


def test_unreduced_cross_entropy(agrees) -> None:
    agrees(gradient(lambda a, t: (F.cross_entropy(a, t, reduction="none") * 2).sum()), x, labels)


def test_labels_that_may_be_negative_are_compared_and_not_looked_up(lowered) -> None:
    """Declared in [-100, n), a label could be -50, where a look-up has no value: nothing would be proved."""
    program = lowered(lambda a, t: F.cross_entropy(a, t), x, labels)
    assert "gather" not in {d.name for d in program.drafts}
    program = lowered(lambda a, t: F.cross_entropy(a, t.clamp(min=0)), x, labels)
    assert [d.name for d in program.drafts].count("gather") == 1


def test_nll_of_something_else_than_log_softmax(agrees) -> None:
    agrees(gradient(lambda a, t: F.nll_loss(a * 2, t)), x, labels)


def test_the_gradient_has_the_structure_of_loss_parallel(lowered) -> None:
    program = lowered(gradient(lambda a, t: F.cross_entropy(a, t)), x, labels)
    by_name = {d.out: d for d in program.drafts}
    product = by_name[program.outputs["y1"]]
    total = by_name[product.ins[0]]
    assert (product.name, total.name) == ("multiply", "add")
    assert [by_name[v].name for v in total.ins] == ["select", "exponential"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_mean_squared_error(agrees, reduction) -> None:
    agrees(gradient(lambda a, b: F.mse_loss(a, b, reduction=reduction)), x, torch.randn_like(x))
