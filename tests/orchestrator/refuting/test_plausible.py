"""Guesses are tried by evaluation: wrong ones fail visibly, right ones never do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.errors import EvaluationError, Unproved
from orchestrator.proving.engine import Engine
from orchestrator.refuting.plausible import Plausible
from orchestrator.refuting.stage_values import Opened
from orchestrator.relating.ledger import LayoutRecipe
from orchestrator.solving.cores import Cores
from orchestrator.solving.premises import AllPremises
from tests.conftest import build_integers
from tests.corpus.mutate import mutants

Z = [Affine.symbol(f"z{i}") for i in range(2)]


def test_it_agrees_with_the_solver_on_every_guess(any_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plausible = Plausible(any_plan)
    tried: list[tuple[bool, bool]] = []

    def proves(self: Engine, number: int) -> bool:
        try:
            self.prove(number)
        except Unproved:
            tried.append((plausible(self.knowledge, number), False))
        else:
            tried.append((plausible(self.knowledge, number), True))
        return tried[-1][1]

    monkeypatch.setattr(Engine, "proves", proves)
    engine = Engine(any_plan, Cores())
    engine.relate()
    tried += [(plausible(engine.knowledge, f), True) for facts in engine.claims() for f in facts]
    assert tried and all(guess == proof for guess, proof in tried)


def lookup() -> tuple[Engine, Fact]:
    """A masked look-up summed over ranks, and the fact that it is the specification's."""
    engine = Engine(build_integers(), AllPremises())
    engine.relate()
    ((number,),) = engine.claims()
    return engine, engine.knowledge.facts[number]


@pytest.mark.parametrize("opened", [True, False])
def test_a_look_up_before_its_sum_is_not_the_whole(opened: bool) -> None:
    """On a rank that does not own the row the value is 0."""
    engine, fact = lookup()
    plan = engine.plan
    plausible = Plausible(plan)
    program = plan.classes[0].program
    total = program.ops[-1]
    assert total.name == "all_reduce" and fact.lhs == f"c0:{total.out}"
    part = replace(fact, lhs=f"c0:{total.ins[0]}", by=None)
    scaled = replace(fact, coef=fact.coef * 2, by=None)
    symbols = (fact.symbols[0], ("z0", 0, 4), fact.symbols[2])
    shifted = replace(fact, symbols=symbols, rhs_index=(Z[0] + 1, Z[1]), by=None)
    everything = frozenset(engine.model.ops) if opened else frozenset()
    for guess, right in ((replace(fact, by=None), True), (part, False), (scaled, False), (shifted, False)):
        recipe = LayoutRecipe(everything) if opened else None
        engine.knowledge.facts.append(guess)
        if recipe is not None:
            engine.knowledge.recipes[len(engine.knowledge.facts) - 1] = recipe
        assert plausible(engine.knowledge, len(engine.knowledge.facts) - 1) is right, guess


def test_claims_of_a_broken_plan_are_implausible(mlp: Plan) -> None:
    broken = next(m for m in mutants(mlp) if m.operator == "duplicate" and "tanh" in m.where).build()
    engine = Engine(broken, AllPremises(), Plausible)
    engine.relate()
    plausible = Plausible(broken)
    loss, *_ = engine.claims()
    assert not plausible(engine.knowledge, loss[0])


def test_tensors_that_are_not_opened_are_free(mlp: Plan) -> None:
    """Their values come from their relation; without one nothing is known."""
    engine = Engine(mlp, AllPremises())
    scenario, _ = Plausible(mlp)._whole(engine.knowledge, 0)
    opened = Opened(engine.knowledge, scenario, frozenset(), 0)
    with pytest.raises(EvaluationError, match="no relation"):
        opened.value(0, "batch.x")
    engine.relate()
    opened = Opened(engine.knowledge, scenario, frozenset(), 0)
    node = opened.network.nodes[opened.value(3, "batch.x")]
    assert node.op == "layout" and opened.network.nodes[node.ins[0]].shape == (6, 4)
    assert opened.network.nodes[opened.value(-1, "%0")].op == "block", "a product that is not opened"
