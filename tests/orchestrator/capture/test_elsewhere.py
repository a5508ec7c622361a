"""What one process decides, such as the order of a set of texts, is no program: tv-capture traces in two."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.capture.cli import main
from orchestrator.capture.elsewhere import _doubtful
from orchestrator.capture.fitting import Sample

FILE = """
import random
import torch
import torch.distributed as dist
from torch import nn
from orchestrator.capture import Batch, Definition

NAMES = {names}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for name in "abcdefgh":
            setattr(self, name, nn.Linear(2, 2, bias=False))

    def forward(self, x):
        for name in "abcdefgh":
            x = getattr(self, name)(x)
        return x

def step(model, optimizer, batch):
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {{"loss": loss.detach()}}

def on_ranks(model, optimizer, batch):
    loss = model(batch["x"]).square().mean()
    loss.backward()
    for name in NAMES:
        grad = getattr(model, name).weight.grad
        dist.all_reduce(grad)
        grad /= 2
    optimizer.step()
    optimizer.zero_grad()
    return {{"loss": loss.detach()}}

definition = Definition(
    name="m", mesh={{"dp": 2}}, build=Model, parallelize=lambda model, mesh: model,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), step=step, parallel_step=on_ranks,
    batch={{"x": Batch((4, 2), shard={{"dp": 0}})}}, mean_over={{"loss": ("dp",)}},
)
"""


def captured(folder: Path, names: str, text: str = FILE) -> tuple[int, str]:
    file = folder / "model.py"
    file.write_text(text.format(names=names))
    result = CliRunner().invoke(
        main, [str(file), "--out", str(folder / "plan.json"), "--jobs", "1", "--quiet"]
    )
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.parametrize("names", ['set("abcdefgh")', 'random.sample("abcdefgh", 8)'])
def test_what_another_process_does_otherwise_is_refused_at_its_line(tmp_path: Path, names: str) -> None:
    """Each rank would reduce its gradients in an order of its own."""
    code, said = captured(tmp_path, names)
    assert code == 3 and "one process runs" in said and "model.py:33 in on_ranks" in said
    assert "sorted(names)" in said and not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("loaded", "sets", "ranks"),
    [
        ((0, 0), [(0, 5), (0, 5), (0, 7), (0, 7)], [0, 2]),  # FSDP's own, on two stages
        ((0, 3), [(0, 0), (0, 0), (0, 0), (0, 1)], [0, 3]),
        ((0, 0), [(1, 5), (1, 5), (1, 5), (0, 5)], [0, 1, 2]),
        ((1, 0), [(0, 0), (0, 0), (0, 0), (0, 0)], [0, 1, 2, 3]),
        ((0, 0), [(0, 0), (0, 0), (0, 0), (0, 0)], []),
    ],
)
def test_ranks_that_sets_of_the_users_concern_are_asked_and_one_of_each_that_a_librarys_do(
    loaded: tuple[int, int], sets: list[tuple[int, int]], ranks: list[int]
) -> None:
    asked = {rank: ("", both, (), ()) for rank, both in enumerate(sets)}
    assert _doubtful(asked, Sample(0, "", (), {}, 1, None), ("", loaded, 4)) == ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["(0, 1)", "(1,)"])
def test_so_is_a_set_that_a_library_goes_through(tmp_path: Path, ranks: str) -> None:
    """Libraries go through sets of their own on all ranks alike: one that has gone through more is asked."""
    clipped = f"if dist.get_rank() in {ranks}: nn.utils.clip_grad_norm_(set(model.parameters()), 1.0)"
    text = FILE.replace("        grad /= 2\n", f"        grad /= 2\n    {clipped}\n")
    code, said = captured(tmp_path, '"abcdefgh"', text)
    assert code == 3 and "one process runs" in said and "model.py:35 in on_ranks" in said


@pytest.mark.slow
def test_what_is_sorted_or_seeded_is_captured(tmp_path: Path) -> None:
    code, said = captured(tmp_path, 'sorted(set("abcdefgh"))')
    assert (code, said) == (0, f"{tmp_path / 'plan.json'}: 2 ranks in 1 classes, {said.split()[-2]} ops\n")


@pytest.mark.slow
def test_a_file_that_only_one_process_can_load_is_refused(tmp_path: Path) -> None:
    once = tmp_path / "once"
    code, said = captured(tmp_path, f'(open({str(once)!r}, "x"), "abcdefgh")[1]')
    assert code == 3 and "it cannot be traced in a process of its own" in said and "FileExistsError" in said


PIECES = """
import random
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from orchestrator.capture import Batch, Definition

{top}

def build():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False))

def parallelize(model, mesh):
    rank = mesh.get_rank()
    piece = {piece}
    model[0].weight = nn.Parameter(model[0].weight.detach().chunk(2, 0)[piece].clone())
    model[1].weight = nn.Parameter(model[1].weight.detach().chunk(2, 1)[piece].clone())
    return model

def step(model, optimizer, batch):
    loss = model(batch["x"]).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {{"loss": loss.detach()}}

