"""Orders in programs written by hand: types are inferred, and a mistake has the words of the format."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.authoring.packing import Rows
from certificates.errors import FormatError


def start() -> tuple[ProgramBuilder, Rows, Value]:
    b = ProgramBuilder({"ep": 2})
    return b, Rows.sorted(b, b.input("keys", "i64[6]"), 8), b.input("x", "f32[6,3]")


def test_shapes_follow_from_the_order() -> None:
    b, order, x = start()
    arrived = order.shipped("ep")
    grouped = arrived.regrouped()
    rows = grouped.regroup(arrived.ship(order.pack(x)))
    w = b.input("w", "f32[4,3,5]")
    assert (order.per, arrived.per, grouped.per) == (8, 4, 4)
    assert rows.shape == (12, 3)
    assert grouped.dot(rows, w).shape == (12, 5)
    assert grouped.outer(rows, grouped.dot(rows, w)).shape == (4, 3, 5)
    back = order.unpack(arrived.ship_back(grouped.ungroup(grouped.dot(rows, w))))
    b.output("y", back)
    assert back.shape == (6, 5)
    assert [op.name for op in b.build().written][:3] == ["sort_rows", "ship_rows", "regroup_rows"]


def test_every_exchange_has_a_number_of_its_own() -> None:
    b, order, x = start()
    arrived = order.shipped("ep")
    b.output("y", b.all_reduce(order.unpack(arrived.ship_back(arrived.ship(order.pack(x)))), "ep"))
    seqs = [op.integer("seq") for op in b.build().ops if "seq" in op.attrs]
    assert seqs == [0, 1, 2, 3]


def test_a_second_sort_is_another_order() -> None:
    b, order, x = start()
    other = Rows.sorted(b, order.b.input("again", "i64[6]"), 8)
    b.output("y", other.unpack(order.pack(x)))
    with pytest.raises(FormatError, match="is in the order %0, not in %1"):
        b.build()


def test_what_goes_on_from_no_order_cannot_go_back() -> None:
    _, order, x = start()
    with pytest.raises(FormatError, match="goes on from no order"):
        order.ship_back(x)
    with pytest.raises(FormatError, match="not weights by key"):
        order.dot(x, x)
