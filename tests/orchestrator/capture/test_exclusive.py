"""Masks of which at most one is true at a place: what they write is a sum, and is read as if alone."""

from __future__ import annotations

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.lowering.exclusive import Written, compared, peeled


def chosen(b: Builder, integers: Value, number: int, direction: str = "EQ") -> Value:
    return b.compare(direction, integers, b.like(number, integers))


def test_a_mask_compares_integers_with_a_number() -> None:
    b = Builder()
    v, x = b.input("v", TensorType("i64", (4,))), b.input("x", TensorType("f32", (4,)))
    assert compared(b, chosen(b, v, 3)) == (v, 3)
    assert compared(b, b.compare("EQ", b.like(2, v), v)) == (v, 2)
    others = (
        chosen(b, v, 3, "NE"),
        b.compare("EQ", v, v),
        chosen(b, x, 3),
        b.input("m", TensorType("i1", (4,))),
    )
    assert [compared(b, other) for other in others] == [None] * 4


def test_what_other_masks_wrote_is_left_out_and_what_may_be_there_stays() -> None:
    b = Builder()
    v, w = b.input("v", TensorType("i64", (4,))), b.input("w", TensorType("i64", (4,)))
    x, y = (b.input(name, TensorType("f32", (4, 2))) for name in "xy")

    def over(mask: Value, below: Value) -> Value:
        return b.select(b.broadcast(mask, (4, 2), (0,)), y, below)

    first, second, own = over(chosen(b, v, 1), x), over(chosen(b, v, 2), x), chosen(b, v, 0)
    assert peeled(b, over(chosen(b, v, 2), first), own) == x
    assert peeled(b, over(own, first), own).name == over(own, first).name, "its own writing"
    assert peeled(b, over(chosen(b, w, 1), second), own) != x, "other integers"
    square = b.input("s", TensorType("i64", (2, 2)))
    columns = b.select(
        b.broadcast(chosen(b, square, 1), (2, 2, 2), (1, 2)),
        *(b.like(n, b.iota(0, (2, 2, 2), "f32")) for n in (1, 0)),
    )
    assert peeled(b, columns, chosen(b, square, 0)) == columns, "a mask of other dimensions"


def test_what_is_written_by_exclusive_masks_is_added() -> None:
    b, written = Builder(), Written()
    v, w = b.input("v", TensorType("i64", (4,))), b.input("w", TensorType("i64", (4,)))
    zeros, ones = (b.constant(n, TensorType("f32", (4, 2))) for n in (0, 1))
    rows = b.input("x", TensorType("f32", (4, 2)))
    assert written.adds(b, zeros, chosen(b, v, 0)) and not written.adds(b, ones, chosen(b, v, 0))
    assert not written.adds(b, zeros, b.input("m", TensorType("i1", (4,)))), "may be true with any other"
    once = b.binary("multiply", rows, b.broadcast(b.convert(chosen(b, v, 0), "f32"), (4, 2), (0,)))
    written.note(b, zeros, chosen(b, v, 0), once)
    assert written.adds(b, once, chosen(b, v, 1))
    assert not written.adds(b, once, chosen(b, v, 0)), "it is written again"
    assert not written.adds(b, once, chosen(b, w, 1)), "both may be true"
    assert not written.adds(b, rows, chosen(b, v, 1)), "what nobody knows"
