"""torchtitan's own DeepSeek V3 where torchtitan is installed: the whole step, PROVED."""

from __future__ import annotations

import pytest

import trainverify
from orchestrator.capture import capture
from tests.orchestrator.capture.conftest import load_example

pytest.importorskip("torchtitan")
pytestmark = pytest.mark.slow


def test_deepseek_v3_with_expert_parallel_and_fsdp_is_proved() -> None:
    """Latent attention, a dense layer, one of experts, clipping, AdamW and the update of the bias."""
    plan = capture(load_example("torchtitan_deepseek_v3.py"), jobs=1)
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report
