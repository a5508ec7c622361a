"""The op named for a refuted plan is the changed one or its neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.plan.plan import Plan
from certificates.plan.reading import load
from orchestrator.refuting.diagnose import locate
from orchestrator.refuting.search import Refuter, search
from tests.corpus import run
from tests.corpus.mutate import mutants

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_names_op_rank_and_line(mlp: Plan) -> None:
    mutant = next(m for m in mutants(mlp) if m.operator == "duplicate" and "tanh" in m.where)
    plan = mutant.build()
    witness = search(plan)
    assert witness is not None
    suspect = locate(plan, witness)
    assert suspect is not None
    assert suspect.op.name == "tanh"
    assert "tanh" in suspect.describe(plan) and ".py:" in suspect.describe(plan)


@pytest.mark.slow
def test_most_mutants_are_located() -> None:
    plan = load(EXAMPLES / "mlp-handwritten.json.gz")
    refuter = Refuter(plan)
    before = {op.out: op for op in plan.classes[0].program.ops}
    right = total = 0
    for mutant in run.sample(plan, 48, seed=2):
        changed = mutant.where.split()[1]
        witness = refuter.search(mutant.build())
        if mutant.operator == "rewire" or witness is None:
            continue
        total += 1
        suspect = locate(mutant.build(), witness)
        if suspect is None:
            continue
        near = suspect.op.out == changed or suspect.op.out not in before or changed in suspect.op.ins
        right += near or suspect.op.loc == before[changed].loc
    assert right > 0.7 * total, f"{right} of {total}"
