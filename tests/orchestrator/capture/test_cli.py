"""``tv-capture``: outputs and exit codes."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from certificates.plan import load
from orchestrator.capture.cli import main

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
SMALL = ["--set", "dim=4", "--set", "hidden=8", "--set", "rows=4"]


def run(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.slow
def test_a_plan_is_written(tmp_path: Path) -> None:
    out = tmp_path / "plan.json.gz"
    result = run(MODELS / "mlp_handwritten.py", "--out", out, *SMALL)
    assert result.exit_code == 0 and "4 ranks in 1 classes" in result.output
    assert load(out).name == "mlp-handwritten"


@pytest.mark.slow
def test_nothing_is_unsupported_in_the_shipped_mlp() -> None:
    result = run(MODELS / "mlp_handwritten.py", "--list-unsupported", *SMALL)
    assert (result.exit_code, result.output) == (0, "")


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.startswith("orchestrator.capture.")]:
        if not module.endswith((".cli", ".errors")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(MODELS / "mlp_handwritten.py", "--list-unsupported")
    assert result.exit_code == 2 and "trainverify[torch]" in result.output


def test_output_or_listing_is_needed() -> None:
    assert run(MODELS / "mlp_handwritten.py").exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("definition = 3", "defines no `definition`"),
        ("import nowhere_to_be_found", "failed at line 1: ModuleNotFoundError"),
        ("def definition(n): return n", "failed at line"),
    ],
)
def test_an_unusable_file_is_one_line_and_code_5(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    result = run(file, "--out", tmp_path / "plan.json")
    assert result.exit_code == 5 and message in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.slow
def test_missing_lowerings_are_listed_with_code_3(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        """
import torch
from orchestrator.capture import Batch, Definition

def step(model, optimizer, batch):
    return {"loss": model(batch["x"]).cumsum(0).erf().sum()}

definition = Definition(
    name="odd", mesh={"dp": 2}, build=lambda: torch.nn.Linear(2, 2), parallelize=lambda m, mesh: m,
    optimizer=torch.optim.AdamW, step=step, batch={"x": Batch((2, 2))},
    layouts={"weight": {}, "bias": {}},
)
"""
    )
    listed = run(file, "--list-unsupported")
    assert (listed.exit_code, listed.output.split()) == (3, ["aten.cumsum.default", "aten.erf.default"])
    refused = run(file, "--out", tmp_path / "plan.json", "--quiet")
    assert (
        refused.exit_code == 3 and "no lowering for aten.cumsum.default, aten.erf.default" in refused.output
    )
