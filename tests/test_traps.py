"""Counterexamples and reduction traps, from the plan to the checker's verdict, the way tv-verify goes."""

from __future__ import annotations

import pytest

import trainverify as tv
from tests.traps.counterexamples import COUNTEREXAMPLES
from tests.traps.reductions import TRAPS

SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTEREXAMPLES)
def test_a_counterexample_is_never_proved(name: str) -> None:
    verdict = tv.verify(COUNTEREXAMPLES[name].wrong(), jobs=1, witness_seconds=SECONDS)
    assert verdict.kind in (tv.Kind.REFUTED, tv.Kind.UNKNOWN), verdict.report


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_refuted(name: str) -> None:
    verdict = tv.verify(TRAPS[name].wrong(), jobs=1, witness_seconds=SECONDS)
    assert verdict.kind is tv.Kind.REFUTED, verdict.report


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAPS)
def test_its_twin_is_proved(name: str) -> None:
    right = TRAPS[name].right
    assert right is not None
    verdict = tv.verify(right(), jobs=1, witness_seconds=SECONDS)
    assert verdict.kind is tv.Kind.PROVED, verdict.report
