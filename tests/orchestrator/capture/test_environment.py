"""A rank runs in the environment that ``torchrun`` would give it, the single device in that of no job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from orchestrator.capture.environment import alone, as_rank
from orchestrator.capture.errors import DefinitionError, GroupError
from orchestrator.capture.userfile import load_definition

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
        assert dist.is_torchelastic_launched() and "TORCHELASTIC_RUN_ID" in os.environ
        assert (os.environ["ROLE_RANK"], os.environ["ROLE_WORLD_SIZE"]) == ("3", "8")
        assert os.environ["GROUP_WORLD_SIZE"] == os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert not dist.is_torchelastic_launched()
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


def test_gradients_of_collectives_are_those_of_the_backend_of_a_job() -> None:
    """With NCCL, what ``all_gather`` of ``torch.distributed.nn`` passes back is a reduce-scatter."""
    from torch.distributed.nn import functional

    asked = eval("lambda: dist.get_backend()", vars(functional))
    with as_rank(0, 2):
        assert asked() == "nccl" and asked() is dist.Backend.NCCL


def test_a_model_that_asks_for_the_backend_is_told_that_of_a_job() -> None:
    """PyTorch calls it: who asks is the code that has the question, not what lies around it."""
    with as_rank(0, 2):
        assert Asking()(torch.zeros(1)) == "nccl"


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


LOOKS = (
    "ENV = dict(os.environ)",
    "ENV = os.environ.copy()",
    "ENV = {**os.environ}",
    "ENV = os.environ | {}",
    "ENV = any(k.endswith('WORLD_SIZE') for k in os.environ)",
    "ENV = len(os.environ)",
    "ENV = [*os.environ.items(), *os.environ.values()]",
    "ENV = str(os.environ)",
    "ENV = dict(os.environb)",
)


@pytest.mark.parametrize("line", LOOKS)
def test_a_file_that_looks_through_all_variables_while_it_is_loaded_is_refused(
    tmp_path: Path, line: str
) -> None:
    """A copy that is asked for WORLD_SIZE later has none in a trace; a job's has."""
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(line=line, inside="pass"))
    with pytest.raises(DefinitionError, match="reads all variables of the environment while it is") as caught:
        load_definition(path)
    assert re.search(r"mine\.py:3\b", str(caught.value)) and "os.environ.get(NAME)" in str(caught.value)
    assert len(os.environ) == len(dict(os.environ)), "afterwards all may be read"


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("RANKS = dist.get_world_size() if dist.is_initialized() else 1", "asks for the process group"),
        ("from torch.distributed import is_initialized as asks; JOB = asks()", "asks for the process group"),
        ("try:\n    RANK = dist.get_rank()\nexcept Exception: RANK = 0", "asks for the process group"),
        ("ALONE = dist.group.WORLD is None", "asks for the process group"),
        ("JOB = dist.is_torchelastic_launched()", "reads TORCHELASTIC_RUN_ID"),
        ("RANK = dist.get_node_local_rank(0)", "reads LOCAL_RANK"),
        ("RANK = os.environb.get(b'RANK')", "reads RANK"),
        ("try:\n    del os.environ['RANK']\nexcept KeyError: pass", "reads RANK"),
    ],
)
def test_a_file_that_asks_for_a_job_while_it_is_loaded_is_refused(
    tmp_path: Path, line: str, reads: str
) -> None:
    """A launcher makes the process group before it imports the file: there the answer is another one."""
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(line=f"import torch.distributed as dist\n{line}", inside="pass"))
    with pytest.raises(DefinitionError, match=f"the file {reads} while it is loaded, once for the single"):
        load_definition(path)


def test_a_file_that_reads_another_variable_is_loaded(tmp_path: Path) -> None:
    """What PyTorch and Python's library ask for themselves is theirs."""
    path = tmp_path / "mine.py"
    lines = "import subprocess, torch.distributed as dist; HOME = os.environ.get('HOME')\n"
    lines += "assert dist.is_available() and subprocess.run(['true']).returncode == 0\n"
    lines += "os.environ['OF_MINE'] = '1'; del os.environ['OF_MINE']"
    path.write_text(FILE.format(line=lines, inside="os.environ.get('HOME')"))
    assert load_definition(path).name == "x"
    with as_rank(0, 2):
        assert dist.is_initialized() and dist.group.WORLD is not None


def test_a_file_reads_its_environment_as_bytes_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import os\nHOME = os.environb[b'PATH']\ndefinition = 3\n")
    with pytest.raises(DefinitionError, match="`definition` is a int"):
        load_definition(path)


def test_which_backends_there_are_beside_one_another_is_not_answered() -> None:
    """The trace said traced, and get_backend nccl."""
    with as_rank(0, 2), pytest.raises(GroupError, match="get_backend_config asks which backends a job has"):
        dist.get_backend_config()
