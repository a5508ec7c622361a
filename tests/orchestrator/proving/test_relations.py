"""Relating a plan: in execution order, inputs first, and claims as facts to be proved."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

from ..oracle import Numbers
from ..plans import pair


def related(plan: Plan) -> Engine:
    engine = Engine(plan, Cores())
    engine.relate()
    return engine


def test_what_is_claimed_of_a_right_plan_was_related_before(any_plan: Plan) -> None:
    """Every claim is about a tensor, or a sum over ranks, of which a relation was guessed."""
    engine = related(any_plan)
    claims = [engine.knowledge.facts[n] for numbers in engine.claims() for n in numbers]
    assert claims and all(engine.knowledge.facts_for(fact.lhs) for fact in claims)


def test_positions_are_one_vector_wherever_they_are_made() -> None:
    """Masks compare positions: those of a plan along any dimension are the specification's."""

    def write(rows: int, dim: int) -> object:
        def body(b: ProgramBuilder) -> None:
            x = b.input("x", f"f32[{rows},6]")
            shape = (rows, 6) if dim else (6, rows)
            at = b.convert(b.iota(f"i64[{shape[0]},{shape[1]}]", dim), "f32")
            b.output("y", x * (at if dim else b.transpose(at, (1, 0))))

        return body

    cut = {"x": {"dp": Shard(0)}}
    plan = pair({"dp": 2}, write(8, 1), write(4, 0), cut, {"y": {"dp": Shard(0)}})  # type: ignore[arg-type]
    knowledge = related(plan).knowledge
    iotas = {ref: op for ref, op in knowledge.model.ops.items() if op.name == "iota"}
    found = [f for f in knowledge.facts if f.lhs in iotas and f.rhs in iotas]
    assert {str(f.lhs) for f in found} == set(iotas), "the specification's own too: it has two dimensions"
    assert all(Numbers(plan).failure(f) is None for f in found)


def test_claims_are_facts_without_use_until_they_are_proved(mlp: Plan) -> None:
    """A claim that related tensors would prove itself."""
    engine = related(mlp)
    before = {ref: list(numbers) for ref, numbers in engine.knowledge.by_lhs.items()}
    claims = engine.claims()
    assert len(claims) == len(mlp.outputs) and all(claims)
    after = {ref: [n for n in engine.knowledge.by_lhs.get(ref, ())] for ref in before}
    assert after == before
    assert engine.claims() == claims, "asked again, the same facts"


@pytest.mark.parametrize("proves", [True, False])
def test_a_tensor_that_nothing_relates_stays_without_a_fact(proves: bool) -> None:
    """Another function of the input is no counterpart; the same one is."""
    cut = {"dp": Shard(0)}
    plan = pair(
        {"dp": 2},
        lambda s: s.output("y", s.tanh(s.input("x", "f32[8]"))),
        lambda b: b.output("y", (b.tanh if proves else b.sine)(b.input("x", "f32[4]"))),
        {"x": cut},
        {"y": cut},
    )
    knowledge = related(plan).knowledge
    assert bool(knowledge.facts_for(f"c0:{plan.classes[0].program.outputs['y']}")) is proves