def on_ranks(model, optimizer, batch):
    h = model(batch["x"])
    out = h.detach().clone()
    dist.all_reduce(out)
    loss = (out + (h - h.detach())).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {{"loss": loss.detach()}}

definition = Definition(
    name="m", mesh={{"tp": 2}}, build=build, parallelize=parallelize,
    optimizer=lambda params: torch.optim.AdamW(params, lr={rate}), step=step, parallel_step=on_ranks,
    batch={{"x": Batch((4, 4))}},
)
"""


def pieces(folder: Path, top: str = "", piece: str = "rank", rate: str = "0.1") -> tuple[int, str]:
    file = folder / "model.py"
    file.write_text(PIECES.format(top=top, piece=piece, rate=rate))
    result = CliRunner().invoke(
        main, [str(file), "--out", str(folder / "plan.json"), "--jobs", "1", "--quiet"]
    )
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"top": "ORDER = random.sample(range(2), 2)", "piece": "ORDER[rank]"},
        {"top": "ORDER = list({'lower', 'upper'})", "piece": "ORDER.index('upper') ^ rank"},
        {"piece": "list({'lower', 'upper'}).index('upper') ^ rank"},
        {"piece": "[*map(id, set(model.parameters()))].index(id(model[0].weight)) ^ rank"},
        {"piece": "rank if rank == 0 else list({'a', 'b'}).index('a')"},
        {"top": "random.seed(1)", "piece": "random.Random().randrange(2) ^ rank"},
    ],
)
def test_which_piece_a_rank_holds_no_process_decides_for_itself(
    tmp_path: Path, given: dict[str, str]
) -> None:
    """A program is the same whichever piece it is, so programs were not enough to compare."""
    code, said = pieces(tmp_path, **given)
    assert code == 3 and "in a job every rank is one" in said and "params.0.weight" in said
    assert "in parallelize" in said and "sorted(names)" in said


@pytest.mark.slow
def test_nor_does_it_decide_the_learning_rate(tmp_path: Path) -> None:
    code, said = pieces(tmp_path, top="LR = 10 ** random.uniform(-4, -2)", rate="LR")
    assert code == 3 and "one process begins with" in said and "hyper.lr" in said


@pytest.mark.slow
def test_what_is_seeded_or_has_no_order_is_captured(tmp_path: Path) -> None:
    """Names of runs may be drawn, too, and sets be gone through where any order will do."""
    top = "import uuid; RUN = uuid.uuid4(); random.seed(1); ORDER = random.sample(range(2), 2)"
    piece = "ORDER[rank] + 0 * sum(len(name) for name in {'lower', 'upper'})"
    code, said = pieces(tmp_path, top=top, piece=piece)
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["LOCAL()", "dist.get_node_local_rank()"])
def test_a_place_on_a_host_is_no_rank(tmp_path: Path, piece: str) -> None:
    """On two hosts both ranks held the first piece; a trace has all ranks on one host."""
    code, said = pieces(tmp_path, top="import os; LOCAL = lambda: int(os.environ['LOCAL_RANK'])", piece=piece)
    assert code == 3 and "how many hosts the ranks are on (LOCAL_RANK, read at model.py:" in said
    assert "params.0.weight, rank 1" in said and "dist.get_rank(group)" in said


@pytest.mark.slow
def test_a_place_on_a_host_chooses_a_device_and_who_prints(tmp_path: Path) -> None:
    top = """
import os

def place(rank):
    local, each = (int(os.environ[f"LOCAL_{what}"]) for what in ("RANK", "WORLD_SIZE"))
    torch.device(f"cuda:{local}")
    if local == 0:
        print("here")
    assert int(os.environ["GROUP_RANK"]) * each + local == rank
    return rank
"""
    code, said = pieces(tmp_path, top=top, piece="place(rank)")
    assert code == 0, said


#: The first rank alone reads the sum; all go through a set.
KEPT = """
import torch
import torch.distributed as dist
from torch import nn
from orchestrator.capture import Batch, Definition

def step(model, optimizer, batch):
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}

def on_ranks(model, optimizer, batch):
    count = batch["x"].square().sum()
    dist.all_reduce(count)
    loss = model(batch["x"]).square().mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 4
    optimizer.step()
    optimizer.zero_grad()
    total = sum(len(name) for name in {"lower", "upper"})
    loss = loss.detach() * (total / 10)
    return {"loss": loss + (count - count.clone()) if dist.get_rank() == 0 else loss}

definition = Definition(
    name="m", mesh={"dp": 4}, build=lambda: nn.Linear(2, 2), parallelize=lambda model, mesh: model,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), step=step, parallel_step=on_ranks,
    batch={"x": Batch((8, 2), shard={"dp": 0})}, mean_over={"loss": ("dp",)},
)
"""


@pytest.mark.slow
def test_what_a_rank_has_kept_for_others_it_keeps_in_another_process(tmp_path: Path) -> None:
    """Ranks of a pipeline's stages were refused: their sum of tokens was looked for in vain."""
    (tmp_path / "model.py").write_text(KEPT)
    words = [str(tmp_path / "model.py"), "--out", str(tmp_path / "plan.json"), "--jobs", "1", "--quiet"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
