"""Mutants and correct variants of the captured Llama plans, sampled over all operators.

All of them: ``python bench/mutants.py examples/llama-uneven-tp2-fsdp2.json.gz --oracle``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.plan.reading import load
from orchestrator.refuting.search import Refuter
from tests.corpus import run, variants

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.slow


def test_mutants_of_uneven_shards() -> None:
    plan = load(EXAMPLES / "llama-uneven-tp2-fsdp2.json.gz")
    refuter = Refuter(plan)
    outcomes = [run.run(m, refuter, oracle=True) for m in run.sample(plan, 40, seed=3)]
    assert not [str(o.mutant) for o in outcomes if o.verdict not in (run.REFUTED, run.EQUIVALENT, run.MASKED)]


def test_mutants_at_the_sizes_of_8b() -> None:
    plan = load(EXAMPLES / "llama3-8b-2l-tp2-fsdp2.json.gz")
    refuter = Refuter(plan)
    outcomes = [run.run(m, refuter) for m in run.sample(plan, 6, seed=4)]
    assert all(o.verdict == run.REFUTED for o in outcomes), run.table(outcomes)


def test_variants_of_uneven_shards() -> None:
    plan = load(EXAMPLES / "llama-uneven-tp2-fsdp2.json.gz")
    refuter = Refuter(plan, range(2))
    found = variants.variants(plan)
    assert len(found) >= 12
    for variant in found:
        changed = variant.build()
        assert refuter.search(changed) is None, variant
        assert run.oracle_equal(changed, range(1)), variant
