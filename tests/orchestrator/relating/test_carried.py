"""Facts about moved tensors: those of their sources, on one rank and across ranks, if these have some."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder
from certificates.plan.placements import Partial, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Reduced
from orchestrator.cells import Unfollowable
from orchestrator.proving.engine import Engine
from orchestrator.relating.carried import moved_from, sums_of_moved
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.ledger import LayoutRecipe
from orchestrator.relating.solving_facts import make_fact
from orchestrator.solving.premises import AllPremises
from smtlib_emit.model import Model

from ..oracle import Numbers
from ..plans import Write, pair


def known(plan: Plan) -> Knowledge:
    knowledge = Knowledge(Model(plan))
    knowledge.declare_inputs()
    return knowledge


def rows(write: Write) -> Plan:
    """A plan whose ranks hold 4 of 8 rows."""
    return pair({"dp": 2}, lambda s: s.output("y", s.input("x", "f32[8,3]")), write,
                {"x": {"dp": Shard(0)}}, {})  # fmt: skip


def last(knowledge: Knowledge, name: str) -> str:
    return [r for r, op in knowledge.model.ops.items() if op.name == name and r.startswith("c0:")][-1]


def facts(knowledge: Knowledge, ref: str | Reduced) -> list[Fact]:
    """What is known of a tensor, each once: two ways may lead to one fact."""
    return list(dict.fromkeys(knowledge.facts[n] for n in knowledge.facts_for(ref)))


def test_what_is_moved_is_related_part_by_part() -> None:
    """Of a concatenation with a tensor of its own, the part that comes from the shard has a fact."""

    def write(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4,3]")
        b.output("y", b.concatenate([b.reshape(x, (2, 2, 3)), b.tanh(b.reshape(x, (2, 2, 3)))], 0))

    plan = rows(write)
    knowledge = known(plan)
    (fact,) = facts(knowledge, last(knowledge, "concatenate"))
    assert fact.rhs == "s:x" and Numbers(plan).failure(fact) is None
    ranges = [hi - lo for _, lo, hi in fact.symbols]
    assert sorted(ranges) == [2, 2, 2, 3], "all of the first two matrices, on both ranks"


def test_a_gathered_tensor_is_the_whole() -> None:
    def write(b: ProgramBuilder) -> None:
        b.output("y", b.all_gather(b.input("x", "f32[4,3]"), "dp"))

    plan = rows(write)
    knowledge = known(plan)
    found = facts(knowledge, last(knowledge, "all_gather"))
    assert found and all(Numbers(plan).failure(f) is None for f in found)


def test_links_stay_on_their_rank() -> None:
    """What a rank took from others is no tensor of its own."""

    def write(b: ProgramBuilder) -> None:
        x = b.tanh(b.input("x", "f32[4,3]"))
        b.output("y", b.transpose(x, (1, 0)))
        b.output("z", b.reshape(b.all_gather(x, "dp"), (24,)))

    knowledge = known(rows(write))
    numbers = knowledge.links(last(knowledge, "transpose"))
    assert numbers is not None
    (link,) = (knowledge.facts[n] for n in numbers)
    assert link.rhs == last(knowledge, "tanh")
    with pytest.raises(Unfollowable, match="crosses ranks"):
        knowledge.links(last(knowledge, "reshape"))
    assert knowledge.links(last(knowledge, "tanh")) is None


def test_the_sum_of_moved_summands_is_the_moved_sum() -> None:
    plan = pair({"dp": 2}, lambda s: s.output("y", s.input("x", "f32[4,3]")), 
                lambda b: b.output("y", b.transpose(b.input("x", "f32[4,3]"), (1, 0)) * 3),
                {"x": {"dp": Partial()}}, {})  # fmt: skip
    knowledge = known(plan)
    (fact,) = facts(knowledge, Reduced("add", ("dp",), (last(knowledge, "multiply"),)))
    assert fact.coef == 3 and Numbers(plan).failure(fact) is None


def test_a_result_that_is_moved_from_a_share_is_a_share() -> None:
    """A gradient in bf16 that is cast before a function hands it on."""
    plan = pair({"dp": 2}, lambda s: s.output("y", s.input("x", "f32[4,3]")),
                lambda b: b.output("y", b.convert(b.transpose(b.input("x", "f32[4,3]"), (1, 0)), "bf16")),
                {"x": {"dp": Partial()}}, {})  # fmt: skip
    knowledge = known(plan)
    result = last(knowledge, "convert")
    assert Reduced("add", ("dp",), (result,)) not in knowledge.partials.get(result, ())
    (found,) = sums_of_moved(knowledge, [result])
    assert found == Reduced("add", ("dp",), (result,))
    (fact,) = facts(knowledge, found)
    assert Numbers(plan).failure(fact) is None
    assert not list(sums_of_moved(knowledge, ["c0:x"])), "a result that is not moved has its facts already"


def test_shares_behind_each_other_are_one_share() -> None:
    """A layer's gradients, flat in one buffer with room behind them, that its function hands on."""

    def write(b: ProgramBuilder) -> None:
        x, y = b.input("u", "f32[4,3]"), b.input("v", "f32[5]")
        room = b.broadcast(b.constant(0, "f32[]"), (2,))
        b.output("y", b.concatenate([b.transpose(x, (1, 0)).reshape(12), y, room], 0))

    spec: Write = lambda s: (s.output("y", s.input("u", "f32[4,3]") * 1), s.input("v", "f32[5]"))  # noqa: E731
    plan = pair({"dp": 2}, spec, write, {"u": {"dp": Partial()}, "v": {"dp": Partial()}}, {})
    knowledge = known(plan)
    result = last(knowledge, "concatenate")
    (found,) = sums_of_moved(knowledge, [result])
    assert found == Reduced("add", ("dp",), (result,))
    told = facts(knowledge, found)
    assert {fact.rhs for fact in told} >= {"s:u", "s:v"}
    assert all(Numbers(plan).failure(fact) is None for fact in told)
    plan = pair({"dp": 2}, spec, write, {"u": {"dp": Partial()}, "v": {}}, {})
    knowledge = known(plan)
    assert not list(sums_of_moved(knowledge, [last(knowledge, "concatenate")])), "v is no share of a sum"


