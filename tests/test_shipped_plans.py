"""Shipped plans, through tv-verify: what is said to be proved is proved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EMIT = "from orchestrator.cli import emit_main; emit_main()"
CHECK = "from checker.cli import main; main()"
VERIFY = "from orchestrator.cli import verify_main; verify_main()"
QUICK = ("ddp-bucket-dp4", "zero1-dp4", "mlp-handwritten", "llama-small-hsdp-rep2-tp2-fsdp2")
PROVED = (
    "llama-small-clip-accum-hsdp-rep2-tp2-fsdp2",
    "llama-small-clip-accum-tp2-fsdp2",
    "llama-small-clip-accum-whole-tp2-fsdp2",
    "llama-uneven-tp2-fsdp2",
    "llama3-405b-2l-hsdp-rep2-tp8-fsdp64",
    "llama3-405b-2l-hsdp-rep32-tp8-fsdp64",
    "llama3-405b-2l-tp8-fsdp64",
    "llama3-8b-2l-clip-accum-tp2-fsdp2",
    "llama3-8b-2l-tp2-fsdp2",
    "torchtitan-deepseek-v3-671b-4l-fsdp32-ep64-tp8",
    "torchtitan-llama3-405b-126l-1f1b-pp16-dp_replicate2-fsdp32-tp8",
    "torchtitan-llama3-405b-126l-interleaved1f1b-pp16-fsdp64-tp8",
    "torchtitan-llama3-405b-126l-zbvzerobubble-pp16-fsdp64-tp8",
    "torchtitan-llama3-405b-2l-tp8-fsdp64",
    "torchtitan-llama3-405b-8l-hsdp2-tp8-fsdp64",
    "torchtitan-llama3-405b-8l-hsdp32-tp8-fsdp64",
    "torchtitan-llama3-405b-8l-tp8-fsdp64",
    "torchtitan-llama3-405b-hsdp2-tp8-fsdp64",
    "torchtitan-llama3-405b-tp8-fsdp64",
    "torchtitan-llama3-debugmodel-1l-hsdp2-tp2-fsdp2",
    "torchtitan-llama3-debugmodel-1l-tp2-fsdp2",
)


def verify(name: str) -> tuple[int, set[str], str]:
    path = ROOT / "examples" / f"{name}.json.gz"
    words = [sys.executable, "-c", VERIFY, str(path), "--json", "--quiet", "--witness-seconds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    said = json.loads(done.stdout)["check"]
    return done.returncode, {o["verdict"] for o in said["outputs"]}, said["schedule"].partition(":")[0]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in PROVED)])
def test_shipped_plans_are_proved(name: str) -> None:
    code, verdicts, schedule = verify(name)
    assert (code, verdicts, schedule == "SAFE") == (0, {"PROVED"}, "-pp" in name)


SOLVED_ELSEWHERE = ("torchtitan-llama3-405b-8l-hsdp32-tp8-fsdp64", "torchtitan-llama3-405b-tp8-fsdp64")


@pytest.mark.parametrize(
    "name", ["mlp-handwritten", *(pytest.param(n, marks=pytest.mark.slow) for n in SOLVED_ELSEWHERE)]
)
def test_obligations_of_shipped_plans_can_be_solved_elsewhere(name: str, tmp_path: Path) -> None:
    """Written without a solver, they are all refuted by whoever solves them."""
    path, bundle = ROOT / "examples" / f"{name}.json.gz", tmp_path / "bundle"
    words = [sys.executable, "-c", EMIT, str(path), "--out", str(bundle), "--no-solve", "--quiet", "--json"]
    emitted = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert emitted.returncode == 0, emitted.stdout[-2000:] + emitted.stderr[-2000:]
    words = [sys.executable, "-c", CHECK, str(bundle), "--json"]
    checked = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert {o["verdict"] for o in json.loads(checked.stdout)["outputs"]} == {"PROVED"}
    assert checked.returncode == 0
