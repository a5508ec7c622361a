"""What a stage names, and the stage under other numbers."""

from __future__ import annotations

from certificates.plan.plan import Plan
from certificates.proof.stages import Hyp, LayoutStage
from orchestrator.proving.dependencies import dependencies, renumber, trim
from tests.orchestrator.proving.test_engine import prove_all


def test_numbers_of_facts_are_replaced_everywhere(mlp: Plan) -> None:
    engine, _ = prove_all(mlp)
    for stage in engine.proved.built.values():
        moved = renumber(stage, lambda n: n + 1000)
        assert moved.goal == stage.goal + 1000
        assert dependencies(moved) == [n + 1000 for n in dependencies(stage)]


def test_symbols_that_no_premise_mentions_are_dropped() -> None:
    stage = LayoutStage(0, "", (("q0", 0, 4), ("q1", 0, 4)), (Hyp((1,), ()),))
    assert trim(stage).symbols == ()