@pytest.mark.parametrize("order", [("cut", "norm"), ("norm", "cut"), ("norm",)])
def test_what_is_summed_over_other_axes_already_is_a_share_beside_others(order: tuple[str, ...]) -> None:
    """The gradient of a norm's weight under tensor parallel, in FSDP's buffer with those of cut weights."""

    def write(b: ProgramBuilder) -> None:
        x, y = b.input("u", "f32[4,3]"), b.all_reduce(b.input("v", "f32[5]"), "tp")
        parts = {"cut": x.reshape(12), "norm": b.convert(y, "f32")}
        room = b.broadcast(b.constant(0, "f32[]"), (2,))
        b.output("y", b.concatenate([*(parts[name] for name in order), room], 0))

    spec: Write = lambda s: (s.output("y", s.input("u", "f32[4,3]") * 1), s.input("v", "f32[5]"))  # noqa: E731
    shares = {"u": {"dp": Partial()}, "v": {"dp": Partial(), "tp": Partial()}}
    plan = pair({"dp": 2, "tp": 2}, spec, write, shares, {})
    engine = Engine(plan, AllPremises())
    engine.relate()
    knowledge = engine.knowledge
    result = last(knowledge, "concatenate")
    (found,) = sums_of_moved(knowledge, [result])
    assert found == Reduced("add", ("dp",), (result,))
    engine.relations.relate_results([result])
    told = facts(knowledge, found)
    assert {fact.rhs for fact in told} >= {{"cut": "s:u", "norm": "s:v"}[name] for name in order}
    assert all(Numbers(plan).failure(fact) is None for fact in told)


@pytest.mark.parametrize(("kind", "factor"), [("add", 2), ("max", 1)])
def test_equal_members_are_counted_in_a_sum_and_not_in_a_maximum(kind: str, factor: int) -> None:
    """A mean over replicas must divide by their number; a maximum is each of them."""
    plan = pair({"dp": 2}, lambda s: s.output("y", s.input("x", "f32[4]")),
                lambda b: b.output("y", b.input("x", "f32[4]")), {"x": {}}, {})  # fmt: skip
    knowledge = known(plan)
    found = facts(knowledge, Reduced(kind, ("dp",), ("c0:x",)))
    assert [f.coef for f in found] == [factor]
    assert all(Numbers(plan).failure(f) is None for f in found)


def test_a_sum_over_fewer_axes_counts_once_for_each_rank_of_the_others() -> None:
    plan = pair({"dp": 2, "tp": 3}, lambda s: s.output("y", s.input("x", "f32[4]")),
                lambda b: b.output("y", b.input("x", "f32[4]")), {"x": {"dp": Partial()}}, {})  # fmt: skip
    knowledge = known(plan)
    (fact,) = facts(knowledge, Reduced("add", ("dp", "tp"), ("c0:x",)))
    assert fact.coef == 3 and Numbers(plan).failure(fact) is None


def test_what_is_passed_on_comes_from_one_operand() -> None:
    """A sum with zeros is known to be its other operand: a share of it is a share of the sum."""

    def write(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4,3]")
        b.output("y", b.constant(0, "f32[4,3]") + x)

    knowledge = known(rows(write))
    added = last(knowledge, "add")
    assert moved_from(knowledge, added) == added
    whole = knowledge.full_index(added)
    at = tuple(whole.at.values())
    fact = make_fact(knowledge.model, whole, added, at, "c0:x", at, Fraction(1))
    knowledge.hops[added] = [knowledge.add(fact, LayoutRecipe(), relates=False)]
    assert moved_from(knowledge, added) == "c0:x"
