"""A seeded slice of the fuzzer (bench/fuzz.py), and its teeth: weakened rules accept something false."""

from __future__ import annotations

import pytest

from tests.fuzz import fields, run


def test_no_pair_is_accepted_that_differs() -> None:
    tally = run.run(300, 7, every=4)
    assert tally.false == []
    assert all(tally.pairs[source] >= 20 for source in run.SOURCES)
    assert tally.accepted["equal"] > 0.9 * tally.pairs["equal"]
    assert tally.reduced.total() > 40


@pytest.mark.parametrize("weaken,seed", [("width", 0), ("weights", 0), ("max", 34), ("collapse", 2)])
def test_a_weaker_rule_is_caught(weaken: str, seed: int) -> None:
    """With seeds that need few pairs; bench/fuzz.py finds one within 20,000 pairs from any seed tried."""
    assert run.run(200, seed, weaken, first=True, every=200).false


def test_quotients_that_are_called_equal_are() -> None:
    tally = fields.run(1500, 3)
    assert tally.false == []
    assert (tally.apart, tally.equal > 300) == (0, True), tally.table()


def test_a_field_law_without_its_condition_is_caught() -> None:
    assert fields.run(1500, 0, weak=True, first=True).false


def test_what_the_engine_proves_holds_and_passes_the_checker() -> None:
    tally = run.engine(60, 1)
    assert tally.false == []
    assert tally.accepted.total() > 10
