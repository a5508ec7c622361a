"""Integers that are affine in their own index and the rank."""

from __future__ import annotations

from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from orchestrator.proving.engine import Engine
from orchestrator.relating.ledger import Reading
from orchestrator.solving.cores import Cores

from ..plans import CORES, pair, unproved


def related(rows: str) -> list[str]:
    """Facts about the place of each row of a rank, written as ``rows`` says; the batch has 8 rows."""

    def places(b: ProgramBuilder) -> Value:
        own = b.iota("i64[4]", 0)

        def splat(times: int, more: int = 0) -> Value:
            return b.constant(b.axis_index("tp").scale(times) + more, "i64[4]")

        return {
            "after the rank's": lambda: own + splat(4),
            "before it": lambda: splat(4) + own,
            "from the end": lambda: splat(4, 3) - own,
            "every other": lambda: own * b.constant(2, "i64[4]") + splat(1),
            "beyond the batch": lambda: own + splat(5),
            "below zero": lambda: own - splat(4),
            "squares": lambda: own * own,
        }[rows]()

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[8]")
        b.output("y", x * b.convert(b.iota("i64[8]", 0), "f32"))

    def plan(b: ProgramBuilder) -> None:
        b.output("y", b.input("x", "f32[4]") * b.convert(places(b), "f32"))

    engine = Engine(pair({"tp": 2}, spec, plan, {"x": {"tp": Shard(0)}}, {}), Cores())
    engine.relate()
    known, ops = engine.knowledge, engine.plan.classes[0].program.ops
    place = next(op.ins[0] for op in ops if op.name == "convert")
    numbers = known.by_lhs.get(f"c0:{place}", [])
    for number in numbers:
        engine.prove(number)
    return [str(known.facts[n]).partition(" = ")[2].partition(" for ")[0] for n in numbers]


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ("after the rank's", "4*tp + z0"),
        ("before it", "4*tp + z0"),
        ("from the end", "4*tp - z0 + 3"),
        ("every other", "tp + 2*z0"),
    ],
)
def test_places_of_rows_are_the_specifications_and_have_a_proof(rows: str, place: str) -> None:
    (found,) = related(rows)
    assert found == f"s:%0[{place}]"


@pytest.mark.parametrize("rows", ["beyond the batch", "below zero", "squares"])
def test_what_is_no_place_in_the_specification_stays_open(rows: str) -> None:
    assert related(rows) == []


def test_a_position_lies_between_its_ends() -> None:
    """Against ``-100``, say, it is never equal: the number of valid labels is then a count of rows."""

    def write(b: ProgramBuilder) -> None:
        b.output("y", b.convert(b.iota("i64[8]", 0), "f32") + b.input("x", "f32[8]"))

    engine = Engine(pair({}, write, write, {"x": {}}, {}), Cores())
    whole = engine.knowledge.full_index("s:%0")
    positions, at = engine.relations.positions, tuple(whole.at.values())
    assert positions.bounds(Reading(Fraction(1), "s:%0", at), whole.ranges) == (0, 7)
    assert positions.bounds(Reading(Fraction(-2), "s:%0", at), whole.ranges) == (-14, 0)
    assert positions.bounds(Reading(Fraction(1), "s:x", at), whole.ranges) is None


def looked_up(rows: str) -> list[str]:
    """What a rank's look-up in the table of learned places is, as ``rows`` says."""

    def spec(b: ProgramBuilder) -> None:
        b.output("y", b.input("x", "f32[8,3]") + b.gather(b.input("w", "f32[16,3]"), b.iota("i64[8]", 0)))

    def plan(b: ProgramBuilder) -> None:
        x, w, own = b.input("x", "f32[4,3]"), b.input("w", "f32[16,3]"), b.iota("i64[4]", 0)
        first = b.constant(b.axis_index("tp").scale(13 if rows == "beyond the table" else 4), "i64[4]")
        where = {"the rank's": own + first, "its first": own, "squares": own * own}.get(rows, own + first)
        b.output("y", x + b.gather(w, where))

    engine = Engine(
        pair({"tp": 2}, spec, plan, {"x": {"tp": Shard(0)}, "w": {}}, {"y": {"tp": Shard(0)}}), CORES
    )
    engine.relate()
    (gather,) = (f"c0:{op.out}" for op in engine.plan.classes[0].program.ops if op.name == "gather")
    numbers = engine.knowledge.hops.get(gather, [])
    for number in numbers:
        engine.prove(number)
    return [str(engine.knowledge.facts[n]).partition(" = ")[2].partition(" for ")[0] for n in numbers]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("the rank's", ["c0:w[tp, 4*tp + z0, z1]"]),
        ("its first", ["c0:w[tp, z0, z1]"]),
        ("squares", []),
        ("beyond the table", []),
    ],
)
def test_a_look_up_at_positions_is_a_part_of_the_table(rows: str, found: list[str]) -> None:
    assert looked_up(rows) == found


