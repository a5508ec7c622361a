"""A function is proved once; what callers learnt of it can be replayed, and is never taken on trust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import NoReturn

import pytest

from certificates.plan.plan import Plan
from certificates.plan.sites import bodies, sites
from certificates.proof.facts import Fact, Reduced, Ref
from orchestrator.errors import Unproved
from orchestrator.outlining.outline import outline
from orchestrator.proving.assembly import Part
from orchestrator.proving.engine import Engine, beginning
from orchestrator.proving.lemmas import Lemma, Transcript, available, facts_about, renamed
from orchestrator.proving.slices import Slice
from orchestrator.solving.cores import Cores
from orchestrator.solving.premises import AllPremises

from ..deep_plans import deep


@pytest.fixture(scope="module")
def plan() -> Plan:
    return outline(deep(4))


@pytest.fixture(scope="module")
def related(plan: Plan) -> Engine:
    """A plan whose four layers are calls, related."""
    engine = Engine(plan, AllPremises())
    engine.relate()
    return engine


@pytest.fixture
def lemma(plan: Plan, related: Engine) -> Lemma:
    """A lemma of its own, with the assumptions of that of the layers; nothing was asked of it yet."""
    known = next(iter(related.called.values()))
    return Lemma(known.function, list(known.assumed), beginning(plan, Cores(), None), None)


def no_engine(function: str, assumed: Sequence[Fact]) -> NoReturn:
    raise AssertionError(f"{function} is related again")


def kept(lemma: Lemma) -> tuple[Transcript, Part]:
    """What is written down of a lemma after all that was asked."""
    part = lemma.part([0], "unknown")
    known = lemma.transcript()
    return replace(known, exchanges=list(known.exchanges)), part


def test_layers_that_are_alike_share_a_lemma(plan: Plan, related: Engine) -> None:
    assert len(related.called) == 4 > len(related.relations.lemmas)
    first, *others = related.called.values()
    assert all(m is first for m in others) and first.function in plan.functions


def test_a_statement_rests_on_assumptions_by_their_number(lemma: Lemma) -> None:
    rests = lemma.prove(0)
    assert rests and rests == sorted(set(rests)) and set(rests) <= set(range(len(lemma.assumed)))


def test_a_claim_with_a_proof_is_one_more_statement_and_another_is_none(lemma: Lemma) -> None:
    """What has no proof says so again with the same words, and is not tried again."""
    conclusion = lemma.statements[0]
    (symbol, lo, hi), *rest = conclusion.symbols
    narrower = replace(conclusion, symbols=((symbol, lo, hi - 1), *rest))
    assert lemma.claim(narrower) == len(lemma.conclusions) == lemma.claim(narrower)
    wrong = replace(conclusion, coef=conclusion.coef * 2)
    assert lemma.claim(wrong) is None and lemma.claim(wrong) is None
    assert lemma.statements[-1] == wrong and len(lemma.exchanges) == 2
    with pytest.raises(Unproved) as error:
        lemma.prove(len(lemma.statements) - 1)
    assert str(error.value) == lemma.exchanges[-1][1]


def test_a_kept_lemma_answers_the_same_questions_without_its_engine(lemma: Lemma) -> None:
    wrong = replace(lemma.statements[0], coef=Fraction(5))
    rests = lemma.prove(0)
    lemma.claim(wrong)
    transcript, part = kept(lemma)
    again = Lemma(lemma.function, list(lemma.assumed), no_engine, (transcript, part))
    assert again.statements == lemma.statements[:-1]
    assert again.prove(0) == rests and again.claim(wrong) is None
    assert again.part([0], "unknown") is part is again.last_part()
    assert again.transcript() == transcript


def test_a_lemma_behaves_like_what_was_kept_if_it_answers_alike(plan: Plan, lemma: Lemma) -> None:
    """An edited function may still do for its callers what the old one did."""
    lemma.prove(0)
    lemma.claim(replace(lemma.statements[0], coef=Fraction(5)))
    transcript, _ = kept(lemma)

    def fresh() -> Lemma:
        return Lemma(lemma.function, list(lemma.assumed), beginning(plan, Cores(), None), None)

    assert fresh().behaves(transcript)
    (proved, refused) = transcript.exchanges
    assert not fresh().behaves(replace(transcript, exchanges=[(proved[0], []), refused]))
    assert not fresh().behaves(replace(transcript, exchanges=[proved, (refused[0], [0])]))
    assert not fresh().behaves(replace(transcript, conclusions=transcript.conclusions[1:]))


def test_a_question_that_was_not_kept_begins_the_engine(plan: Plan, lemma: Lemma) -> None:
    lemma.prove(0)
    transcript, part = kept(lemma)
    begun = []

    def begin(function: str, assumed: Sequence[Fact]) -> object:
        begun.append(function)
        return beginning(plan, Cores(), None)(function, assumed)

    again = Lemma(lemma.function, list(lemma.assumed), begin, (transcript, part))  # type: ignore[arg-type]
    again.prove(0)
    assert begun == []
    again.claim(again.statements[0])
    assert begun == [lemma.function]
    assert again.part([0], "unknown") is not part, "what is wanted is not what was kept"


def test_an_engine_that_says_otherwise_than_what_was_kept_is_a_mistake_of_ours(
    plan: Plan, lemma: Lemma
) -> None:
    lemma.prove(0)
    transcript, part = kept(lemma)
    (question, _), *_ = transcript.exchanges
    forged = replace(transcript, exchanges=[(question, [])])
    begin = beginning(plan, Cores(), None)
    again = Lemma(lemma.function, list(lemma.assumed), begin, (forged, part))
    assert again.prove(0) == []
    with pytest.raises(AssertionError, match="in another way than before"):
        again.claim(again.statements[0])


def test_statements_fall_with_the_files_they_rest_on(lemma: Lemma) -> None:
    for statement in lemma.conclusions:
        lemma.prove(statement)
    part = lemma.part(lemma.conclusions, "unknown")
    names = [f"{n:04d}" for n in range(1, len(part.texts) + 1)]
    assert lemma.fallen({}) == {}
    fallen = lemma.fallen({names[0]: "z3 says sat"})
    assert fallen and all("z3 says sat" in why for why in fallen.values())
    assert lemma.fallen(dict.fromkeys(names, "unknown")).keys() == set(lemma.conclusions)


def test_a_fact_about_the_function_is_one_about_the_caller_for_every_name() -> None:
    fact = Fact("c0:a", "s:b", (("z0", 0, 3),), (), (), Fraction(2), by=("input", 1))
    names = {"c0:a": ("c0:x", "c0:y"), "s:b": ("s:z",)}
    assert [(f.lhs, f.rhs, f.coef, f.by) for f in renamed(fact, names)] == [
        ("c0:x", "s:z", 2, None), ("c0:y", "s:z", 2, None),
    ]  # fmt: skip
    assert list(renamed(fact, {"c0:a": ("c0:x",)})) == [], "the caller does not see the other side"
    literal = replace(fact, rhs="#f:1/2")
    assert [f.rhs for f in renamed(literal, {"c0:a": ("c0:x",)})] == ["#f:1/2"]
    summed = replace(fact, lhs=Reduced("add", ("dp",), ("c0:a", "c1:a")))
    (found,) = renamed(summed, names | {"c1:a": ("c1:x",)})
    assert found.lhs == Reduced("add", ("dp",), ("c0:x", "c1:x"))
    assert list(renamed(summed, names)) == [], "one summand has no name"


def test_what_is_known_of_operands_is_said_of_the_inputs_of_the_function(plan: Plan, related: Engine) -> None:
    site = sites(plan)[next(iter(related.called))]
    of = bodies(plan, site.function)
    known = available(related.knowledge, site, of, Slice(plan.mesh.axes, {}, ()))
    assert known.keys() >= related.called[site.function, site.instance].assumed.keys()
    for fact, number in known.items():
        own = related.knowledge.facts[number]
        assert (fact.coef, fact.symbols, fact.rhs_index) == (own.coef, own.symbols, own.rhs_index)
        assert str(fact.lhs).partition(":")[2] in of[str(fact.lhs).partition(":")[0]].inputs


def test_facts_about_a_sum_need_all_its_summands() -> None:
    """A class whose summand the function does not see has its part of the sum too."""
    both = Reduced("add", ("dp",), ("c0:a", "c1:a"))
    facts: dict[Ref, list[int]] = {"c0:a": [1], "c1:a": [2], both: [3]}
    known = SimpleNamespace(
        by_lhs=facts, facts_for=facts.__getitem__, partials={"c0:a": [both], "c1:a": [both]}
    )
    assert list(facts_about(known, ["c0:a"])) == [1]  # type: ignore[arg-type]
    assert sorted(facts_about(known, ["c0:a", "c1:a"])) == [1, 2, 3]  # type: ignore[arg-type]
    assert list(facts_about(known, ["s:b"])) == [], "of a specification's tensor only what was said"  # type: ignore[arg-type]
