"""What is guessed and what is proved: facts hold on the oracle's numbers, also those of wrong plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.errors import EvaluationError, Unproved
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores
from tests.corpus.mutate import mutants

from ..oracle import Numbers
from ..random_plans import random_plan


def related(plan: Plan) -> Engine:
    engine = Engine(plan, Cores())
    engine.relate()
    return engine


def proved(engine: Engine) -> list[Fact]:
    """All facts that the engine proves; declared ones too."""
    out = []
    for number, fact in enumerate(list(engine.knowledge.facts)):
        try:
            engine.prove(number)
        except Unproved:
            continue
        out.append(fact)
    return out


def failures(plan: Plan, facts: Iterable[Fact], seed: int) -> list[str]:
    numbers = Numbers(plan, seed)
    return [text for fact in facts if (text := numbers.failure(fact, seed))]


def test_proved_facts_hold_on_hand_written_plans(any_plan: Plan) -> None:
    engine = related(any_plan)
    for claims in engine.claims():
        for number in claims:
            engine.prove(number)
    facts = proved(engine)
    assert len(facts) > 3 and failures(any_plan, facts, 1) == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
@example(283)  # a trial whose stage could not be built was taken for an assumption
def test_proved_facts_hold_on_random_plans(seed: int) -> None:
    plan = random_plan(seed, 10)
    engine = related(plan)
    engine.claims()
    assert failures(plan, proved(engine), seed) == []


def test_nearly_all_guesses_are_right_and_nearly_all_claims_proved() -> None:
    """A wrong guess is never believed, but it costs time and can hide the right one."""
    guesses = wrong = claims = missing = 0
    for seed in range(12):
        plan = random_plan(seed, 10)
        engine = related(plan)
        guesses += len(engine.knowledge.facts)
        wrong += len(failures(plan, engine.knowledge.facts, seed))
        for number in itertools.chain.from_iterable(engine.claims()):
            claims += 1
            try:
                engine.prove(number)
            except Unproved:
                missing += 1
    assert wrong <= 0.03 * guesses, f"{wrong} of {guesses} guesses are wrong"
    assert missing <= 0.12 * claims, f"{missing} of {claims} claims of right plans have no proof"


def mutants_hold(plan: Plan, seed: int, every: int) -> int:
    """Facts that are proved of broken plans hold of the broken plans; how many false claims were refused."""
    refused = 0
    for mutant in mutants(plan)[seed % every :: every]:
        broken = mutant.build()
        engine = related(broken)
        claims = [engine.knowledge.facts[n] for n in itertools.chain.from_iterable(engine.claims())]
        facts = proved(engine)
        try:
            assert failures(broken, facts, seed) == [], str(mutant)
        except EvaluationError:
            continue  # a gather out of range means nothing
        refused += len(set(claims) - set(facts))
    return refused


def test_what_is_proved_of_a_broken_plan_holds(any_plan: Plan) -> None:
    """The engine, stages and z3 together: a false claim is never proved."""
    assert mutants_hold(any_plan, 0, 9) > 0


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100_000))
def test_what_is_proved_of_broken_random_plans_holds(seed: int) -> None:
    mutants_hold(random_plan(seed, 8), seed, 7)
