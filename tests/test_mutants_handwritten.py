"""Mutants and correct variants of hand-written plans: wrong ones get a replayed witness, right ones none.

The full table of a plan: ``python bench/mutants.py examples/mlp-handwritten.json.gz``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.plan.checking import check_plan
from certificates.plan.plan import Plan
from certificates.plan.reading import load
from orchestrator.refuting.search import Refuter
from tests.corpus import mutate, run, variants

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_every_mutant_of_small_plans(any_plan: Plan) -> None:
    """All sites of all operators; the oracle decides what the search does not refute."""
    refuter = Refuter(any_plan)
    outcomes = [run.run(m, refuter, oracle=True) for m in mutate.mutants(any_plan)]
    assert len(outcomes) >= 10
    assert not [str(o.mutant) for o in outcomes if o.verdict not in (run.REFUTED, run.EQUIVALENT, run.MASKED)]
    assert sum(o.verdict == run.REFUTED for o in outcomes) > 0.8 * len(outcomes)


def test_enumeration_is_deterministic_and_well_formed(mlp: Plan) -> None:
    first, second = mutate.mutants(mlp), mutate.mutants(mlp)
    assert [str(m) for m in first] == [str(m) for m in second]
    assert {m.operator for m in first} >= {
        "drop", "duplicate", "swap", "group", "reduction", "scale", "literal", "rewire"
    }  # fmt: skip
    for mutant in first:
        plan = mutant.build()
        check_plan(plan)
        assert plan.classes != mlp.classes
        assert plan.specification == mlp.specification
        assert plan.outputs == mlp.outputs


def test_sampled_mutants_of_the_captured_mlp() -> None:
    """True sizes (1024 x 4096); only a product with the literal 1 is equivalent."""
    plan = load(EXAMPLES / "mlp-handwritten.json.gz")
    refuter = Refuter(plan)
    outcomes = [run.run(m, refuter) for m in run.sample(plan, 64, seed=1)]
    assert sum(o.verdict == run.REFUTED for o in outcomes) >= 62, run.table(outcomes)


def test_variants_show_no_difference(any_plan: Plan) -> None:
    refuter = Refuter(any_plan, range(3))
    found = variants.variants(any_plan)
    assert found
    for variant in found:
        plan = variant.build()
        assert plan.classes != any_plan.classes, variant
        assert refuter.search(plan) is None, variant
        assert run.oracle_equal(plan), variant


def test_there_are_at_least_ten_variants_of_the_captured_mlp() -> None:
    plan = load(EXAMPLES / "mlp-handwritten.json.gz")
    refuter = Refuter(plan, range(2))
    found = variants.variants(plan)
    assert len(found) >= 10
    for variant in found:
        assert refuter.search(variant.build()) is None, variant
