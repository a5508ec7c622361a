"""Schedules of torch.distributed.pipelining: a small GPT as PyTorch runs it, proved and run over gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import pipelining

from certificates.plan.calls import Call, calls
from certificates.plan.plan import Plan
from orchestrator.capture import Batch, CaptureError, Definition, capture
from orchestrator.capture.errors import DefinitionError
from orchestrator.capture.pipelining import VOTE, static_stages
from orchestrator.capture.running import run
from tests.corpus.run import shown
from tests.schedule_plans import judged
from trainverify import Kind, verify

from .conftest import load_example

SCHEDULES = [
    ("ScheduleGPipe", 2),
    ("Schedule1F1B", 2),
    ("ScheduleInterleaved1F1B", 4),
    ("ScheduleLoopedBFS", 4),
    ("ScheduleInterleavedZeroBubble", 4),
    ("ScheduleZBVZeroBubble", 4),
    ("ScheduleDualPipeV", 4),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "blocks"), SCHEDULES)
def test_a_gpt_in_stages_is_the_plain_gpt_on_the_whole_batch(schedule: str, blocks: int) -> None:
    sizes: dict[str, Any] = {"blocks": blocks, "dim": 4, "vocab": 6, "rows": 8, "length": 3, "adam": 0}
    made = load_example("pipeline_gpt.py", schedule=schedule, **sizes)
    plan = capture(made, jobs=1)
    assert plan.mesh.axes == {"mb": 4, "pp": 2} and plan.mesh.time == ("mb",)
    assert VOTE in plan.provenance["shims"]  # type: ignore[operator]
    assert verify(plan).kind is Kind.PROVED
    found = judged(plan)
    assert found is not None and found.safe
    assert run(plan, made, steps=2).largest < 1e-9


def not_scaled(model: Any) -> None:
    """For a loss that sums: this one averages."""
    model.schedule.scale_grads = False


#: What is done to a rank's model, to the batch, to what a step returns; and an output that shows it.
WRONG: dict[str, tuple[Callable[[Any], None], Callable[[Any], Any], float, str]] = {
    "gradients of a mean not divided": (not_scaled, lambda batch: batch, 1.0, "params.*"),
}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["Schedule1F1B"])
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_use_of_a_schedule_is_refuted(mistake: str, schedule: str) -> None:
    change, of_batch, factor, output = WRONG[mistake]
    sizes: dict[str, Any] = {"blocks": 4, "dim": 4, "vocab": 6, "rows": 8, "length": 3, "adam": 0}
    made = load_example("pipeline_gpt.py", schedule=schedule, **sizes)
    right, step = made.parallelize, made.parallel_step
    assert step is not None

    def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
        held = right(model, mesh)
        change(held)
        return held

    def wrong(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {name: value * factor for name, value in step(model, optimizer, of_batch(batch)).items()}

    plan = capture(replace(made, parallelize=parallelize, parallel_step=wrong), jobs=1)
    assert fnmatchcase(shown(plan).plan, output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "blocks", "functions"),
    [("Schedule1F1B", 8, 3), ("ScheduleZBVZeroBubble", 12, 2)],
)
def test_the_layers_of_a_deep_gpt_are_functions_at_its_stages(
    schedule: str, blocks: int, functions: int
) -> None:
    """Forward, backward and the optimizer's step; where what is left for later is no function, the backward
    pass is flat."""
    sizes: dict[str, Any] = {"blocks": blocks, "dim": 4, "vocab": 6, "rows": 8, "length": 3}
    made = load_example("pipeline_gpt.py", schedule=schedule, **sizes)
    plan = capture(made, jobs=1)
    assert plan.version == 4 and {f.along for f in plan.functions.values()} == {("pp",)}
    whole = [f for f in plan.functions if len({c.instance for c in plan_calls(plan, f)}) > blocks // 2]
    assert len(whole) == functions
    assert verify(plan).kind is Kind.PROVED
    found = judged(plan)
    assert found is not None and found.safe
    assert run(plan, made, steps=2).largest < 1e-9


def plan_calls(plan: Plan, function: str) -> list[Call]:
    return [c for cls in plan.classes for c in calls(cls.program) if c.function == function]


def test_the_vote_is_answered_only_inside_a_trace() -> None:
    before = pipelining.PipelineStage._warmup_forward_vote
    with static_stages() as used:
        assert pipelining.PipelineStage._warmup_forward_vote is not before and not used
    assert pipelining.PipelineStage._warmup_forward_vote is before


def dynamic(model: Any, mesh: Any) -> nn.Module:
    """The first stage is given no shapes: PyTorch would send them round in the first step."""
    part = nn.Sequential(model[0]) if mesh.get_local_rank("pp") == 0 else nn.Sequential(model[1])
    stage = pipelining.PipelineStage(part, mesh.get_local_rank("pp"), 2, torch.device("cpu"))
    part.schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=lambda y, t: (y - t).square().mean())
    return part


def test_a_stage_that_does_not_know_its_shapes_is_refused() -> None:
    def plain(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": (model(batch["x"]) - batch["x"]).square().mean()}

    def staged(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        model.schedule.step(batch["x"])
        return {}

    made = Definition(
        name="dynamic",
        mesh={"pp": 2},
        build=lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
        parallelize=dynamic,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=plain,
        parallel_step=staged,
        batch={"x": Batch((4, 3))},
    )
    with pytest.raises(CaptureError, match="stage 0 learns in its first step what shapes") as caught:
        capture(made, jobs=1)
    found = next(p for p in caught.value.problems() if "learns in its first step" in p.message)
    assert isinstance(found, DefinitionError) and "input_args=x" in (found.instead or "")
    assert found.frame is not None and found.frame[0] == __file__
