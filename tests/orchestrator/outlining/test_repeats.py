"""Runs of equal work: what is long enough to be a layer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from orchestrator.outlining.outline import outline
from orchestrator.outlining.repeats import runs
from tests.orchestrator.deep_plans import deep


def test_short_and_few_repetitions_stay_where_they_are() -> None:
    assert outline(deep(2)) == deep(2)
    tokens = [1, 2, 3] * 40
    assert runs(tokens) == [], "a period of three ops is no function"


@pytest.mark.parametrize("few_first", [True, False])
def test_layers_of_two_kinds_that_begin_and_end_alike_are_both_whole(few_first: bool) -> None:
    """Five of one kind took the last ops of three of another, which were two then, and no repetition."""

    def layer(kind: int) -> list[int]:
        return [1, 2, *range(100 * kind, 100 * kind + 40), 3, 4]

    few, many = layer(1) * 3, [*layer(2), 5] * 5
    tokens = [0, *few, *many, 9] if few_first else [0, *many, *few, 9]
    found = sorted((run.period, run.count) for run in runs(tokens))
    assert found == [(44, 3), (45, 5)]
    assert all(a.stop <= b.start for a, b in pairwise(runs(tokens)))
