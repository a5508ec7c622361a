"""The oracle on shipped plans that are small enough to evaluate at true sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from certificates.plan.reading import load
from orchestrator.evaluating.interpreter import (
    compare_outputs,
    random_inputs,
    run_plan,
    run_specification,
    scatter_inputs,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    "name",
    [
        "ddp-bucket-dp4",
        "llama-small-clip-accum-hsdp-rep2-tp2-fsdp2",
        "llama-small-clip-accum-tp2-fsdp2",
        "llama-small-clip-accum-whole-tp2-fsdp2",
        "llama-small-hsdp-rep2-tp2-fsdp2",
        "llama-uneven-tp2-fsdp2",
        "torchtitan-llama3-debugmodel-1l-hsdp2-tp2-fsdp2",
        "torchtitan-llama3-debugmodel-1l-tp2-fsdp2",
        "zero1-dp4",
    ],
)
def test_small_shipped_plans_hold_on_random_inputs(name: str) -> None:
    plan = load(EXAMPLES / f"{name}.json.gz")
    rng = np.random.default_rng(0)
    inputs = random_inputs(plan, rng)
    ranks = run_plan(plan, scatter_inputs(plan, inputs, rng))
    assert compare_outputs(plan, run_specification(plan, inputs), ranks, 1e-7) == []
