"""What ranks sum up before they add it over ranks is related below: bags of rows of a table on ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..plans import pair, unproved

ROWS, BAGS, EACH, WIDTH = 8, 4, 2, 3
#: What becomes of the rows of a bag before it is summed over ranks.
Pooling = Callable[[ProgramBuilder, Value], Value]


def summed(_b: ProgramBuilder, found: Value) -> Value:
    return found.sum(1)


def summed_apart(b: ProgramBuilder, found: Value) -> Value:
    """Through other ops that are linear: in another shape and order, negated, by a factor that all have."""
    flat = b.reshape(found, (BAGS, EACH, WIDTH, 1)).transpose(1, 0, 2, 3)
    return -(b.reshape(flat.sum(0), (BAGS, WIDTH)) * b.input("scale", f"f32[{BAGS},{WIDTH}]"))


def largest(b: ProgramBuilder, found: Value) -> Value:
    return b.reduce(found, [1], "max")


def squashed(b: ProgramBuilder, pooled: Value) -> Value:
    return b.logistic(pooled)


def twice(_b: ProgramBuilder, pooled: Value) -> Value:
    return pooled * 2


def look_up(b: ProgramBuilder, pool: Pooling, read: Pooling) -> None:
    table, tokens = b.input("table", f"f32[{ROWS},{WIDTH}]"), b.input("tokens", f"i64[{BAGS},{EACH}]")
    b.output("pooled", read(b, pool(b, b.gather(table, tokens))))


def on_ranks(b: ProgramBuilder, pool: Pooling, read: Pooling, shift: int) -> None:
    """Each rank looks up its rows; of others it has zeros."""
    rows, shape = ROWS // 2, (BAGS, EACH, WIDTH)
    table, tokens = b.input("table", f"f32[{rows},{WIDTH}]"), b.input("tokens", f"i64[{BAGS},{EACH}]")
    here = tokens - b.constant(b.axis_index("tp").scale(rows) + shift, tokens.type)
    mine = b.logical_and(b.compare(here, 0, "GE"), b.compare(here, rows, "LT"))
    found = b.gather(table, b.select(mine, here, b.constant(0, tokens.type)))
    kept = b.select(b.broadcast(mine, shape, (0, 1)), found, b.constant(0, found.type))
    b.output("pooled", read(b, b.all_reduce(pool(b, kept), "tp")))


def bags(pool: Pooling, read: Pooling, shift: int = 0) -> Plan:
    inputs = {"table": {"tp": Shard(0)}, "tokens": {}} | ({"scale": {}} if pool is summed_apart else {})

    return pair(
        {"tp": 2},
        lambda b: look_up(b, pool, read),
        lambda b: on_ranks(b, pool, read, shift),
        inputs,
        {"pooled": {}},
        {"tokens": (0, ROWS)},
    )


@pytest.mark.parametrize("read", [squashed, twice])
@pytest.mark.parametrize("pool", [summed, summed_apart])
def test_bags_of_rows_are_proved(pool: Pooling, read: Pooling) -> None:
    """Whether an op reads them, or they are a result as they are."""
    assert unproved(bags(pool, read)) == []


@pytest.mark.parametrize(("pool", "shift"), [(summed, 1), (largest, 0)])
def test_what_is_no_sum_of_the_rows_is_not(pool: Pooling, shift: int) -> None:
    """Rows of another place, and a maximum: a sum over ranks of maxima is no maximum of sums."""
    assert unproved(bags(pool, squashed, shift)) != []
