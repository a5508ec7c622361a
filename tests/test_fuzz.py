"""A seeded slice of the fuzzer (bench/fuzz.py), and its teeth: weakened rules accept something false."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.fuzz import fields, run, tampering


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


def test_no_changed_bundle_is_accepted_with_a_false_claim() -> None:
    """A share of what `bench/fuzz.py --tampered` makes."""
    tally = tampering.run(25, 10_000)
    assert tally.false == []
    assert list(tally.found) == [*tampering.KINDS, tampering.SCHEDULES]
    assert all(results.total() == 25 for results in tally.found.values())


def test_a_plan_means_the_same_under_other_numbers_of_rendezvous_only() -> None:
    plan: dict[str, Any] = tampering.base("pipeline").plan
    renumbered, crossed = copy.deepcopy(plan), copy.deepcopy(plan)
    for document, new in ((renumbered, lambda n: 1000 + n), (crossed, lambda n: 0)):
        for one in document["classes"]:
            for op in one["program"]["ops"]:
                if op[1] in tampering.MESSAGES:
                    op[4]["seq"] = new(op[4]["seq"])
    assert tampering.meaning(renumbered) == tampering.meaning(plan) != tampering.meaning(crossed)


def test_what_is_accepted_of_a_wrong_plan_is_called_wrong() -> None:
    """The judge has teeth: a plan whose loss is doubled is another, and its claim is false."""
    plan = tampering.base("pipeline").plan
    wrong = copy.deepcopy(plan)
    wrong["outputs"][0]["coef"] = "2"
    assert tampering.accepted(plan, plan) == tampering.SAME
    assert tampering.accepted(plan, wrong).startswith(tampering.FALSE)
