"""Products of a tensor with itself: rows of a rank with all rows."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.proving import stages
from orchestrator.proving.engine import Engine
from orchestrator.relating.recipes import AlgebraRecipe, Use
from orchestrator.solving.premises import AllPremises
from orchestrator.staging.refining import refined

from ..plans import pair, unproved


def squared(rows: int = 8, ranks: int = 2) -> Plan:
    """Each rank multiplies its rows of a square matrix with all rows."""

    def specification(b: ProgramBuilder) -> None:
        x = b.input("x", f"f32[{rows},{rows}]")
        b.output("y", x @ x)

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", f"f32[{rows // ranks},{rows}]")
        b.output("y", x @ b.all_gather(x, "dp"))

    sharded = {"dp": Shard(0)}
    return pair({"dp": ranks}, specification, plan, {"x": sharded}, {"y": sharded})


@pytest.mark.parametrize(("rows", "ranks"), [(8, 2), (12, 3), (4, 4)])
def test_rows_of_a_rank_times_all_rows(rows: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = squared(rows, ranks)
    assert not unproved(plan)
    monkeypatch.setattr(stages, "refined", lambda _model, _recipe: None)
    if rows > ranks:  # one row on each rank has no digit below the rank's
        assert unproved(plan)


def test_a_variable_is_cut_where_another_has_a_digit() -> None:
    engine = Engine(squared(), AllPremises())
    engine.relate()
    k, row, rank = Affine.symbol("k"), Affine.symbol("i"), Affine.symbol("dp")
    ranges = {"k": (2, 10), "i": (0, 4), "dp": (0, 2), "j": (0, 8)}

    def recipe(*at: tuple[Affine, Affine]) -> AlgebraRecipe:
        uses = tuple(Use("s:x", forms) for forms in at)
        return AlgebraRecipe(frozenset(), (), uses, ranges, {"z0": k})

    found = refined(engine.model, recipe((rank.scale(4) + row, Affine(0)), (k - 2, Affine.symbol("j"))))
    assert found is not None
    high, low = Affine.symbol("k>"), Affine.symbol("k<")
    assert found.uses[1].at == (high.scale(4) + low, Affine.symbol("j")), "j has a coordinate of its own"
    assert found.goal == {"z0": high.scale(4) + low + 2}
    assert (found.ranges["k>"], found.ranges["k<"]) == ((0, 2), (0, 4)) and "k" not in found.ranges
    thirds = recipe((row.scale(3), Affine(0)), (Affine.symbol("j"), Affine(0)))
    assert refined(engine.model, thirds) is None, "eight values are no whole number of thirds"
    assert refined(engine.model, recipe((k, Affine(0)), (Affine.symbol("j"), Affine(0)))) is None
