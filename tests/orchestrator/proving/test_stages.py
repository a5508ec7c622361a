"""The stage of one fact: named after its op and line, and without a way when premises do not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.plan.program import Loc
from certificates.proof.facts import Fact, Reduced
from certificates.proof.stages import AlgebraStage, LayoutStage
from orchestrator.errors import Unproved
from orchestrator.proving.engine import Engine
from orchestrator.proving.stages import Stages, title
from orchestrator.relating.recipes import AlgebraRecipe
from orchestrator.solving.premises import AllPremises
from smtlib_emit.model import Model


class Nothing:
    """A solver that finds no proof."""

    def core(self, text: str) -> Sequence[int] | None:
        return None


@pytest.fixture(scope="module")
def engine(mlp: Plan) -> Engine:
    found = Engine(mlp, AllPremises())
    found.relate()
    return found


def recipes(engine: Engine, algebra: bool) -> list[int]:
    """Numbers of guesses that arithmetic shows, or data movement."""
    return [n for n, r in engine.knowledge.recipes.items() if isinstance(r, AlgebraRecipe) is algebra]


def test_arithmetic_and_data_movement_have_stages_of_their_kind(engine: Engine) -> None:
    arithmetic, movement = recipes(engine, algebra=True), recipes(engine, algebra=False)
    assert arithmetic and movement
    assert all(isinstance(engine.stages.of(n), AlgebraStage) for n in arithmetic)
    assert all(isinstance(engine.stages.of(n), LayoutStage) for n in movement)


@pytest.mark.parametrize(
    ("algebra", "reason"), [(True, r"no proof of .* from \d+ premises"), (False, "no proof of")]
)
def test_without_a_core_there_is_no_stage(engine: Engine, algebra: bool, reason: str) -> None:
    """Whatever premises were found: what no solver shows is not written as if one had."""
    number = recipes(engine, algebra)[0]
    with pytest.raises(Unproved, match=reason):
        Stages(engine.knowledge, Nothing()).of(number)


def test_a_title_says_what_and_where(mlp: Plan) -> None:
    program = mlp.classes[0].program
    first = replace(program.ops[0], loc=Loc(0, 12, "step"))
    located = replace(
        mlp,
        sources=("model|a\u00e9.py",),
        classes=(replace(mlp.classes[0], program=replace(program, ops=(first, *program.ops[1:]))),),
    )
    fact = Fact(f"c0:{first.out}", "s:%0", (), (Affine(),), (Affine(),), Fraction(1))
    said = title(Model(located), fact)
    assert said == f"c0:{first.out} follows s:%0: {first.name} at model?a?.py:12", (
        "no | or other letters in SMT-LIB"
    )
    total = replace(fact, lhs=Reduced("add", ("dp",), ("c0:batch.x",)))
    assert title(Model(located), total).endswith(": input")
    assert len(title(Model(located), replace(fact, rhs="s:" + "x" * 500))) == 200
