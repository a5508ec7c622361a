"""tv-check --fingerprint and --checkpoint, on real checkpoints of torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from checker import solvers
from checker.cli import main
from checker.errors import Malformed
from checker.reading.plan import read_plan
from checker.run.checkpoint import tensors
from checker.run.foreign import Foreign
from checker.run.tie import read_records, tied
from tests.checker.run.test_checkpoint import PLAN, step

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import answers, dump, row_parallel


def tv_check(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: object) -> tuple[int, list[str]]:
    monkeypatch.setattr(solvers, "RUNNERS", {})
    words = [str(o) for o in options]
    for name in ("one", "two"):
        (folder.parent / name).write_text(answers(folder, name, "0001 unsat\n0002 unsat\n"))
        words += ["--answers", str(folder.parent / name)]
    result = CliRunner().invoke(main, [str(folder), *words])
    return result.exit_code, result.output.splitlines()


def test_records_stand_beside_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = row_parallel()
    folder, plan = bundle.write(tmp_path / "b"), read_plan(dump(bundle.plan))
    (tmp_path / "records").mkdir()
    code, lines = tv_check(folder, monkeypatch, "--fingerprint", tmp_path / "records")
    assert (code, lines) == (1, ["FOREIGN: no record of rank 0, and of 2 ranks in all"])
    for rank in range(2):
        item = {"format": "trainverify-fingerprint", "version": 1, "rank": rank, "ranks": 2,
                "plan": plan.digest, "program": "0" * 64}  # fmt: skip
        (tmp_path / "records" / f"rank-{rank}.json").write_text(json.dumps(item))
    code, lines = tv_check(folder, monkeypatch, "--fingerprint", tmp_path / "records")
    assert code == 0 and lines[-2].startswith("fingerprint: all 2 ranks of a launch")


def test_what_cannot_be_read_is_malformed(tmp_path: Path) -> None:
    plan = read_plan(dump(row_parallel().plan))
    with pytest.raises(Malformed, match="nowhere: cannot be read"):
        read_records(tmp_path / "nowhere")
    with pytest.raises(Malformed, match=r"nowhere/\.metadata: cannot be read"):
        tied(plan, None, tmp_path / "nowhere")
    assert tied(plan, None, None) == []


def test_metadata_that_torch_writes_is_read(tmp_path: Path) -> None:
    """Its classes and their members are torch's, whatever this version of it pickles."""
    torch: Any = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    state = {"model": {"w": torch.zeros(4, 6)}, "optimizer": {"state": {"w": {"step": torch.tensor(1.0)}}}}
    checkpoint.save(state | {"epoch": 3}, checkpoint_id=tmp_path / "c", no_dist=True)
    found = tensors((tmp_path / "c/.metadata").read_bytes())
    assert found["model.w"].size == (4, 6) and found["model.w"].chunks == (((0, 0), (4, 6)),)
    assert found["optimizer.state.w.step"].size == ()


def _save(rank: int, folder: str, cut: int) -> None:
    """One of four gloo processes, on a mesh of 2 x 2."""
    import torch
    from torch import distributed
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import Placement

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=4, init_method=f"file://{folder}/store")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def on(*places: Placement) -> torch.Tensor:
        return distribute_tensor(torch.zeros(8, 6), mesh, places)

    state = {"model": {"w": on(Shard(0), Shard(cut))},
             "optimizer": {"state": {"w": {"exp_avg": on(Replicate(), Shard(0))}}}}  # fmt: skip
    checkpoint.save(state, checkpoint_id=f"{folder}/checkpoint")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 0])
def test_a_checkpoint_of_real_processes(tmp_path: Path, cut: int) -> None:
    """Sharded over both axes as the plan has it, it is this plan's; over one dimension, it is foreign."""
    torch: Any = pytest.importorskip("torch")
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=_save, args=(rank, str(tmp_path), cut)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * 4
    plan = step(**PLAN)
    if cut == 1:
        said = tied(plan, None, tmp_path / "checkpoint")
        assert said == ["checkpoint: 2 states have the shapes and the layout of the input relation"]
    else:
        with pytest.raises(Foreign, match=r"model\.w of the checkpoint is cut otherwise than params\.w"):
            tied(plan, None, tmp_path / "checkpoint")
