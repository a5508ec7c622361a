"""A block on which the specification's mask is one number is a block of what is masked, without a mask."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.proving.engine import Engine

from ..plans import CORES, pair, unproved

Masking = Callable[[ProgramBuilder, Value], Value]


def signs(b: ProgramBuilder, x: Value) -> Value:
    """1 on the diagonal, -1 elsewhere: the sigmoid loss of pairs."""
    n, m = x.shape
    rows, columns = b.iota(f"i64[{n},{m}]", 0), b.iota(f"i64[{n},{m}]", 1)
    return b.convert(b.compare(rows, columns, "EQ"), "f32") * 2 - 1


def absolute(b: ProgramBuilder, x: Value) -> Value:
    return b.abs(x)


def and_opposite(b: ProgramBuilder, x: Value) -> Value:
    """Of a loss and its gradient the one reads a score, the other its opposite."""
    return b.logistic(x) * b.logistic(-x)


def pairs(other: int = -1, own: Masking = signs, read: Masking = absolute) -> Plan:
    """All pairs of rows on two ranks, each with a block of its own pairs and one of all others."""

    def specification(b: ProgramBuilder) -> None:
        x, y = b.input("x", "f32[4,3]"), b.input("y", "f32[4,3]")
        scores = b.dot(x, y, contract=((1,), (1,)))
        b.output("z", read(b, signs(b, scores) * scores).sum(1))

    def plan(b: ProgramBuilder) -> None:
        x, y = b.input("x", "f32[2,3]"), b.input("y", "f32[2,3]")
        theirs = b.slice(b.all_gather(y, "dp"), [b.axis_index("dp").scale(-2) + 2, 0], [2, 3])
        here, there = (b.dot(x, t, contract=((1,), (1,))) for t in (y, theirs))
        one = read(b, own(b, here) * here).sum(1)
        b.output("z", one + read(b, there * b.constant(other, there.type)).sum(1))

    rows = {"dp": Shard(0)}
    return pair({"dp": 2}, specification, plan, {"x": rows, "y": rows}, {"z": rows})


def negated(_b: ProgramBuilder, x: Value) -> Value:
    return x * 0 - 1


def blocks(plan: Plan) -> list[str]:
    """Where the specification has the blocks of pairs, as far as that is known and proved."""
    engine = Engine(plan, CORES)
    engine.relate()
    known, found = engine.knowledge, list[str]()
    for op in plan.classes[0].program.ops:
        for number in known.facts_for(f"c0:{op.out}") if op.name == "abs" else ():
            engine.prove(number)
            found.append(str(known.facts[number]).partition(" for ")[0].partition(" = ")[2])
    return found


def test_a_block_without_own_pairs_has_one_sign_and_the_own_pairs_are_on_the_diagonal() -> None:
    own, others = "s:%10[2*dp + z0, 2*dp + z1]", "s:%10[2*dp + z0, -2*dp + z1 + 2]"
    assert blocks(pairs()) == [own, others]


def test_what_was_restated_for_one_reader_is_there_for_another() -> None:
    assert unproved(pairs(read=and_opposite)) == [] and unproved(pairs(read=and_opposite, other=1))


def test_another_sign_is_not_the_specifications() -> None:
    assert not any("-2*dp" in block for block in blocks(pairs(other=1)))
    apart, others = ["s:%10[2*dp, 2*dp + 1]", "s:%10[2*dp + 1, 2*dp]"], "s:%10[2*dp + z0, -2*dp + z1 + 2]"
    assert blocks(pairs(own=negated)) == [*apart, others], "all pairs but those on the diagonal"


def selected(b: ProgramBuilder, x: Value) -> Value:
    return b.select(b.compare(b.iota(f"i64[{x.shape[0]},6]", 1), 4, "LT"), x, b.constant(7, x.type))


def scaled(b: ProgramBuilder, x: Value) -> Value:
    """Three times the last columns."""
    return x * (1 + 2 * b.convert(b.compare(b.iota(f"i64[{x.shape[0]},6]", 1), 4, "GE"), "f32"))


def offset(b: ProgramBuilder, x: Value) -> Value:
    return x + b.convert(b.compare(b.iota(f"i64[{x.shape[0]},6]", 1), 4, "GE"), "f32")


def twice(b: ProgramBuilder, x: Value) -> Value:
    return selected(b, offset(b, x))


def columns(masking: Masking, first: int, count: int, factor: int = 1) -> Plan:
    """Some columns of a masked tensor, of which the plan makes no more than these."""

    def write(b: ProgramBuilder, whole: bool) -> None:
        x = b.input("x", "f32[4,6]" if whole else "f32[2,6]")
        seen = masking(b, x) if whole else x[:, first : first + count] * factor
        y = b.abs(seen)
        b.output("y", y[:, first : first + count] if whole else y)

    rows = {"dp": Shard(0)}
    return pair({"dp": 2}, lambda b: write(b, True), lambda b: write(b, False), {"x": rows}, {"y": rows})


@pytest.mark.parametrize("masking", [selected, scaled, offset, twice])
def test_columns_that_a_mask_leaves_as_they_are(masking: Masking) -> None:
    assert unproved(columns(masking, 1, 3)) == []
    assert unproved(columns(masking, 2, 3)), "the last column is masked"


def test_columns_that_are_scaled_alike() -> None:
    assert unproved(columns(scaled, 4, 2, 3)) == []
    assert unproved(columns(scaled, 4, 2, 1))


def test_what_a_block_was_known_as_proves_what_it_is_said_to_be() -> None:
    engine = Engine(columns(scaled, 4, 2, 3), CORES)
    engine.relate()
    known = engine.knowledge
    (ref,) = known.restated
    (number,) = known.by_lhs[ref]
    masked = known.facts[number].rhs
    assert isinstance(masked, str) and known.model.ops[masked].name == "multiply"
    engine.prove(number)


def test_an_op_that_is_explained_is_left_alone() -> None:
    """Where what is masked is read as it is, too, it stays what it is."""

    def write(b: ProgramBuilder, rows: int) -> None:
        x = b.input("x", f"f32[{rows},6]")
        b.output("y", b.abs(x))
        b.output("z", b.exponential(selected(b, x)))

    rows = {"dp": Shard(0)}
    plan = pair({"dp": 2}, lambda b: write(b, 4), lambda b: write(b, 2), {"x": rows}, {"y": rows, "z": rows})
    engine = Engine(plan, CORES)
    engine.relate()
    assert not engine.knowledge.restated
    assert unproved(plan) == []
