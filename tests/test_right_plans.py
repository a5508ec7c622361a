"""Right plans that nobody shaped the finder on are proved, and their wrong twins are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.plans import unproved
from tests.right_plans.counts import COUNTS

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", COUNTS)
def test_values_that_are_one_number_or_alike_on_all_ranks(name: str) -> None:
    assert unproved(COUNTS[name](True)) == []


@pytest.mark.parametrize("name", COUNTS)
def test_a_wrong_twin_is_not_proved(name: str) -> None:
    assert unproved(COUNTS[name](False))


@pytest.mark.slow
def test_steps_by_hand_in_pytorch_are_proved() -> None:
    """In one test: the captures share what PyTorch and its workers take to start."""
    pytest.importorskip("torch")
    from orchestrator.capture import capture
    from orchestrator.emit import provable
    from tests.right_plans.captured import CAPTURED, UNPROVED

    assert UNPROVED.keys() <= CAPTURED.keys()
    right = [name for name in CAPTURED if name not in UNPROVED]
    assert [n for n in right if not provable(capture(CAPTURED[n](), jobs=1, root=ROOT))] == []
