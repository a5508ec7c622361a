"""Real jobs of four gloo processes, compared with a plan before training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from orchestrator.capture import Definition, FingerprintError
from orchestrator.capture.fingerprint import expected_lines, fingerprint

Change = Callable[[int, Definition], Definition]


def _process(rank: int, definition: Definition, plan: Path, store: str, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=4, store=dist.FileStore(store, 4))
    try:
        result: object = fingerprint(definition, plan)
    except FingerprintError as error:
        result = str(error)
    after = torch.ones(())
    dist.all_reduce(after)  # the job's own groups still work
    queue.put((rank, result, float(after)))
    dist.barrier()
    dist.destroy_process_group()


def job(definition: Definition, plan: Plan, folder: Path, change: Change) -> dict[int, Any]:
    """What each rank of a job finds; ``change`` says what it runs in place of ``definition``."""
    dump(plan, folder / "plan.json.gz")
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(
            target=_process,
            args=(r, change(r, definition), folder / "plan.json.gz", f"{folder}/store", queue),
        )
        for r in range(4)
    ]
    for process in processes:
        process.start()
    results = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert all(after == 4 for _, _, after in results)
    return {rank: result for rank, result, _ in results}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_llama", "small_mlp"])
def test_a_job_that_runs_the_plan(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    definition, plan = request.getfixturevalue(name), request.getfixturevalue(f"{name}_plan")
    found = job(definition, plan, tmp_path, lambda _rank, same: same)
    assert {f.ranks for f in found.values()} == {4} and len({f.plan for f in found.values()}) == 1


@pytest.mark.slow
def test_another_constant_on_one_rank(small_mlp: Definition, small_mlp_plan: Plan, tmp_path: Path) -> None:
    def change(rank: int, same: Definition) -> Definition:
        other = dataclasses.replace(same, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-3, eps=1e-6))
        return other if rank == 2 else same

    found = job(small_mlp, small_mlp_plan, tmp_path, change)
    assert all("rank 2 does not run the certified plan from %" in text for text in found.values())
    assert "value=1/1000000" in found[2] and "value=1/100000000" in found[2]


@pytest.mark.slow
def test_a_collective_that_two_ranks_leave_out(
    small_mlp: Definition, small_mlp_plan: Plan, tmp_path: Path
) -> None:
    def without_bias(model: Any, optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    def change(rank: int, same: Definition) -> Definition:
        return dataclasses.replace(same, parallel_step=without_bias) if rank in (1, 3) else same

    found = job(small_mlp, small_mlp_plan, tmp_path, change)
    assert all("1 other rank differs too" in text for text in found.values())
    assert "rank 1 does" in found[0] and "rank 3 does" in found[3] and "mlp_handwritten.py" in found[0]


@pytest.mark.slow
def test_a_rank_that_cannot_be_traced(small_mlp: Definition, small_mlp_plan: Plan, tmp_path: Path) -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("no such thing")

    def change(rank: int, same: Definition) -> Definition:
        return dataclasses.replace(same, parallel_step=failing) if rank == 3 else same

    found = job(small_mlp, small_mlp_plan, tmp_path, change)
    assert all("rank 3 could not be traced" in text for text in found.values())
    assert "no such thing" in found[3]


@pytest.mark.slow
def test_another_mesh_is_refused(small_mlp: Definition, small_mlp_plan: Plan, tmp_path: Path) -> None:
    found = job(
        small_mlp, small_mlp_plan, tmp_path, lambda _r, d: dataclasses.replace(d, mesh={"dp": 4, "tp": 1})
    )
    assert all("the plan {'dp': 2, 'tp': 2}" in text for text in found.values())


@pytest.mark.slow
def test_lines_of_different_ranks_differ_in_their_scalars(small_mlp_plan: Plan) -> None:
    lines = [expected_lines(small_mlp_plan, rank) for rank in range(4)]
    assert {len(found) for found in lines} == {len(lines[0])}
