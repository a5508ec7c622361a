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


wide = torch.randn(3, 4, 5, dtype=torch.float64)
LOOKED_UP = {
    "log_softmax": lambda a, t, w: (a.log_softmax(-1).gather(-1, t.unsqueeze(-1)).squeeze(-1) * w).sum(),
    "along another axis": lambda a, t, w: (
        a.log_softmax(1).gather(1, t[:, :1, None].clamp(max=3))[..., 0] * w[:, :1]
    ).sum(),
    "fewer rows": lambda a, t, w: (a.log_softmax(-1).gather(-1, t[:2, :3].unsqueeze(-1)) ** 2).sum(),
    "by hand": lambda a, t, w: (
        (a - a.logsumexp(-1, keepdim=True)).gather(-1, t.unsqueeze(-1)).squeeze(-1) * w
    ).sum(),
    "several labels": lambda a, t, w: (
        a.log_softmax(-1).gather(-1, torch.stack((t, 4 - t), -1)).sum(-1) * w
    ).sum(),
    "a library's": lambda a, t, w: (
        F.cross_entropy(a.flatten(0, 1), t.flatten(), reduction="none") * w.flatten()
    ).sum(),
    "ignored": lambda a, t, w: (
        F.cross_entropy(a.transpose(1, 2), torch.where(t == 4, -100, t), reduction="none") * w
    ).sum(),
    "and entropy": lambda a, t, w: (
        (a.log_softmax(-1).gather(-1, t[..., None])[..., 0] * w).sum()
        - (a.softmax(-1) * a.log_softmax(-1)).sum()
    ),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_losses_that_weigh_each_row(agrees, name) -> None:
    target = torch.tensor([[0, 4, 2, 2], [1, 1, 3, 0], [4, 4, 0, 3]])
    weights = torch.randn(3, 4, dtype=torch.float64)
    agrees(gradient(LOOKED_UP[name]), wide, target, weights)


@pytest.mark.parametrize("name", ["log_softmax", "by hand", "a library's"])
def test_what_stands_at_a_label_is_not_added_up_over_all_classes(lowered, name) -> None:
    """Ranks that have classes in parts add up their exponentials: they have no tensor like another sum."""
    target = torch.tensor([[0, 4, 2, 2], [1, 1, 3, 0], [4, 4, 0, 3]])
    program = lowered(gradient(LOOKED_UP[name]), wide, target, torch.randn(3, 4, dtype=torch.float64))
    by_name = {d.out: d for d in program.drafts}
    added = [by_name[d.ins[0]] for d in program.drafts if d.name == "reduce" and d.ins[0] in by_name]
    of_classes = {d.name for d in added if d.type.shape[-1:] == (5,)}
    assert "exponential" in of_classes and not of_classes & {"multiply", "add", "negate"}
