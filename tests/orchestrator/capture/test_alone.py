"""The specification runs alone; a rank in the environment that ``torchrun`` would give it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.capture import Batch, Definition, capture
from orchestrator.capture.environment import alone, as_rank
from orchestrator.capture.errors import CaptureError, ClosureError, DefinitionError
from orchestrator.capture.tracing import trace
from orchestrator.capture.userfile import load_definition


def definition(loss: Any, **changes: Any) -> Definition:
    """Data parallel over two ranks; ``loss(model, batch)`` is differentiated."""

    def step(model: nn.Module, optimizer: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        total = loss(model, batch)
        total.backward()
        if dist.is_initialized():
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    rows = Batch((4, 3), shard={"dp": 0})
    fields: dict[str, Any] = {
        "name": "alone",
        "mesh": {"dp": 2},
        "build": lambda: nn.Linear(3, 3, bias=False),
        "parallelize": lambda model, mesh: model,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "step": step,
        "batch": {"x": rows, "y": rows},
        "layouts": {"weight": {}},
        "mean_over": {"loss": ("dp",)},
    }
    return Definition(**fields | changes)


def error(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def by_world_size(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return error(model, batch) / dist.get_world_size()


def by_rank(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return error(model, batch) * (1 + dist.get_rank())


def reduced(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    loss = error(model, batch)
    dist.all_reduce(loss.detach())
    return loss


@pytest.mark.parametrize("loss", [by_world_size, by_rank, reduced])
def test_the_single_device_has_no_process_group(loss: Any) -> None:
    """``loss / get_world_size()`` used to divide on both sides."""
    with pytest.raises(ValueError, match="process group has not been initialized"):
        trace(definition(loss), None)


@pytest.mark.slow
def test_the_refusal_says_so_in_words_and_names_the_line() -> None:
    message = (
        r"there is no process group here: a single device has none[\s\S]*test_alone\.py:\d+ in by_world_size"
    )
    with pytest.raises(CaptureError, match=message):
        capture(definition(by_world_size), jobs=1)


VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "SLURM_PROCID",
)


def test_the_environment_of_a_job_is_that_of_the_rank_and_comes_back(monkeypatch: Any) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = dict(os.environ)
    with alone():
        assert [os.environ.get(v) for v in VARIABLES] == [None] * 7
        os.environ["WORLD_SIZE"] = "9"
    assert dict(os.environ) == before
    with as_rank(3, 8):
        assert [os.environ.get(v) for v in VARIABLES] == ["3", "8", "3", "8", "0", "localhost", None]
        assert dist.get_backend() == "nccl"
    assert dict(os.environ) == before and not dist.is_initialized()


def test_a_launched_rank_keeps_what_its_launcher_said(monkeypatch: Any) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with as_rank(3, 4):
        assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("1", "2")
    for rank, size in ((2, 4), (3, 8)):  # another rank, or another job, has another place on its host
        with as_rank(rank, size):
            assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == (str(rank), str(rank))
            assert os.environ["WORLD_SIZE"] == str(size)


class Asking(nn.Module):
    def forward(self, x: Tensor) -> str:
        return str(dist.get_backend())


def test_a_model_that_asks_for_the_backend_is_told_that_of_a_job() -> None:
    """PyTorch calls it: who asks is the code that has the question, not what lies around it."""
    with as_rank(0, 2):
        assert Asking()(torch.zeros(1)) == "nccl"


@pytest.mark.slow
def test_a_loss_divided_by_the_world_size_of_the_environment_is_divided_on_the_ranks_only() -> None:
    def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return error(model, batch) * (13 * int(os.environ.get("WORLD_SIZE", "1")))

    plan = capture(definition(loss), jobs=1)
    assert "26" in str(plan.classes[0].program.ops) and "26" not in str(plan.specification.ops)


FILE = """
import os
{line}
from orchestrator.capture import Definition
def definition():
    {inside}
    nothing = dict.fromkeys(("build", "parallelize", "optimizer", "step"))
    return Definition(name="x", mesh={{"dp": 2}}, batch={{}}, **nothing)
"""


@pytest.mark.parametrize(
    ("line", "inside", "at"),
    [
        ("WORLD = int(os.environ.get('WORLD_SIZE', 1))", "pass", 3),
        ("RANK = os.getenv('RANK')", "pass", 3),
        ("WORLD = 'WORLD_SIZE' in os.environ", "pass", 3),
        ("pass", "os.environ.get('LOCAL_RANK', 0)", 6),
    ],
)
def test_a_file_that_reads_its_rank_while_it_is_loaded_is_refused(
    tmp_path: Path, line: str, inside: str, at: int, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(line=line, inside=inside))
    with pytest.raises(DefinitionError, match="while it is loaded, once for the single device") as caught:
        load_definition(path)
    assert re.search(rf"mine\.py:{at}\b", str(caught.value))


def test_a_file_that_reads_another_variable_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(line="HOME = os.environ.get('HOME')", inside="dict(os.environ)"))
    assert load_definition(path).name == "x"


def test_uninitialised_memory_of_the_single_device_is_refused() -> None:
    """The plan may hold other garbage: equal names used to make the two equal."""

    def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        noise = torch.empty(4, 3)
        noise[:2] = 0
        return error(model, {"x": batch["x"] + noise, "y": batch["y"]})

    message = r"memory that nothing has written[\s\S]*test_alone\.py:\d+ in loss"
    with pytest.raises(ClosureError, match=message):
        trace(definition(loss), None)


def test_uninitialised_memory_that_is_written_before_it_is_read_is_none() -> None:
    def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        doubled = torch.empty(4, 3)
        torch.mul(batch["x"], 2, out=doubled)
        return error(model, {"x": doubled, "y": batch["y"]})

    assert not any(n.startswith("uninit") for n in trace(definition(loss), None).program.inputs)


@pytest.mark.slow
def test_roles_are_declared() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3, bias=False)
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return super().forward(x * self.scale)

    plan = capture(
        definition(error, build=Scaled, optimizer=lambda params: torch.optim.AdamW(params)), jobs=1
    )
    assert plan.given == ("batch.x", "batch.y", "hyper.lr")
    assert plan.constants == ("buffers.scale",) and "buffers.calls" in plan.specification.outputs


def test_a_file_reads_its_environment_as_bytes_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import os\nHOME = os.environb[b'PATH']\ndefinition = 3\n")
    with pytest.raises(DefinitionError, match="`definition` is a int"):
        load_definition(path)
