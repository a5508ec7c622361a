"""GPT-2 under real DistributedDataParallel, also accumulating under ``no_sync`` and with frozen layers."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.evaluating import interpreter

from .conftest import capture_example, load_example

SIZES = {"ranks": 2, "rows": 2, "length": 4, "layers": 1, "heads": 2, "dim": 8, "vocab": 11}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"micro": 2}, {"layers": 2, "frozen": 1}])
def test_gpt2_is_captured_right(options: dict[str, int]) -> None:
    plan = capture_example(load_example("gpt2_ddp.py", **SIZES | options))
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7) == []
