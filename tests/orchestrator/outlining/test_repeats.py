"""Runs of equal work: what is long enough to be a layer."""

from __future__ import annotations

from orchestrator.outlining.outline import outline
from orchestrator.outlining.repeats import runs
from tests.orchestrator.deep_plans import deep


def test_short_and_few_repetitions_stay_where_they_are() -> None:
    assert outline(deep(2)) == deep(2)
    tokens = [1, 2, 3] * 40
    assert runs(tokens) == [], "a period of three ops is no function"
