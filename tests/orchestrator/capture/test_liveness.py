"""A rendezvous is in the plan if any rank needs its result, on every rank; and in no program if none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.fingerprint import expected_lines, traced_lines
from orchestrator.capture.running import run
from trainverify import Kind, verify

pytestmark = pytest.mark.slow
Step = Callable[[Any, Any, Any], dict[str, torch.Tensor]]


def train(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def definition(step: Step, ranks: int = 2) -> Definition:
    return Definition(
        name="lives",
        mesh={"dp": ranks},
        build=lambda: nn.Linear(4, 4, bias=False),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=train,
        parallel_step=step,
        batch={"x": Batch((2 * ranks, 4), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    loss = model(batch["x"]).square().mean()
    loss.backward()
    return loss  # type: ignore[no-any-return]


def rank_0_steps(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Only rank 0 reads the averaged gradient."""
    loss = loss_of(model, batch)
    dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        optimizer.step()
    dist.broadcast(model.weight.data, 0)
    optimizer.zero_grad()
    return {"loss": loss}


def nobody_is_told(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    loss = loss_of(model, batch)
    dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def root_sums(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    """A reduction leaves the gradients of the others undefined; the broadcast does not read them."""
    loss = loss_of(model, batch)
    dist.reduce(model.weight.grad, 0)
    model.weight.grad /= dist.get_world_size()
    dist.broadcast(model.weight.grad, 0)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def chained(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    """What rank 0 needs of rank 1 is made of what rank 1 alone needs of rank 0."""
    loss = loss_of(model, batch)
    gradient = model.weight.grad
    dist.all_reduce(gradient)
    mine = gradient / 2 if dist.get_rank() == 1 else torch.zeros_like(gradient)
    dist.all_reduce(mine)
    if dist.get_rank() == 0:
        gradient.copy_(mine)
        optimizer.step()
    dist.broadcast(model.weight.data, 0)
    optimizer.zero_grad()
    return {"loss": loss}


def gathers_for_rank_0(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    """An all-gather whose result one rank reads."""
    loss = loss_of(model, batch)
    lines = [torch.empty(4, 4) for _ in range(2)]
    dist.all_gather(lines, model.weight.grad)
    if dist.get_rank() == 0:
        model.weight.grad.copy_((lines[0] + lines[1]) / 2)
    dist.broadcast(model.weight.grad, 0)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def reads_nothing(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Metrics that nobody reads, and one that is made of another."""
    loss = loss_of(model, batch)
    dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    dist.reduce(shown, 0)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def meetings(plan: Plan) -> list[list[str]]:
    return [[op.name for op in c.program.ops if op.name in COLLECTIVES] for c in plan.classes]


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (rank_0_steps, [["all_reduce", "all_gather"]] * 2),
        (root_sums, [["all_reduce", "all_gather"]] * 2),
        (chained, [["all_reduce", "all_reduce", "all_gather"]] * 2),
        (gathers_for_rank_0, [["all_gather", "all_gather"]] * 2),
        (reads_nothing, [["all_reduce"]]),
    ],
)
def test_a_rendezvous_is_kept_for_those_who_need_it(step: Step, kept: list[list[str]]) -> None:
    """Classes were judged apart, and a plan refused in which "class c1 does not take part"."""
    made = definition(step)
    plan = capture(made, jobs=1)
    assert meetings(plan) == kept
    assert run(plan, made, steps=2).largest < 1e-8
    assert verify(plan).kind is Kind.PROVED
    for rank in range(2):
        traced = traced_lines(made, plan, rank)
        assert [line.text for line in traced] == [line.text for line in expected_lines(plan, rank)]


def test_weights_that_only_one_rank_steps_are_refuted() -> None:
    plan = capture(definition(nobody_is_told), jobs=1)
    assert meetings(plan) == [["all_reduce"]] * 2
    assert verify(plan).kind is Kind.REFUTED


def test_what_is_kept_for_others_has_to_be_captured() -> None:
    """Rank 1 hands over what has no lowering; that it does not read the sum is no excuse."""

    def step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = loss_of(model, batch)
        gradient = model.weight.grad
        if dist.get_rank() == 1:
            gradient = torch.lgamma(gradient)
        dist.all_reduce(gradient)
        if dist.get_rank() == 0:
            optimizer.step()
        dist.broadcast(model.weight.data, 0)
        optimizer.zero_grad()
        return {"loss": loss}

    with pytest.raises(Exception, match=r"no lowering for lgamma .*rank 1"):
        capture(definition(step), jobs=1)
