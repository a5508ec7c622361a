"""Wrong training steps are refuted at the right tensor, right ones proved: capture, emission and check.

All of them in a table: ``python bench/breakages.py``.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.breakages.corpus import PARTS
from tests.breakages.outcome import judged

#: One mistake of every kind that the slow tests go through: gradient, optimizer, norm, loss.
QUICK = [
    ("1", "bucket offset off by one"),
    ("2", "replicas not reduced"),
    ("6", "earlier microbatches rescaled"),
    ("8", "mean of local means"),
]
RIGHT = [(number, plan) for number, part in PARTS.items() for plan in part.plans]
WRONG = [(number, mistake) for number, part in PARTS.items() for mistake in part.mistakes]


def test_every_part_has_five_mistakes_or_more() -> None:
    assert len(PARTS) == 12
    assert {number: len(part.mistakes) for number, part in PARTS.items() if len(part.mistakes) < 5} == {}
    assert all(m.plan in part.plans for part in PARTS.values() for m in part.mistakes.values())


@pytest.mark.parametrize(("number", "mistake"), QUICK, ids=lambda x: x)
def test_a_mistake_of_each_kind_is_refuted(number: str, mistake: str) -> None:
    assert judged(PARTS[number], PARTS[number].mistakes[mistake].plan, mistake).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "plan"), RIGHT, ids=lambda x: x)
def test_a_right_plan_is_proved(number: str, plan: str) -> None:
    assert judged(PARTS[number], plan).surprises == ()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "mistake"), [w for w in WRONG if w not in QUICK], ids=lambda x: x)
def test_a_mistake_is_refuted(number: str, mistake: str) -> None:
    assert judged(PARTS[number], PARTS[number].mistakes[mistake].plan, mistake).surprises == ()
