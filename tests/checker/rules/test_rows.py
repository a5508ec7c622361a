"""Keys lie in their range, evidently; rows meet rows that were shipped by the same order (obligation 22)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.authoring.packing import Rows
from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard, relate
from certificates.plan.plan import Mesh, Piece, RankClass, Relation
from certificates.plan.writing import dumps
from checker.errors import Rejected
from checker.language.plan import Plan
from checker.reading.plan import read_plan
from checker.rules.bounds import MAX_DEEP
from checker.rules.rows import check_rows
from tests.packed_plans import document

Make = Callable[[ProgramBuilder, Value], Value]


def keyed(make: Make, ranges: dict[str, tuple[int, int]], count: int = 4) -> Plan:
    """Two ranks sort by keys that ``make`` computes of their piece of ``keys``; read, not checked."""
    s, b = ProgramBuilder(), ProgramBuilder({"ep": 2})
    s.input("keys", "i64[8]")
    s.output("y", s.input("x", "f32[8]"))
    x, keys = b.input("x", "f32[4]"), b.input("keys", "i64[4]")
    order = Rows.sorted(b, make(b, keys), count)
    b.output("y", order.unpack(order.pack(x)))
    program = b.build()
    mesh, classes = Mesh({"ep": 2}), [RankClass("c0", {"ep": (0, 2)}, program)]
    z = Affine.symbol("z0")
    tied = [relate("x", (8,), {"ep": Shard(0)}, mesh, classes)]
    place = (z + Affine.symbol("ep").scale(4),)
    tied.append(Relation("keys", "keys", (Piece("c0", (4,), (z,), place),)))
    plan = build_plan(
        name="keys", mesh={"ep": 2}, specification=s.build(), classes=program, inputs=tied,
        outputs={"y": {"ep": Shard(0)}}, ranges={"keys": (0, 4)},
    )  # fmt: skip
    return read_plan(dumps(replace(plan, ranges=ranges)))


def test_declared_keys_are_in_range() -> None:
    check_rows(keyed(lambda b, k: k, {"keys": (0, 4)}))
    with pytest.raises(Rejected, match="keys is 0 to 4"):
        check_rows(keyed(lambda b, k: k, {"keys": (0, 5)}))


def test_keys_of_other_ranks_count_too() -> None:
    def moved(b: ProgramBuilder, k: Value) -> Value:
        return b.all_gather(k, "ep")[2:6]

    check_rows(keyed(moved, {"keys": (0, 4)}))
    with pytest.raises(Rejected, match="is -1 to 2"):
        check_rows(keyed(moved, {"keys": (-1, 3)}))


def test_keys_that_take_too_many_ops_have_no_range() -> None:
    def deep(count: int) -> Make:
        def make(b: ProgramBuilder, k: Value) -> Value:
            for _ in range(count):
                k = b.reshape(k, (4,))
            return k

        return make

    check_rows(keyed(deep(MAX_DEEP), {"keys": (0, 4)}))
    with pytest.raises(FormatError, match="is anything"):  # before a plan is written, by the same rule
        keyed(deep(MAX_DEEP + 1), {"keys": (0, 4)})


def test_a_value_used_twice_at_every_op_is_looked_at_once() -> None:
    def doubled(b: ProgramBuilder, k: Value) -> Value:
        for _ in range(MAX_DEEP):
            k = b.maximum(k, k)
        return k

    check_rows(keyed(doubled, {"keys": (0, 4)}))


def test_the_small_dispatch_is_whole() -> None:
    check_rows(read_plan(document()))
