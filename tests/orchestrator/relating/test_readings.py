"""Elements are read through facts and data movement; what no fact covers is said to be unrelated."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.affine import Affine
from certificates.plan.placements import Partial, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Reduced
from orchestrator.cells import Cut
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import Unrelated
from smtlib_emit.model import Model

from ..plans import pair


def known(plan: Plan) -> Knowledge:
    knowledge = Knowledge(Model(plan))
    knowledge.declare_inputs()
    return knowledge


def test_an_unrelated_tensor_is_said_to_be_so(mlp: Plan) -> None:
    knowledge = Knowledge(Model(mlp))
    with pytest.raises(Unrelated, match=r"c0:batch\.x has no relation"):
        knowledge.read("c0:batch.x", (Affine(),) * 4, {})
    knowledge.declare_inputs()
    reading = knowledge.read("c0:batch.x", (Affine(1), Affine(), Affine(2), Affine(3)), {})
    assert (reading.target, reading.at, reading.coef) == ("s:batch.x", (Affine(5), Affine(3)), Fraction(1))


def turned() -> Plan:
    """Rows of a shard, turned, doubled and cut."""

    def write(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4,3]")
        b.output("y", b.slice(b.transpose(x, (1, 0)) * 2, [1, 0], [2, 4]))

    return pair({"dp": 2}, lambda s: s.output("y", s.input("x", "f32[8,3]")), write,
                {"x": {"dp": Shard(0)}}, {})  # fmt: skip


def test_data_movement_is_followed_to_its_source() -> None:
    knowledge = known(turned())
    last = next(reversed([r for r in knowledge.model.ops if r.startswith("c0:")]))
    index = (Affine(1), Affine(), Affine(3))
    assert knowledge.source(last, index, {}) == (2, "c0:x", [Affine(1), Affine(3), Affine(1)])
    reading = knowledge.read(last, index, {})
    assert (reading.coef, reading.target, reading.at) == (2, "s:x", (Affine(7), Affine(1)))


def summed() -> Plan:
    """Each rank holds a summand of x; y is the same on all ranks."""

    def write(b: ProgramBuilder) -> None:
        b.output("y", b.all_reduce(b.input("x", "f32[4]"), "dp"))

    return pair({"dp": 2, "tp": 2}, lambda s: s.output("y", s.input("x", "f32[4]")), write,
                {"x": {"dp": Partial()}}, {})  # fmt: skip


def test_a_sum_over_ranks_is_read_as_a_whole_and_its_summands_are_not() -> None:
    knowledge = known(summed())
    total = Reduced("add", ("dp",), ("c0:x",))
    place, ranges = Affine.symbol("p"), {"p": (0, 4), "t": (0, 2)}
    reading = knowledge.read(total, (Affine(1), place), ranges)
    assert (reading.target, reading.at) == ("s:x", (place,))
    with pytest.raises(Unrelated):
        knowledge.read("c0:x", (Affine(), Affine(1), place), ranges)


def test_a_stage_opens_one_sum_at_a_time() -> None:
    """Ranks along tp hold equal sums: which one a stage opens must be told, or its fact would not say it."""
    knowledge = known(summed())
    total = Reduced("add", ("dp",), ("c0:x",))
    ranges = {"p": (0, 4), "t": (0, 2)}
    with pytest.raises(Cut) as cut:
        knowledge.summed(total, (Affine.symbol("t"), Affine.symbol("p")), ranges)
    assert (cut.value.symbol, cut.value.position) == ("t", 1)
    reading = knowledge.summed(total, (Affine(1), Affine.symbol("p")), ranges)
    assert reading.fact is not None
    fact = knowledge.facts[reading.fact]
    assert fact.lhs_index[0] == Affine(1)
