"""Captured steps that accumulate gradients; the specification is a single device on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.errors import DefinitionError
from orchestrator.capture.fingerprint import fingerprint
from orchestrator.capture.microbatches import NOTE, with_time_axis
from orchestrator.capture.running import run
from tests.schedule_plans import judged
from trainverify import Kind, verify

from .conftest import load_example
from .test_fold import Step, loop, passed_on, total

COUNT = 3
Loop = Callable[[Any, torch.Tensor], torch.Tensor]


def test_a_loop_that_the_single_device_has_not_is_folded() -> None:
    found = with_time_axis(loop())
    assert found.mesh.time == ("mb",) and found.provenance[NOTE] == "3, one program at each"


def test_a_loop_that_the_single_device_has_too_stays_as_it_is() -> None:
    """Its sums are those of the specification, microbatch by microbatch."""
    plan = loop()
    program = plan.classes[0].program
    assert with_time_axis(replace(plan, specification=program)) == replace(plan, specification=program)


def test_microbatches_that_are_not_alike_stay_unrolled_and_say_why() -> None:
    step, before = Step(), list[Any]()
    losses, gradients = zip(*(passed_on(step, k, before) for k in range(COUNT)), strict=True)
    plan = step.plan(losses[-1], total(list(gradients)))
    found = with_time_axis(plan)
    (reason,) = found.provenance[NOTE]  # type: ignore[misc]
    assert reason.startswith("3 are not one program: multiply joins microbatches, where only sums and stacks")
    assert "test_fold.py:" in reason
    assert replace(found, provenance={}) == replace(plan, provenance={})


def accumulates(model: Any, x: torch.Tensor) -> torch.Tensor:
    losses = []
    for rows in x.chunk(COUNT):
        loss = model(rows).square().mean() / COUNT
        loss.backward()
        losses.append(loss.detach())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    return sum(losses)  # type: ignore[return-value]


def without_sync(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The Reducer comes in with the last microbatch, whose gradient it adds to those before."""
    total = torch.zeros(())
    for i, rows in enumerate(x.chunk(COUNT)):
        if i < COUNT - 1:
            with model.no_sync():
                loss = model(rows).square().mean() / COUNT
                loss.backward()
        else:
            loss = model(rows).square().mean() / COUNT
            loss.backward()
        total += loss.detach()
    return total


def forgets_one(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Gradients of the first microbatch are dropped."""
    losses = []
    for i, rows in enumerate(x.chunk(COUNT)):
        loss = model(rows).square().mean() / COUNT
        loss.backward()
        if i == 0:
            model.zero_grad()
        losses.append(loss.detach())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    return sum(losses)  # type: ignore[return-value]


def scales_wrongly(model: Any, x: torch.Tensor) -> torch.Tensor:
    losses = []
    for rows in x.chunk(COUNT):
        loss = model(rows).square().mean()
        loss.backward()
        losses.append(loss.detach() / COUNT)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    return sum(losses)  # type: ignore[return-value]


def definition(looped: Loop, ddp: bool = False) -> Definition:
    def plain(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def parallel(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = looped(model, batch["x"])
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return Definition(
        name="accumulates",
        mesh={"dp": 2},
        build=lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        parallelize=lambda model, mesh: DistributedDataParallel(model) if ddp else model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=plain,
        parallel_step=parallel,
        batch={"x": Batch((4 * COUNT, 4), shard={"dp": 0})},
        mean_over={"loss": ("dp",)},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("looped", "ddp", "kind"),
    [
        (accumulates, False, Kind.PROVED),
        (without_sync, True, Kind.PROVED),
        (scales_wrongly, False, Kind.REFUTED),
    ],
)
def test_accumulated_gradients_are_those_of_the_whole_batch(looped: Loop, ddp: bool, kind: Kind) -> None:
    made = definition(looped, ddp)
    plan = capture(made, jobs=1)
    assert plan.mesh.time == ("mb",) and plan.mesh.axes["mb"] == COUNT
    assert verify(plan).kind is kind
    assert run(plan, made, steps=2).largest < 1e-6


@pytest.mark.slow
def test_a_gradient_that_is_dropped_is_refuted_unrolled() -> None:
    plan = capture(definition(forgets_one), jobs=1)
    assert not plan.mesh.time and verify(plan).kind is Kind.REFUTED
    assert "are not one program" in str(plan.provenance[NOTE])


@pytest.mark.slow
def test_a_launch_is_not_compared_with_a_plan_at_every_microbatch() -> None:
    made = definition(accumulates)
    with pytest.raises(DefinitionError, match="has a time axis"):
        fingerprint(made, capture(made, jobs=1))


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "dp", "microbatches"), [(2, 2, 3), (4, 1, 4)])
def test_stages_written_by_hand_are_proved_at_every_microbatch(
    stages: int, dp: int, microbatches: int
) -> None:
    """A stage in the middle cuts no batch: what it receives is of the microbatch of what was sent."""
    sizes = {"stages": stages, "dp": dp, "microbatches": microbatches, "dim": 4, "hidden": 6, "rows": 24}
    made = load_example("pipeline_handwritten.py", **sizes)
    plan = capture(made, jobs=1)
    assert plan.mesh.axes == {"mb": microbatches, "pp": stages, "dp": dp}
    assert verify(plan).kind is Kind.PROVED
    found = judged(plan)
    assert found is not None and found.safe
    assert run(plan, made, steps=2).largest < 1e-9
