"""torchtitan's own pipelines of Llama 3 and DeepSeek V3, captured from its code: PROVED and SAFE, also as
they run.

Skipped where ``torchtitan==0.3.0`` is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)

import torch

import trainverify as tv
from certificates.plan.plan import Plan
from orchestrator.capture import Definition, capture
from orchestrator.capture.running import run
from orchestrator.capture.userfile import load_definition
from orchestrator.emit import provable
from orchestrator.refuting.search import Refuter
from tests.corpus.run import replayed
from tests.schedule_plans import judged

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
pytestmark = pytest.mark.slow


def definition(model: str = "llama3", **settings: Any) -> Definition:
    return load_definition(MODELS / f"torchtitan_{model}_pipeline.py", settings)


def captured(made: Definition) -> Plan:
    return capture(made, jobs=1, accept=provable)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"shards": 2, "tp": 2},
    {"replicas": 2, "shards": 2},
    {"replicas": 2, "shards": 2, "tp": 2},
    {"schedule": "GPipe"},
    {"schedule": "Interleaved1F1B", "microbatches": 4},
    {"schedule": "InterleavedZeroBubble", "microbatches": 4},
    {"schedule": "ZBVZeroBubble", "microbatches": 4},
    {"schedule": "DualPipeV", "microbatches": 4},
    {"model": "deepseek_v3"},
    {"model": "deepseek_v3", "shards": 4, "ep": 4, "tp": 2, "length": 16},
    {"model": "deepseek_v3", "layers": 5, "schedule": "Interleaved1F1B", "microbatches": 4},
    {"model": "deepseek_v3", "layers": 5, "schedule": "ZBVZeroBubble", "microbatches": 4},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items()))
def test_a_pipeline_of_torchtitan_is_proved_and_safe(settings: dict[str, Any]) -> None:
    plan = captured(definition(**settings))
    assert "mb" in plan.mesh.axes, plan.provenance.get("microbatches")
    verdict = tv.verify(plan, jobs=1)
    assert verdict.kind is tv.Kind.PROVED, verdict.report
    found = judged(plan)
    assert found is not None and found.safe, found


@pytest.mark.parametrize(
    "settings", [{}, {"schedule": "Interleaved1F1B", "microbatches": 4}], ids=["1F1B", "interleaved"]
)
def test_it_runs_as_its_plan_says(settings: dict[str, Any]) -> None:
    """In processes, with torchtitan's own first step, in which stages send their shapes round."""
    made = definition(flavor="tiny", length=8, **settings)
    assert run(capture(made, jobs=1), made, steps=2).largest < 1e-5


def own_norm(utils: Any) -> dict[str, Any]:
    """pytorch/torchtitan 649: the norm of the own stage."""
    right = utils.clip_grad_norm_
    return {"clip_grad_norm_": lambda *args, pp_mesh=None, **kwargs: right(*args, **kwargs)}


def own_count(utils: Any) -> dict[str, Any]:
    """Each replica divides by its own tokens."""
    right = utils.dist_sum_tensor
    return {"dist_sum_tensor": lambda x, mesh: x if x.dtype == torch.int64 else right(x, mesh)}


WRONG = [(own_norm, {}, "grad_norm"), (own_count, {"replicas": 2, "shards": 2}, "loss")]


@pytest.mark.parametrize(("change", "settings", "output"), WRONG)
def test_a_wrong_step_of_torchtitan_is_refuted(
    change: Callable[[Any], dict[str, Any]],
    settings: dict[str, Any],
    output: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = definition(flavor="tiny", length=8, **settings)
    utils = sys.modules["torchtitan.distributed.utils"]
    for name, function in change(utils).items():
        monkeypatch.setattr(utils, name, function)
    plan = capture(made, jobs=1)
    witness = Refuter(plan).search(plan, budget=30.0)
    assert witness is not None
    replayed(plan, witness.to_json())
    assert plan.outputs[witness.output].plan == output
