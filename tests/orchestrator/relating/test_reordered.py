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
