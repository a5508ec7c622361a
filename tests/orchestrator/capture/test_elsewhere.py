"""What one process decides, such as the order of a set of texts, is no program: tv-capture traces in two."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.capture.cli import main

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


def captured(folder: Path, names: str) -> tuple[int, str]:
    file = folder / "model.py"
    file.write_text(FILE.format(names=names))
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


@pytest.mark.slow
def test_what_is_sorted_or_seeded_is_captured(tmp_path: Path) -> None:
    code, said = captured(tmp_path, 'sorted(set("abcdefgh"))')
    assert (code, said) == (0, f"{tmp_path / 'plan.json'}: 2 ranks in 1 classes, {said.split()[-2]} ops\n")


@pytest.mark.slow
def test_a_file_that_only_one_process_can_load_is_refused(tmp_path: Path) -> None:
    once = tmp_path / "once"
    code, said = captured(tmp_path, f'(open({str(once)!r}, "x"), "abcdefgh")[1]')
    assert code == 3 and "it cannot be traced in a process of its own" in said and "FileExistsError" in said
