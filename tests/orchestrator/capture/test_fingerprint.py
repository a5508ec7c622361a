"""Jobs compared with a plan before training: one rank whose trace is written by hand, four gloo processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from certificates.plan.affine import Affine
from certificates.plan.plan import Mesh, Plan, RankClass
from certificates.plan.program import Loc, Op, Program
from certificates.plan.types import TensorType
from certificates.plan.writing import dump, dumps
from checker.reading.plan import read_plan
from checker.run.tie import tied
from orchestrator.capture import Batch, CaptureError, Definition, FingerprintError
from orchestrator.capture import fingerprint as module
from orchestrator.capture.errors import DefinitionError
from orchestrator.capture.fingerprint import expected_lines, fingerprint

Change = Callable[[int, Definition], Definition]


# --- one rank, written by hand -----------------------------------------------------------------------------

F = TensorType("f32", (4,))
TWICE = Affine.of(0, {"dp": 2})


def program(first: Affine = TWICE, result: str = "%2", **more: str) -> Program:
    """Half of a vector, from an element on that depends on the rank; ranks themselves have plain numbers."""
    half = TensorType("f32", (2,))
    ops = (
        Op("%0", "slice", ("x",), half, {"start": (first,), "stride": (Affine(1),)}),
        Op("%1", "multiply", ("%0", "%0"), half, {}, Loc(0, 7, "step")),
        Op("%2", "add", ("%1", "%0"), half, {}),
    )
    return Program({"x": F}, ops, {"y": result, **more})


def written(ranks: int = 2, **changes: Any) -> Plan:
    whole = RankClass("c0", {"dp": (0, ranks)}, program(**changes))
    return Plan("written", Mesh({"dp": ranks}), {}, ("model.py",), program(), (whole,), (), ())


def definition(ranks: int) -> Definition:
    return Definition(
        name="written",
        mesh={"dp": ranks},
        build=lambda: nn.Linear(4, 4),
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, optimizer, batch: {},
        batch={"x": Batch((4, 4))},
    )


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one process."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says what this rank runs: a program, or what its trace raises."""

    def replace(found: Program | CaptureError) -> None:
        def traced(*_: object) -> Program:
            if isinstance(found, CaptureError):
                raise found
            return found

        monkeypatch.setattr(module, "_traced_in_child", traced)

    return replace


@pytest.mark.usefixtures("alone")
def test_a_job_of_one_rank_is_compared(runs: Any) -> None:
    plan = written(ranks=1, z="%1")
    runs(program(Affine(0), z="%1"))
    assert fingerprint(definition(1), plan).ranks == 1
    runs(program(Affine(0), "%1", z="%2"))
    with pytest.raises(FingerprintError, match="rank 0 does not run the certified plan") as caught:
        fingerprint(definition(1), plan)
    assert "from output y on: it runs y = %1, the plan y = %2" in str(caught.value)
    runs(CaptureError("the step cannot be traced"))
    with pytest.raises(FingerprintError, match=r"rank 0 could not be traced: .*the step cannot be traced"):
        fingerprint(definition(1), plan)


@pytest.mark.parametrize(
    ("mine", "others", "told"),
    [
        (program(Affine(2)), [], None),
        (program(Affine(1)), [module._SAME], "rank 1 does not run the certified plan from %0 slice"),
        (program(Affine(2)), [1], "rank 0 does not run the certified plan from %0 slice f32[2] on"),
        (
            program(Affine(2)),
            [2],
            "does not run the certified plan from %1 multiply f32[2] (model.py:7 step) on",
        ),
        (program(Affine(2)), [module._FAILED], "rank 0 could not be traced: see its own error"),
        (
            program(Affine(2), z="%1"),
            [1],
            "from the end of the program on: it runs z = %1, the plan nothing; 1 other",
        ),
    ],
)
def test_a_rank_that_differs_is_told_to_every_rank(
    runs: Any, monkeypatch: pytest.MonkeyPatch, mine: Program, others: list[int], told: str | None
) -> None:
    """This is rank 1; it knows what it runs itself, and of rank 0 at which line it differs."""
    at = others[0] if others else module._SAME

    def gather(record: bytes, _group: object) -> list[bytes]:
        return [record[:32] + at.to_bytes(8, "little", signed=True), record]

    runs(mine)
    monkeypatch.setattr(module, "_gather", gather)
    monkeypatch.setattr(module.dist, "get_rank", lambda _group: 1)
    monkeypatch.setattr(module.dist, "get_world_size", lambda _group: 2)
    if told is None:
        assert fingerprint(definition(2), written()).ranks == 2
        return
    with pytest.raises(FingerprintError) as caught:
        fingerprint(definition(2), written())
    assert told in str(caught.value)


def test_every_input_op_and_output_of_a_rank_is_compared() -> None:
    lines = [line.text for line in expected_lines(written(), 1)]
    assert lines[0] == "x: f32[4]" and "start=[2] stride=[1]" in lines[1] and lines[-1] == "y = %2"
    assert len(lines) == 5
    once = written(first=Affine.of(0, {"dp": 1}))
    for other in (once, written(result="%1"), written(z="%0")):
        assert [line.text for line in expected_lines(other, 1)] != lines
    assert expected_lines(once, 0) == expected_lines(written(), 0), "the same where both begin at 0"


def test_it_is_refused_where_a_fork_would_break_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(DefinitionError, match="in a forked child: call it before CUDA is in use"):
        fingerprint(definition(1), written(ranks=1))


# --- four processes ----------------------------------------------------------------------------------------


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
    for result in found.values():
        result.write(tmp_path / "records")
    said = tied(read_plan(dumps(plan)), tmp_path / "records", None)
    assert said[0].startswith("fingerprint: all 4 ranks of a launch compared their own step with this plan")


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
