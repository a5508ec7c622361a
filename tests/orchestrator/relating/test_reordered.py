"""Sums and products in another order are proved; another formula is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..plans import pair, unproved

Formula = Callable[[ProgramBuilder, Value, Value, Value], Value]


def two(specification: Formula, plan: Formula) -> Plan:
    """Elementwise formulas of three tensors; the plan's are cut along dp."""

    def write(formula: Formula, rows: int) -> Callable[[ProgramBuilder], None]:
        def body(b: ProgramBuilder) -> None:
            x, y, z = (b.input(n, f"f32[{rows},3]") for n in "xyz")
            b.output("out", formula(b, x, y, z))

        return body

    shard = {"dp": Shard(0)}
    return pair({"dp": 2}, write(specification, 8), write(plan, 4),
                {n: shard for n in "xyz"}, {"out": shard})  # fmt: skip


def tanh(b: ProgramBuilder, v: Value) -> Value:
    return b.tanh(v)


@pytest.mark.parametrize(
    ("specification", "plan"),
    [
        (lambda b, x, y, z: (x + y) + z, lambda b, x, y, z: x + (z + y)),
        (lambda b, x, y, z: x * y * z, lambda b, x, y, z: (z * x) * y),
        (lambda b, x, y, z: (x + y) * z, lambda b, x, y, z: z * x + y * z),
        (lambda b, x, y, z: x / z + y / z, lambda b, x, y, z: (x + y) / z),
        (lambda b, x, y, z: (x - y) * 2, lambda b, x, y, z: (y - x) * -2),
        (lambda b, x, y, z: b.tanh(x + y + z), lambda b, x, y, z: b.tanh(z + (y + x))),
    ],
)
def test_another_order_is_proved(specification: Formula, plan: Formula) -> None:
    assert unproved(two(specification, plan)) == []


def test_what_is_taken_away_again_needs_no_relation() -> None:
    """A library's loss has a term over the rank's tokens; the user puts one over all tokens in its place."""

    def specification(b: ProgramBuilder) -> None:
        x, y = b.input("x", "f32[8,3]"), b.input("y", "f32[8,3]")
        b.output("out", x.sum(0, 1) + b.tanh(y.sum(0, 1)))

    def plan(taken: float) -> Callable[[ProgramBuilder], None]:
        def write(b: ProgramBuilder) -> None:
            x, y = b.input("x", "f32[4,3]"), b.input("y", "f32[4,3]")
            mine = y.sum(0, 1)
            local, whole = b.tanh(mine), b.tanh(b.all_reduce(mine, "dp"))
            b.output("out", b.all_reduce((x.sum(0, 1) + local) - local * taken + whole / 2, "dp"))

        return write

    rows = {"x": {"dp": Shard(0)}, "y": {"dp": Shard(0)}}
    assert unproved(pair({"dp": 2}, specification, plan(1), rows, {"out": {}})) == []
    assert unproved(pair({"dp": 2}, specification, plan(0.5), rows, {"out": {}}))


@pytest.mark.parametrize(
    ("specification", "plan"),
    [
        (lambda b, x, y, z: (x + y) + z, lambda b, x, y, z: x + (z - y)),
        (lambda b, x, y, z: x * y * z, lambda b, x, y, z: x * y * y),
        (lambda b, x, y, z: (x + y) * z, lambda b, x, y, z: z * x + y),
        (lambda b, x, y, z: x / z + y / z, lambda b, x, y, z: x / (z + y)),
        (lambda b, x, y, z: (x - y) * 2, lambda b, x, y, z: (y - x) * 2),
    ],
)
def test_another_formula_is_not(specification: Formula, plan: Formula) -> None:
    assert unproved(two(specification, plan))
