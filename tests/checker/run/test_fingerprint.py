"""Records of a launch: one per rank of this plan, no other's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.language.plan import Plan
from checker.reading.plan import read_plan
from checker.run.fingerprint import compare
from checker.run.foreign import Foreign

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, row_parallel


@pytest.fixture
def plan() -> Plan:
    """Two ranks."""
    return read_plan(dump(row_parallel().plan))


def records(plan: Plan, *changes: dict[str, Any]) -> dict[str, bytes]:
    found = {}
    for rank in range(2):
        item = {"format": "trainverify-fingerprint", "version": 1, "rank": rank, "ranks": 2,
                "plan": plan.digest, "program": f"{rank}" * 64}  # fmt: skip
        found[f"rank-{rank}.json"] = item | (changes[rank] if rank < len(changes) else {})
    return {name: json.dumps(item).encode() for name, item in found.items()}


def test_all_ranks_of_this_plan(plan: Plan) -> None:
    assert compare(plan, records(plan)) == [
        "fingerprint: all 2 ranks of a launch compared their own step with this plan (2 programs), as their "
        "records say"
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (({}, {"plan": "f" * 64}), "rank-1.json: rank 1 compared itself with another plan, ffff"),
        (({"ranks": 4},), "rank-0.json: rank 0 of 4, the plan has 2 ranks"),
        (({"rank": 2},), "rank-0.json: rank 2 of 2, the plan has 2 ranks"),
        (({}, {"rank": 0}), "rank-1.json: a second record of rank 0"),
    ],
)
def test_a_record_of_another_run_is_named(
    plan: Plan, changes: tuple[dict[str, Any], ...], reason: str
) -> None:
    with pytest.raises(Foreign, match=reason):
        compare(plan, records(plan, *changes))


def test_a_missing_rank_is_named(plan: Plan) -> None:
    found = records(plan)
    del found["rank-1.json"]
    with pytest.raises(Foreign, match="no record of rank 1, and of 1 ranks in all"):
        compare(plan, found)
    with pytest.raises(Foreign, match="no record of rank 0, and of 2 ranks in all"):
        compare(plan, {})


@pytest.mark.parametrize(
    "change", [{"format": "other"}, {"version": 2}, {"plan": "x"}, {"rank": -1}, {"more": 1}]
)
def test_what_is_no_record_is_malformed(plan: Plan, change: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        compare(plan, records(plan, change))