def picked(b: ProgramBuilder, length: int, *, shifted: bool = False) -> Value:
    """``table[rows[:, None], places]``, as a mask asks in which packed sequence a place is."""
    table = b.input("t", f"f32[{length},5]")
    places = b.broadcast(b.iota("i64[4]", 0), (length, 4), (1,))
    return b.gather(table, places + 1 if shifted else places, axis=1, batch_dims=1)


@pytest.mark.parametrize("shifted", [False, True])
def test_look_ups_row_by_row_are_those_of_the_specification(shifted: bool) -> None:
    plan = pair(
        {"dp": 2},
        lambda b: b.output("y", picked(b, 6)),
        lambda b: b.output("y", picked(b, 3, shifted=shifted)),
        {"t": {"dp": Shard(0)}},
        {"y": {"dp": Shard(0)}},
    )
    assert bool(unproved(plan)) == shifted


def rotated(b: ProgramBuilder, rows: int) -> None:
    """Rotations: every second place by the size, to a power, times all places. Of four, two are both."""
    x = b.input("x", f"f32[{rows},4,2]")
    second = b.convert(b.iota("i64[2]", 0) * b.constant(2, "i64[2]"), "f32") / 4
    places = b.convert(b.iota("i64[4]", 0), "f32")
    rates = b.power(b.constant(10, "f32[2]"), second)
    angles = b.broadcast(places, (4, 2), (0,)) * b.broadcast(rates, (4, 2), (1,))
    b.output("y", x * b.broadcast(b.cosine(angles), (rows, 4, 2), (1, 2)))


def test_places_are_read_as_a_whole_though_some_are_also_every_second_one() -> None:
    plan = pair(
        {"dp": 2},
        lambda b: rotated(b, 4),
        lambda b: rotated(b, 2),
        {"x": {"dp": Shard(0)}},
        {"y": {"dp": Shard(0)}},
    )
    assert unproved(plan) == []


def biased(b: ProgramBuilder, rows: int, buckets: int) -> None:
    """A bias by the bucket of a distance: its direction, and how far, up to 3. It is in a table of 8."""
    x, table = b.input("x", f"f32[{rows},6,6]"), b.input("t", "f32[8]")
    to, start = (b.broadcast(b.iota("i64[6]", 0), (6, 6), (d,)) for d in (1, 0))
    apart = to - start
    far = b.minimum(b.maximum(apart, -apart), b.constant(3, "i64[6,6]"))
    ahead = b.convert(b.compare(apart, 0, "GT"), "i64")
    index = ahead * b.constant(buckets, "i64[6,6]") + far
    b.output("y", x + b.broadcast(b.gather(table, index), (rows, 6, 6), (1, 2)))


@pytest.mark.parametrize(("buckets", "inside"), [(4, True), (5, False)])
def test_a_table_is_read_at_sums_of_masks_and_distances_that_lie_in_it(buckets: int, inside: bool) -> None:
    """Out of it, what is looked up is not known to be the same on both sides."""
    plan = pair(
        {"dp": 2},
        lambda b: biased(b, 4, buckets),
        lambda b: biased(b, 2, buckets),
        {"x": {"dp": Shard(0)}, "t": {}},
        {"y": {"dp": Shard(0)}},
    )
    assert (unproved(plan) == []) == inside
