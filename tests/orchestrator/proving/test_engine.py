"""The engine: right plans are proved, wrong ones are not, and a proof rests on earlier facts only."""

from __future__ import annotations

import inspect
import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Partial, Shard
from certificates.plan.plan import Plan
from certificates.plan.reading import load
from certificates.proof.facts import Fact
from certificates.proof.reading import proof_from_json
from certificates.proof.stages import LayoutStage
from orchestrator.errors import Unproved
from orchestrator.proving.dependencies import dependencies
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores
from orchestrator.solving.premises import AllPremises
from tests.corpus import variants
from tests.corpus.mutate import mutants

from ..plans import CORES, pair, unproved

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def prove_all(plan: Plan) -> tuple[Engine, list[int]]:
    engine = Engine(plan, CORES)
    engine.relate()
    wanted = list(itertools.chain.from_iterable(engine.claims()))
    for number in wanted:
        engine.prove(number)
    return engine, wanted


def test_right_plans_are_proved(any_plan: Plan) -> None:
    assert unproved(any_plan) == []


def test_a_proof_uses_earlier_facts_only_and_ends_at_the_claims(any_plan: Plan) -> None:
    engine, wanted = prove_all(any_plan)
    whole = engine.proof(wanted)
    proof, obligations = proof_from_json(json.loads(whole.document)), whole.obligations
    known = {i for i, f in enumerate(proof.facts) if f.by is not None and f.by[0] == "input"}
    for stage in proof.stages:
        assert set(dependencies(stage)) <= known, "a stage that rests on a later one proves nothing"
        known.add(stage.goal)
    assert {engine.knowledge.facts[n] for n in wanted} <= {proof.facts[n] for n in known}
    assert len({o.text for o in obligations}) == len(obligations)
    goals = Counter(s.goal for s in proof.stages)
    assert max(goals.values()) == 1


def test_equal_obligations_share_a_file(any_plan: Plan) -> None:
    engine, wanted = prove_all(any_plan)
    whole = engine.proof(wanted)
    proof, obligations = proof_from_json(json.loads(whole.document)), whole.obligations
    cases = [s.file for s in proof.stages if isinstance(s, LayoutStage)]
    cases += [c.file for s in proof.stages if not isinstance(s, LayoutStage) for c in s.cases]
    assert set(cases) == {o.file for o in obligations}


def test_a_wrong_plan_has_an_output_without_proof(mlp: Plan) -> None:
    broken = next(m for m in mutants(mlp) if m.operator == "swap" and "subtract %31" in m.where).build()
    lines = unproved(broken)
    assert len(lines) == 1 and lines[0].startswith("c0:%31")


def test_a_failed_fact_fails_again_with_the_same_words(mlp: Plan) -> None:
    broken = next(m for m in mutants(mlp) if m.operator == "swap" and "subtract %31" in m.where).build()
    engine = Engine(broken, Cores())
    engine.relate()
    (number,) = [n for n in itertools.chain.from_iterable(engine.claims()) if not _proves(engine, n)]
    said = []
    for _ in range(2):
        with pytest.raises(Unproved) as error:
            engine.prove(number)
        said.append(str(error.value))
    assert said[0] == said[1] == engine.failed[number]


def _proves(engine: Engine, number: int) -> bool:
    try:
        engine.prove(number)
    except Unproved:
        return False
    return True


def test_a_shuffled_sum_over_ranks_is_proved_and_a_missing_factor_is_not() -> None:
    """Mean over dp: the factor may stand before or after the sum, but it must be there once."""

    def mean(place: str) -> Plan:
        def plan(b: ProgramBuilder) -> None:
            x = b.input("x", "f32[4]").sum()
            if place == "before":
                x = x / 12
            x = b.all_reduce(x, "dp")
            b.output("y", x / 12 if place == "after" else x)

        return pair({"dp": 3}, lambda s: s.output("y", s.input("x", "f32[12]").sum() / 12), plan,
                    {"x": {"dp": Shard(0)}}, {"y": {}})  # fmt: skip

    assert unproved(mean("before")) == unproved(mean("after")) == []
    assert unproved(mean("nowhere"))


def test_a_gradient_that_is_left_partial_is_proved_as_such() -> None:
    def step(b: ProgramBuilder, total: int) -> None:
        x, g = b.input("x", f"f32[{total},3]"), b.input("g", f"f32[{total},2]")
        b.output("grad", x.T @ g)

    def plan(claim: Partial | None) -> Plan:
        return pair({"dp": 2}, lambda s: step(s, 8), lambda b: step(b, 4),
                    {"x": {"dp": Shard(0)}, "g": {"dp": Shard(0)}},
                    {"grad": {"dp": claim} if claim else {}})  # fmt: skip

    assert unproved(plan(Partial())) == []
    assert unproved(plan(None)), "a summand was taken for the sum"


def test_a_long_chain_needs_no_deep_recursion() -> None:
    """Each fact rests on the one before; 400 of them are proved in 300 frames."""

    def chain(b: ProgramBuilder, shape: str) -> None:
        x = b.input("x", shape)
        for _ in range(400):
            x = b.exponential(x)
        b.output("y", x)

    cut = {"dp": Shard(0)}
    plan = pair({"dp": 2}, lambda s: chain(s, "f32[4]"), lambda b: chain(b, "f32[2]"), {"x": cut}, {"y": cut})
    engine = Engine(plan, AllPremises())
    engine.relate()
    (number,) = engine.claims()[0]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 300)
    try:
        engine.prove(number)
    finally:
        sys.setrecursionlimit(before)
    assert len(engine.proved.built) == 400


# --- correct variants --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captured() -> Plan:
    return load(EXAMPLES / "mlp-handwritten.json.gz")


def test_correct_variants_of_the_captured_mlp_are_proved(captured: Plan) -> None:
    found = variants.variants(captured)
    missing = [v.operator for v in found if unproved(v.build())]
    assert len(found) >= 10
    assert missing == []


def test_correct_variants_of_small_plans_are_proved(any_plan: Plan) -> None:
    for variant in variants.variants(any_plan):
        assert unproved(variant.build()) == [], variant


def test_facts_print_as_equations(mlp: Plan) -> None:
    engine, _ = prove_all(mlp)
    fact: Fact = engine.knowledge.facts[0]
    assert str(fact) == f"{fact.lhs}[dp, tp, z0, z1] = {fact.rhs}[3*dp + z0, z1] for " + ", ".join(
        f"{s} in [{lo},{hi})" for s, lo, hi in fact.symbols
    )
