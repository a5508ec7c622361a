"""A wrong guess fails at an element that is computed; a right one never does."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact
from orchestrator.proving.engine import Engine
from orchestrator.relating import masked
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.sampled import fails

from ..plans import CORES, pair, unproved
from ..spanning.test_masked_copies import pairs


def looked_up(shift: int = 0) -> Plan:
    """An embedding whose rows lie on ranks: what another rank has is zero, and all are added."""

    def specification(b: ProgramBuilder) -> None:
        table, ids = b.input("table", "f32[12,3]"), b.input("ids", "i64[5]")
        b.output("y", b.gather(table, ids))

    def plan(b: ProgramBuilder) -> None:
        table, ids = b.input("table", "f32[4,3]"), b.input("ids", "i64[5]")
        local = ids - b.constant(b.axis_index("tp").scale(4) + shift, ids.type)
        inside = b.logical_and(b.compare(local, 0, "GE"), b.compare(local, 4, "LT"))
        safe = b.minimum(b.maximum(local, b.constant(0, ids.type)), b.constant(3, ids.type))
        rows = b.gather(table, safe)
        kept = b.select(b.broadcast(inside, rows.shape, (0,)), rows, b.constant(0, rows.type))
        b.output("y", b.all_reduce(kept, "tp"))

    inputs = {"table": {"tp": Shard(0)}, "ids": {}}
    return pair({"tp": 3}, specification, plan, inputs, {"y": {}}, {"ids": (0, 12)})


def guesses(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, list[tuple[Fact, bool]]]:
    """All guesses about a plan, and whether each was said to fail."""
    found: list[tuple[Fact, bool]] = []

    def told(knowledge: masked.Knowledge, fact: Fact) -> bool:
        found.append((fact, fails(knowledge, fact)))
        return found[-1][1]

    monkeypatch.setattr(masked, "fails", told)
    engine = Engine(plan, CORES)
    engine.relate()
    return engine, found


def labelled(b: ProgramBuilder, words: int, first: Affine | int = 0) -> None:
    """The label's score and where it is, by comparison; a rank has some of the words."""
    scores, labels = b.input("scores", f"f32[5,{words}]"), b.input("labels", "i64[5]")
    at = b.broadcast(labels - b.constant(first, labels.type), (5, words), (0,))
    mask = b.convert(b.compare(b.iota(f"i64[5,{words}]", 1), at, "EQ"), "f32")
    b.output("mask", mask * 3)
    total = (scores * mask).sum(1)
    b.output("chosen", total if isinstance(first, int) else b.all_reduce(total, "tp"))


def chosen() -> Plan:
    columns = {"tp": Shard(1)}
    return pair(
        {"tp": 3},
        lambda b: labelled(b, 12),
        lambda b: labelled(b, 4, b.axis_index("tp").scale(4)),
        {"scores": columns, "labels": {}},
        {"mask": columns, "chosen": {}},
        {"labels": (0, 12)},
    )


@pytest.mark.parametrize(
    ("plan", "share"),
    [(looked_up(), 0.8), (chosen(), 0.8), (pairs(), 0.5)],
    ids=["look-up", "labels", "pairs"],
)
def test_what_is_proved_does_not_fail_and_a_neighbour_does(plan: Plan, share: float) -> None:
    """Of facts that are one off along some coordinate of the specification, or twice as large.

    Half of those about ``pairs`` are about sums over a dimension, which are not computed.
    """
    engine = Engine(plan, CORES)
    engine.relate()
    for claims in engine.claims():
        for number in claims:
            engine.proves(number)
    known = engine.knowledge
    facts = [known.facts[n] for n in engine.proved.built]
    assert facts and not [fact for fact in facts if fails(known, fact)]
    wrong = [w for fact in facts for w in _neighbours(fact, known)]
    assert wrong and sum(fails(known, w) for w in wrong) >= share * len(wrong)


def _neighbours(fact: Fact, known: Knowledge) -> list[Fact]:
    """Facts that are wrong wherever this one says anything."""
    if known.model.tensors.type(fact.lhs if isinstance(fact.lhs, str) else fact.lhs.of[0]).sort != "Real":
        return []
    found = [] if known.model.literal(fact.rhs) is not None else [replace(fact, coef=fact.coef * 2)]
    shape = [] if known.model.literal(fact.rhs) is not None else known.model.tensors.ranges(fact.rhs)
    for d, (low, high) in enumerate(shape):
        first, last = fact.rhs_index[d].interval(fact.ranges)
        if last + 1 < high and first >= low:
            at = (*fact.rhs_index[:d], fact.rhs_index[d] + 1, *fact.rhs_index[d + 1 :])
            found.append(replace(fact, rhs_index=at))
    return found


def test_what_is_wrong_is_not_asked_of_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, found = guesses(looked_up(shift=1), monkeypatch)
    made = set(engine.knowledge.facts)
    assert not [fact for fact, failed in found if failed and fact in made]
    assert unproved(looked_up(shift=1))


def wide(b: ProgramBuilder, x: Value, n: Value) -> Value:
    return b.exponential(x) * b.convert(b.compare(n, 1, "EQ"), "f32") + x


def test_elements_are_computed_by_definitions_and_functions_by_their_operands() -> None:
    """Equal by arithmetic, whichever way it is written; not equal with another factor."""

    def specification(b: ProgramBuilder) -> None:
        x, n = b.input("x", "f32[6,2]"), b.input("n", "i64[6,2]")
        b.output("y", wide(b, x, n))

    def plan(b: ProgramBuilder) -> None:
        x, n = b.input("x", "f32[2,2]"), b.input("n", "i64[2,2]")
        chosen = b.select(b.compare(n, 1, "NE"), b.constant(0, x.type), b.exponential(x))
        b.output("y", x + chosen)

    rows = {"dp": Shard(0)}
    plan_ = pair({"dp": 3}, specification, plan, {"x": rows, "n": rows}, {"y": rows}, {"n": (0, 3)})
    engine = Engine(plan_, CORES)
    engine.relate()
    ((number,),) = engine.claims()
    claim = engine.knowledge.facts[number]
    assert not fails(engine.knowledge, claim)
    assert fails(engine.knowledge, replace(claim, coef=Fraction(2)))
