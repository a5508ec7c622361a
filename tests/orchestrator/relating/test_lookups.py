"""Look-ups of the specification that repeat an earlier one, and what follows from them on ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.proving.engine import Engine

from ..plans import CORES, pair, unproved

#: A look-up has a value inside of the table only.
RANGES = {"t": (0, 10)}
Second = Callable[[ProgramBuilder, Value, Value, int], Value]


def later(b: ProgramBuilder, w: Value, t: Value, rows: int) -> Value:
    """The rows of all tokens but the first."""
    return b.gather(w, b.slice(t, [0, 1], [rows, 5]))


def turned(b: ProgramBuilder, w: Value, t: Value, rows: int) -> Value:
    return b.transpose(b.gather(w, b.transpose(t, [1, 0])), [1, 0, 2])


def embedded_twice(second: Second, here: Second | None = None, width: int = 5) -> Plan:
    """Rows that are looked up, scaled and squared; others of the same table are joined to them."""

    def write(rows: int, made: Second) -> Callable[[ProgramBuilder], None]:
        def inner(b: ProgramBuilder) -> None:
            w, t, s = b.input("w", "f32[10,3]"), b.input("t", f"i64[{rows},6]"), b.input("s", "f32[6,2]")
            first = b.gather(w, t)
            x = b.slice(first * first, [0, 0, 0], [rows, width, 3])
            other = made(b, w, t, rows)
            joined = b.concatenate([x, other * other], 2)
            flat = b.reshape(joined, [rows * width, 6])
            b.output("y", b.reshape(b.dot(flat, s, ([1], [0])), [rows, width, 2]))

        return inner

    batch = {"dp": Shard(0)}
    return pair(
        {"dp": 2},
        write(4, second),
        write(2, here or second),
        {"w": {}, "t": batch, "s": {}},
        {"y": batch},
        RANGES,
    )


def said(plan: Plan) -> list[str]:
    """Facts about the specification's look-ups."""
    engine = Engine(plan, CORES)
    engine.relate()
    known = engine.knowledge
    looked = [f"s:{op.out}" for op in plan.specification.ops if op.name == "gather"]
    return [str(known.facts[n]) for ref in looked for n in known.by_lhs.get(ref, ())]


def test_a_part_of_the_rows_is_a_part_of_the_first_look_up() -> None:
    (fact,) = said(embedded_twice(later))
    assert fact.endswith("= s:%0[z0, z1 + 1, z2] for z0 in [0,4), z1 in [0,5), z2 in [0,3)")


def test_rows_in_another_order_are_found_where_they_were() -> None:
    (fact,) = said(embedded_twice(turned, width=6))
    assert "= s:%0[z1, z0, z2] for" in fact


@pytest.mark.parametrize(("second", "width"), [(later, 5), (turned, 6)])
def test_what_follows_from_both_look_ups_is_proved(second: Second, width: int) -> None:
    assert unproved(embedded_twice(second, width=width)) == []


def of_twice_the_table(b: ProgramBuilder, w: Value, t: Value, rows: int) -> Value:
    return b.gather(w + w, b.slice(t, [0, 1], [rows, 5]))


def shifted(b: ProgramBuilder, w: Value, t: Value, rows: int) -> Value:
    return b.gather(w, b.slice(t, [0, 0], [rows, 5]))


def test_ranks_that_look_up_the_rows_before_are_not_proved() -> None:
    (failure,) = unproved(embedded_twice(later, shifted))
    assert failure.startswith("c0:")


def test_another_table_has_rows_of_its_own() -> None:
    assert said(embedded_twice(of_twice_the_table)) == []


def test_a_look_up_of_more_than_an_earlier_one_has_stands_for_itself() -> None:
    def write(rows: int) -> Callable[[ProgramBuilder], None]:
        def inner(b: ProgramBuilder) -> None:
            w, t = b.input("w", "f32[10,3]"), b.input("t", f"i64[{rows},6]")
            part, whole = later(b, w, t, rows), b.gather(w, t)
            b.output("part", part * part)
            b.output("whole", whole * whole)

        return inner

    batch = {"dp": Shard(0)}
    plan = pair({"dp": 2}, write(4), write(2), {"w": {}, "t": batch}, {"part": batch, "whole": batch}, RANGES)
    assert said(plan) == []
    assert unproved(plan) == []
