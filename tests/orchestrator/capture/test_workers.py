"""Real processes are told what to do, answer with numbers, and end with what went wrong in one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from orchestrator.capture import Batch, Definition
from orchestrator.capture.errors import RunError
from orchestrator.capture.workers import Workers


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


def parallel_step(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    """The sum over all ranks of the batch, and the rank's coordinate on the mesh."""
    total = batch["x"].sum()
    dist.all_reduce(total)
    return {"total": total, "place": torch.tensor(float(model.mesh.get_local_rank("dp")))}


def failing(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    if dist.get_rank() == 1:
        raise ValueError("boom")
    return {}


def dying(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
    os._exit(3)


def definition(what: object) -> Definition:
    """What every process makes by itself of a word."""

    def parallelize(model: Any, mesh: Any) -> Any:
        model.mesh = mesh
        return model

    steps = {"right": parallel_step, "failing": failing, "dying": dying}
    return Definition(
        name=str(what),
        mesh={"dp": 2},
        build=Weight,
        parallelize=parallelize,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, optimizer, batch: {"total": batch["x"].sum()},
        parallel_step=steps[str(what)],
        batch={"x": Batch((4,), shard={"dp": 0})},
    )


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2, definition) as running:
        yield running


def rows(*numbers: float) -> dict[str, Any]:
    return {"batch.x": np.array(numbers)}


def test_ranks_meet_in_their_collectives_and_the_single_device_has_none(workers: Workers) -> None:
    """One set of processes serves one definition after another."""
    for wide in (True, False):
        workers.open("right", wide, 0)
        third = 1 / 3
        given = {None: rows(1, 2, 3, third), 0: rows(1, 2), 1: rows(3, third)}
        answers = workers.ask("step", given)
        errors = {rank: abs(float(a["total"]) - 19 / 3) for rank, a in answers.items()}
        assert set(errors) == {None, 0, 1} and max(errors.values()) < 1e-6
        assert (max(errors.values()) < 1e-12) == wide
        assert [float(answers[r]["place"]) for r in (0, 1)] == [0, 1] and "place" not in answers[None]


def test_a_step_that_fails_on_one_rank_is_told_with_the_rank_and_the_line(workers: Workers) -> None:
    workers.open("failing", True, 0)
    with pytest.raises(RunError, match="the real step of the rank failed: ValueError: boom") as caught:
        workers.ask("step", {0: rows(1, 2), 1: rows(3, 4)})
    assert caught.value.rank == 1 and caught.value.frame is not None
    assert caught.value.frame[2] == "failing"
    workers.open("right", True, 0)  # and the processes go on


def test_a_process_that_dies_is_named_and_all_are_gone_afterwards() -> None:
    """Nothing waits for it: the others would stand in a collective for minutes."""
    with Workers(2, definition) as running:
        running.open("dying", True, 0)
        with pytest.raises(RunError, match="the process of a real run died") as caught:
            running.ask("step", {1: rows(1, 2)})
        processes = list(running._processes)
    assert caught.value.rank == 1
    assert len(processes) == 3 and not any(p.is_alive() for p in processes)
