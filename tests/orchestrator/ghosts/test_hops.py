"""What ghosts equal is a fact with a stage, or is not said."""

from __future__ import annotations

from dataclasses import replace

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.ghosts.adding import Added, with_ghosts
from orchestrator.ghosts.hops import Hops
from orchestrator.ghosts.scope import Hop
from orchestrator.proving.engine import Engine
from orchestrator.relating.recipes import AlgebraRecipe

from ..plans import CORES, pair
from .merged import TP, attention, block, by_logarithms, by_running_maxima, over


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


def gathered(b: ProgramBuilder) -> None:
    """Values in a buffer of each rank, behind another parameter, as FSDP gathers them; blocks of keys cross
    what a rank holds."""
    x, mine, bias = b.input("x", "f32[2,6]"), b.input("v", "f32[3,3]"), b.input("g", "f32[2]")
    whole = b.all_gather(b.concatenate((bias, mine.reshape(9)), 0), "tp")
    v = whole.reshape(2, 11)[:, 2:].reshape(6, 3)
    (one, first), (two, second) = (block(b, x[:, i:j], v[i:j, :]) for i, j in ((0, 2), (2, 6)))
    b.output("y", one - over(b, b.logistic(second - first), one) * (one - two))


def whole_attention(b: ProgramBuilder) -> None:
    b.input("g", "f32[4]")
    attention(b)


def test_a_sum_that_its_letters_would_cut_is_of_what_is_moved() -> None:
    """The sum over the keys is one, whichever rank's buffer a value was gathered from."""
    rows = {"tp": Shard(0)}
    layout = {"x": rows, "v": rows, "g": rows}
    e, added = engine(pair(TP, whole_attention, gathered, layout, {"y": rows}))
    e.relate()
    hops = added.followed[""]["c0"].hops
    assert hops and all(f"c0:{hop.name}" in e.knowledge.hops for hop in hops)
    for claims in e.claims():
        for number in claims:
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
