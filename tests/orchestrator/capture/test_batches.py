"""Batch normalisation with running statistics."""

from __future__ import annotations

import torch
import torch.nn.functional as F

x = torch.randn(4, 3, 5, dtype=torch.float64)
mean, var = torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64) + 0.1


def test_training_moves_the_running_statistics_in_place(agrees) -> None:
    def step(x, mean, var):
        mean, var = mean.clone(), var.clone()
        return F.batch_norm(x, mean, var, training=True, momentum=0.25), mean, var

    agrees(step, x, mean, var)


def test_evaluation_reads_them_and_leaves_them(agrees) -> None:
    def step(x, mean, var):
        mean, var = mean.clone(), var.clone()
        return F.batch_norm(x, mean, var), mean, var

    agrees(step, x, mean, var)


def test_the_gradient_in_evaluation_has_no_saved_statistics(agrees) -> None:
    def step(x, mean, var):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(F.batch_norm(x, mean, var).square().sum(), x)

    agrees(step, x, mean, var)
