"""What ghosts equal is a fact with a stage, or is not said."""

from __future__ import annotations

from dataclasses import replace

from certificates.plan.plan import Plan
from orchestrator.ghosts.adding import Added, with_ghosts
from orchestrator.ghosts.hops import Hops
from orchestrator.ghosts.scope import Hop
from orchestrator.proving.engine import Engine
from orchestrator.relating.recipes import AlgebraRecipe

from ..plans import CORES
from .merged import by_logarithms, by_running_maxima


def engine(plan: Plan) -> tuple[Engine, Added]:
    added = with_ghosts(plan)
    assert added is not None
    return Engine(plan, CORES, ghosts=added), added


def test_every_ghost_is_proved_to_be_what_it_equals() -> None:
    for define in (by_logarithms, by_running_maxima):
        e, added = engine(define(True))
        e.relate()
        for owner, followed in added.followed[""].items():
            assert followed.hops
            for hop in followed.hops:
                numbers = e.knowledge.hops[f"{owner}:{hop.name}"]
                for number in numbers:
                    assert isinstance(e.knowledge.recipes[number], AlgebraRecipe)
                    e.prove(number)


def test_a_ghost_that_differs_is_not_stated() -> None:
    e, added = engine(by_logarithms(True))
    followed = added.followed[""]["c0"]
    types = {op.out: op.type for op in followed.program.ops}
    first, *others = followed.hops
    second = next(h for h in others if h.ghost != first.ghost and types[h.ghost] == types[first.ghost])
    wrong = replace(followed, hops=(Hop(first.name, second.ghost, first.letters),))
    known = len(e.knowledge.by_lhs)
    Hops(e.knowledge).declare("c0", wrong)
    assert f"c0:{first.name}" not in e.knowledge.hops and len(e.knowledge.by_lhs) == known
