"""The parts of a step: runs of ops and of calls, with the stages that tie the ranks to them."""

from __future__ import annotations

import gzip
from pathlib import Path

from checker.language.proof import Proof
from checker.reading.plan import read_plan
from checker.report.findings import Findings
from checker.report.flow import collectives, parts

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_a_step_without_functions_is_one_part(right: Findings) -> None:
    (part,) = parts(right.plan, right.examined.facts, right.proof)
    assert part.function == "" and part.ops == len(right.plan.spec.ops)
    assert 0 < part.stages <= len(right.proof.stages)


def test_layers_are_calls_of_a_function() -> None:
    data = gzip.decompress((EXAMPLES / "torchtitan-llama3-405b-8l-tp8-fsdp64.json.gz").read_bytes())
    plan = read_plan(data)
    found = parts(plan, (), Proof((), {}, (), ()))
    assert sum(p.calls for p in found) == len(plan.spec.calls)
    assert max(p.calls for p in found) == 8, "eight layers"
    assert all(p.places for p in found if p.function), "each says where it stands in the user's code"
    counts = collectives(plan)
    assert set(counts) == set(plan.groups)
    assert counts["tp.1"]["reduce_scatter"] >= 2 * 8, "calls are counted as often as they are made"


def test_collectives_of_a_rank_are_counted_by_group(right: Findings) -> None:
    assert {g: dict(n) for g, n in collectives(right.plan).items()} == {
        "dp": {"all_reduce": 3},
        "tp": {"all_reduce": 1},
    }
