"""What outputs are made of, through ghosts."""

from __future__ import annotations

from orchestrator.ghosts.adding import with_ghosts
from orchestrator.ghosts.live import live
from orchestrator.proving.engine import Engine

from ..plans import CORES
from .merged import by_running_maxima


def test_what_a_ghost_takes_the_place_of_is_not_needed() -> None:
    plan = by_running_maxima(True)
    added = with_ghosts(plan)
    assert added is not None
    engine = Engine(plan, CORES, ghosts=added)
    before = live(engine.model, engine.knowledge)
    engine.relate()
    found = live(engine.model, engine.knowledge)
    program = plan.classes[0].program
    output = f"c0:{program.outputs['y']}"
    maxima = {f"c0:{op.out}" for op in program.ops if op.name == "maximum"}
    assert output in found and maxima <= before and not maxima & found
