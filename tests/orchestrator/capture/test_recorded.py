"""The order in which ranks were seen to run and send, as the schedule of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist

from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.program import Op, Program
from certificates.plan.schedule import Batch, Run, Wait
from certificates.plan.types import TensorType
from orchestrator.capture import capture
from orchestrator.capture.builder import WAIT
from orchestrator.capture.fold import fold_plan
from orchestrator.capture.recorded import Trace, scheduled, without_waits
from orchestrator.scheduling import when

from .conftest import load_example
from .test_fold import COUNT, loop
from .test_messages import pipeline

F = TensorType("f32", (2,))


def test_a_plan_has_neither_waits_nor_how_messages_were_issued() -> None:
    ops = (
        Op("%0", "recv", (), F, {"seq": 0, "from": (), "channel": "pp", "batch": 3}),
        Op("%1", WAIT, ("%0",), F),
        Op("%2", "add", ("%0", "x"), F),
    )
    made = without_waits(Program({"x": F}, ops, {"y": "%2", "x": "x"}))
    assert [(op.out, op.name, op.ins, dict(op.attrs)) for op in made.ops] == [
        ("%0", "recv", (), {"seq": 0, "from": ()}),
        ("%1", "add", ("%0", "x"), {}),
    ]
    assert made.outputs == {"y": "%1", "x": "x"}


def order(plan: Plan, lane: int) -> list[str]:
    """Messages by end and run, segments of microbatches by run, waits."""
    assert plan.schedule is not None
    found = []
    for event in plan.schedule.lanes[lane].events:
        match event:
            case Run(segment, run) if segment not in plan.schedule.once[plan.classes[lane].name]:
                found.append(f"run {run}")
            case Batch(_, items, _):
                found.append(" ".join(f"{i.end} {i.run}" for i in items))
            case Wait():
                found.append("wait")
    return found


def test_an_op_that_no_rank_was_seen_to_run_has_no_place_in_a_schedule() -> None:
    """What folding makes beside the traced ops; the checker would refuse the segments."""
    plan, _, made = fold_plan(loop(), COUNT)
    (found,) = made.values()
    trace = Trace(found.traced, found.places, found.seqs)
    assert scheduled(plan, {"c0": trace}).schedule is not None
    unseen = next(i for i, op in enumerate(plan.classes[0].program.ops) if op.name == "dot_general")
    places = {value: place for value, place in found.places.items() if place[0] != unseen}
    with pytest.raises(FormatError, match=f"%{unseen} dot_general of class c0 was not seen to run"):
        scheduled(plan, {"c0": Trace(found.traced, places, found.seqs)})


@pytest.mark.slow
def test_all_forwards_and_then_all_backwards() -> None:
    sizes = {"dp": 1, "microbatches": 2, "blocks": 2, "dim": 4, "hidden": 6, "rows": 4}
    plan = capture(load_example("pipeline_handwritten.py", **sizes), jobs=1)
    certificate = when(plan)
    assert certificate is not None and not certificate.circle
    assert order(plan, 0) == [
        *("run 0", "send 0", "run 1", "send 1"),
        *("recv 0", "wait", "run 0", "recv 1", "wait", "run 1", "wait", "wait"),
    ]
    assert [e for e in order(plan, 1) if not e.startswith("run")] == [
        *("recv 0", "wait", "recv 1", "wait", "send 0", "send 1", "wait", "wait"),
    ]


def exchanges(first: bool) -> Any:
    """Two stages that exchange messages at every microbatch; both send first, or one does."""

    def together(model: Any, optimizer: Any, batch: Any) -> Mapping[str, torch.Tensor]:
        here, losses = dist.get_rank(), []
        for x in batch["x"].chunk(2):
            mine = model.first(x).tanh() if model.first is not None else x * 2
            theirs = torch.empty_like(mine)
            if first or here == 0:
                dist.send(mine.detach(), 1 - here)
                dist.recv(theirs, 1 - here)
            else:
                dist.recv(theirs, 1 - here)
                dist.send(mine.detach(), 1 - here)
            if model.second is not None:
                losses.append(model.second(theirs).square().sum())
        return {"loss": torch.stack(losses).sum().detach()} if losses else {}

    def alone(model: Any, optimizer: Any, batch: Any) -> Mapping[str, torch.Tensor]:
        return {"loss": model.second(model.first(batch["x"]).tanh()).square().sum().detach()}

    return pipeline(parallel_step=together, step=alone)


@pytest.mark.slow
def test_two_ranks_that_both_send_first_wait_for_one_another() -> None:
    """Every value is right; no trace of one rank shows that the job hangs."""
    hangs, runs = (when(capture(exchanges(first), jobs=1)) for first in (True, False))
    assert hangs is not None and hangs.circle
    assert runs is not None and not runs.circle
