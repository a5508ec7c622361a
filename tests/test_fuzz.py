"""A seeded slice of the fuzzer (bench/fuzz.py), and its teeth: weakened rules accept something false."""

from __future__ import annotations

import pytest

from tests.fuzz import run


def test_no_pair_is_accepted_that_differs() -> None:
    tally = run.run(400, 7, every=4)
    assert tally.false == []
    assert all(tally.pairs[source] >= 20 for source in run.SOURCES)
    assert tally.accepted["equal"] > 0.9 * tally.pairs["equal"]
    assert tally.reduced.total() > 60


@pytest.mark.parametrize("weaken", ["width", "weights", "max", "collapse"])
def test_a_weaker_rule_is_caught(weaken: str) -> None:
    assert run.run(3000, 0, weaken, first=True, every=3000).false


def test_what_the_engine_proves_holds_and_passes_the_checker() -> None:
    tally = run.engine(60, 1)
    assert tally.false == []
    assert tally.accepted.total() > 10
