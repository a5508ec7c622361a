"""A router with ``topk`` and its experts as PyTorch runs them: captured, and PROVED or REFUTED."""

from __future__ import annotations

import pytest

import trainverify
from orchestrator.capture import capture
from tests.captured_experts import RIGHT, WRONG, definition
from tests.corpus.run import shown

pytestmark = pytest.mark.slow
#: From capture to the checker's verdict; other mistakes go as far as the replay of a witness.
WHOLE = ("scores not normalised", "router gradient not summed")


def test_a_layer_of_experts_is_captured_and_proved() -> None:
    plan = capture(definition(), jobs=1)
    assert plan.provenance["assumed"] == [
        "topk: ties are an assumption: of equal numbers the one that stands first comes first"
    ]
    verdict = trainverify.verify(plan, jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


@pytest.mark.parametrize("way", RIGHT)
def test_ranks_may_compute_the_same_in_another_way(way: str) -> None:
    verdict = trainverify.verify(capture(definition(RIGHT[way]), jobs=1), jobs=1)
    assert verdict.kind is trainverify.Kind.PROVED, verdict.report


@pytest.mark.parametrize("way", [way for k, way in enumerate(WRONG) if way in WHOLE or k % 2])
def test_a_wrong_layer_is_refuted_by_numbers(way: str) -> None:
    methods, output = WRONG[way]
    plan = capture(definition(methods), jobs=1)
    assert shown(plan).plan == output
    if way in WHOLE:
        assert trainverify.verify(plan, jobs=1).kind is trainverify.Kind.REFUTED
