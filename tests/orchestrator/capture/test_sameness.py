"""Values made in the same way of the same values are one value."""

from __future__ import annotations

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.lowering.sameness import same

SHAPE = TensorType("f32", (4, 2))


def test_what_is_made_in_the_same_way_of_the_same_values_is_the_same() -> None:
    b = Builder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    assert same(b, x, x) and not same(b, x, y)
    product = b.binary("multiply", x, y)
    assert same(b, b.unary("tanh", product), b.unary("tanh", b.binary("multiply", x, y)))
    assert not same(b, product, b.binary("multiply", y, x)), "nothing is reordered"
    assert not same(b, product, b.binary("add", x, y))
    assert not same(b, b.transpose(x, (1, 0)), b.transpose(y, (1, 0)))


def test_what_lies_too_deep_is_taken_for_another() -> None:
    b = Builder()
    x = b.input("x", TensorType("i64", (4,)))

    def counted(times: int) -> Value:
        value = x
        for _ in range(times):
            value = b.binary("add", value, b.like(1, value))
        return value

    assert same(b, counted(3), counted(3))
    assert not same(b, counted(20), counted(20))
