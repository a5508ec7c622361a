"""An operand without a relation is guessed once, from what the op's partner reads in its place."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Fact, Ref
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.matching import Matcher
from orchestrator.relating.tries import Tries
from smtlib_emit.model import Model

from ..oracle import Numbers
from .kit import formulas, last


def offset(b: ProgramBuilder, x: Value, *, wrong: bool = False) -> Value:
    """A rank's rows, weighted by a mask that it makes by a comparison of its own."""
    rows = b.iota("i64[4,3]", 0) + b.constant(b.axis_index("dp").scale(4), "i64[4,3]")
    mask = b.convert(b.compare(rows, 4 if wrong else 5, "LT"), "f32")
    return x * mask


def masked(b: ProgramBuilder, x: Value) -> Value:
    return b.convert(b.compare(b.iota("i64[8,3]", 0), 5, "LT"), "f32") * x


def guesses(plan: Plan, *, keep: bool) -> tuple[list[list[Fact]], Knowledge, bool]:
    """All proposals for the product, and whether it is related in the end."""
    proposed: list[list[Fact]] = []
    knowledge = Knowledge(Model(plan))

    def propose(facts: list[Fact], _cones: frozenset[Ref] | None = None) -> bool:
        proposed.append(facts)
        for fact in facts if keep else ():
            number = knowledge.add(fact, None, relates=False)
            knowledge.by_lhs.setdefault(fact.lhs, []).append(number)
        return keep

    knowledge.declare_inputs()
    matcher = Matcher(knowledge, propose)
    matcher.index_specification(lambda _: False)
    done = matcher.relate(last(plan))
    return proposed, knowledge, done


GIVEN = {"x": ("f32[8,3]", "f32[4,3]", {"dp": Shard(0)})}


def test_the_mask_is_guessed_to_be_the_partners_at_the_rows_of_the_rank() -> None:
    plan = formulas({"dp": 2}, masked, offset, GIVEN)
    proposed, knowledge, done = guesses(plan, keep=True)
    (facts,) = proposed
    assert {f.lhs for f in facts} == {knowledge.model.operands(last(plan))[1]}
    numbers = Numbers(plan)
    assert [numbers.failure(f) for f in facts] == [None] * len(facts)
    assert done and all(numbers.failure(knowledge.facts[n]) is None for n in knowledge.by_lhs[last(plan)])


def test_a_guess_that_is_not_proved_relates_nothing_and_is_not_made_again() -> None:
    """Of another mask the same is guessed; who proves says that it is wrong."""
    plan = formulas({"dp": 2}, masked, lambda b, x: offset(b, x, wrong=True), GIVEN)
    proposed, knowledge, done = guesses(plan, keep=False)
    assert len(proposed) == 1 and not done and last(plan) not in knowledge.by_lhs
    assert Numbers(plan).failure(proposed[0][0]) is not None


def test_with_two_unrelated_operands_nothing_is_guessed() -> None:
    def plan(b: ProgramBuilder, x: Value) -> Value:
        return offset(b, x) * offset(b, x, wrong=True)

    made = formulas({"dp": 2}, lambda b, x: masked(b, x) * masked(b, x), plan, GIVEN)
    assert guesses(made, keep=True)[0] == []


def test_a_partner_that_repeats_a_mask_along_blocks_is_read_block_by_block() -> None:
    """Its operand is a reshape: what it says of a column depends on the column's block."""

    def repeated(b: ProgramBuilder, x: Value) -> Value:
        block = b.compare(b.iota("i64[2]", 0), 1, "LT")
        return b.select(b.reshape(b.broadcast(block, (8, 2, 3), (1,)), (8, 6)), x, x * 2)

    def counted(b: ProgramBuilder, x: Value) -> Value:
        return b.select(b.compare(b.iota("i64[4,6]", 1), 3, "LT"), x, x * 2)

    plan = formulas({"dp": 2}, repeated, counted, {"x": ("f32[8,6]", "f32[4,6]", {"dp": Shard(0)})})
    proposed, _, done = guesses(plan, keep=True)
    numbers = Numbers(plan)
    assert proposed and done
    assert [numbers.failure(f) for facts in proposed for f in facts if numbers.failure(f)] == []


def test_a_partner_that_reads_a_concatenation_is_read_in_its_pieces() -> None:
    """Rows chosen by their number, where the specification puts two tensors one after the other."""

    def chosen(b: ProgramBuilder, x: Value, u: Value, v: Value) -> Value:
        first = b.compare(b.iota("i64[8,3]", 0), 3, "LT")
        return x + b.select(first, b.pad(u, (0, 0), (5, 0)), b.pad(v, (3, 0), (0, 0)))

    def joined(b: ProgramBuilder, x: Value, u: Value, v: Value) -> Value:
        return x + b.concatenate([u, v], 0)

    given = {"x": ("f32[8,3]", "f32[8,3]", {}), "u": ("f32[3,3]",) * 2, "v": ("f32[5,3]",) * 2}
    plan = formulas({"dp": 2}, joined, chosen, {n: (g[0], g[1], {}) for n, g in given.items()})
    proposed, knowledge, done = guesses(plan, keep=True)
    (facts,) = proposed
    assert sorted(str(f.rhs) for f in facts) == ["s:u", "s:v"]
    numbers = Numbers(plan)
    assert [numbers.failure(f) for f in facts] == [None] * len(facts)
    assert done and all(numbers.failure(knowledge.facts[n]) is None for n in knowledge.by_lhs[last(plan)])


def test_partners_that_are_compared_in_vain_are_counted() -> None:
    plan = formulas({"dp": 2}, masked, lambda b, x: offset(b, x, wrong=True), GIVEN)
    _, knowledge, _ = guesses(plan, keep=False)
    assert knowledge.tries.in_vain > 0
    _, knowledge, done = guesses(formulas({"dp": 2}, masked, offset, GIVEN), keep=True)
    assert done and knowledge.tries.in_vain == 0


def test_a_mask_of_positions_is_guessed_at_another_place_than_where_it_was_found() -> None:
    """The diagonal of a rank's own block is the first one of the specification's, and the rank's."""

    def diagonal(b: ProgramBuilder, x: Value) -> Value:
        n, m = x.shape
        same = b.compare(b.iota(f"i64[{n},{m}]", 0), b.iota(f"i64[{n},{m}]", 1), "EQ")
        return b.convert(same, "f32") * x

    def own(b: ProgramBuilder, x: Value) -> Value:
        return diagonal(b, b.slice(x, [0, b.axis_index("dp").scale(4)], [4, 4]))

    plan = formulas({"dp": 2}, diagonal, own, {"x": ("f32[8,8]", "f32[4,8]", {"dp": Shard(0)})})
    proposed, knowledge, done = guesses(plan, keep=True)
    (facts,) = proposed
    (fact,) = facts
    assert fact.lhs == knowledge.model.operands(last(plan))[0]
    assert [str(form) for form in fact.rhs_index] == ["4*dp + z0", "4*dp + z1"]
    assert Numbers(plan).failure(fact) is None
    assert done and knowledge.by_lhs[fact.lhs] == [knowledge.facts.index(fact)], "what was known is replaced"


def test_when_too_much_was_in_vain_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tries, "left", False)
    assert guesses(formulas({"dp": 2}, masked, offset, GIVEN), keep=True)[0] == []
