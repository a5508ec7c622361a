"""torchtitan's own DeepSeek V3 where torchtitan is installed: the whole step, PROVED."""

from __future__ import annotations

import pytest

import trainverify
from orchestrator.capture import capture
from tests.orchestrator.capture.conftest import load_example

pytest.importorskip("torchtitan")
pytestmark = pytest.mark.slow


SIZES: dict[str, dict[str, int]] = {"fsdp4-ep2": {}, "fsdp2-tp2-ep2": {"shards": 2, "tp": 2}}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_deepseek_v3_with_expert_parallel_is_proved(sizes: dict[str, int]) -> None:
    """Latent attention, a dense layer, one of experts, clipping, AdamW and the update of the bias; with
    tensor parallel the shared rotary key's gradient is a sum over ranks whose rows lie in pairs."""
    plan = capture(load_example("torchtitan_deepseek_v3.py", **sizes), jobs=1)
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_several_layers_of_experts_are_proved_in_functions(sizes: dict[str, int]) -> None:
    """Each layer is cut where its rows are packed, and its weights and gradients are in buffers of FSDP."""
    plan = capture(load_example("torchtitan_deepseek_v3.py", layers=5, **sizes), jobs=1)
    assert plan.functions
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report
