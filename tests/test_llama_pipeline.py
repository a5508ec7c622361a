"""Llama 3 written by hand as a pipeline over stages, tensor-parallel ranks, replicas and microbatches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trainverify as tv
from certificates.plan.functions import inline
from certificates.plan.plan import Plan
from orchestrator.evaluating import interpreter, scatter
from tests.llama_pipeline import Sizes, llama
from tests.test_pipelines import proved


def wrong_outputs(plan: Plan) -> set[str]:
    """By the interpreter; second moments are not negative."""
    plan, rng = inline(plan), np.random.default_rng(3)
    inputs = scatter.random_inputs(plan, rng)
    inputs |= {n: np.abs(v) for n, v in inputs.items() if n.endswith(".v") or n.startswith("hyper")}
    ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
    spec = interpreter.run_specification(plan, inputs)
    return {m.plan for m in scatter.compare_outputs(plan, spec, ranks, 1e-8)}


def test_layers_lie_on_stages_in_order() -> None:
    sizes = Sizes(126, 16, 16)
    assert [i for s in range(16) for i in sizes.own(s)] == list(range(126))
    assert {len(sizes.own(s)) for s in range(16)} == {7, 8} and sizes.batch == 1024


def test_the_interpreter_agrees_with_the_whole_batch() -> None:
    assert wrong_outputs(llama(3, 2, 2)) == set()
    wrong = wrong_outputs(llama(2, 2, 2, bug="norm clipped per stage"))
    assert {"params.0.wq", "params.1.w2", "params.embed"} <= wrong and "loss" not in wrong


@pytest.mark.slow
def test_the_whole_step_is_proved(tmp_path: Path) -> None:
    proved(llama(4, 4, 4), tmp_path / "bundle")


@pytest.mark.slow
def test_a_norm_per_stage_is_not(tmp_path: Path) -> None:
    emission = tv.emit(llama(2, 2, 2, bug="norm clipped per stage"), tmp_path / "bundle", witness_seconds=0)
    found = {v.plan for v in emission.verdicts if v.verdict == "PROVED"}
    assert "loss" in found and "params.0.wq" not in found


@pytest.mark.slow
def test_true_sizes_have_as_many_obligations_for_64_microbatches_as_for_16(tmp_path: Path) -> None:
    counts = [proved(llama(4, 4, m, "405b"), tmp_path / str(m)) for m in (16, 64)]
    assert counts[0] == counts[1]
