"""torchtitan's own pipelines of Llama 3, captured from its code: PROVED and SAFE, also as they run.

Skipped where ``torchtitan==0.3.0`` is not installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)

import trainverify as tv
from certificates.plan.plan import Plan
from orchestrator.capture import Definition, capture
from orchestrator.capture.running import run
from orchestrator.capture.userfile import load_definition
from orchestrator.emit import provable
from tests.schedule_plans import judged

FILE = Path(__file__).resolve().parents[1] / "examples" / "models" / "torchtitan_llama3_pipeline.py"
pytestmark = pytest.mark.slow


def definition(**settings: Any) -> Definition:
    return load_definition(FILE, settings)


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
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items()))
def test_a_pipeline_of_torchtitan_is_proved_and_safe(settings: dict[str, Any]) -> None:
    plan = captured(definition(**settings))
    assert "mb" in plan.mesh.axes, plan.provenance.get("microbatches")
    verdict = tv.verify(plan, jobs=1)
    assert verdict.kind is tv.Kind.PROVED, verdict.report
    found = judged(plan)
    assert found is not None and found.safe, found


def test_it_runs_as_its_plan_says() -> None:
    made = definition()
    assert run(captured(made), made, steps=2).largest < 1e-6
