"""Sums and products in another order: polynomials over elements, and the partners they find."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Reduced
from orchestrator.cells import Unfollowable
from orchestrator.proving.engine import Engine
from orchestrator.relating.knowledge import Unrelated
from orchestrator.relating.reordered import Inverse, Polynomial, Rings, TooLarge, Trail
from orchestrator.solving.cores import Cores

from ..oracle import Numbers
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


def value(poly: Polynomial, numbers: Numbers, at: dict[str, int]) -> float:
    total = 0.0
    for monomial, coef in poly.items():
        term = float(coef)
        for leaf, index in monomial:
            ref = leaf.ref if isinstance(leaf, Inverse) else leaf
            assert isinstance(ref, str | Reduced)
            x = numbers.element(ref, tuple(f.evaluate(at) for f in index))
            term *= 1 / x if isinstance(leaf, Inverse) else x
        total += term
    return total


@pytest.mark.parametrize("deep", [False, True])
def test_polynomials_have_the_value_of_their_op(deep: bool) -> None:
    plan = two(
        lambda b, x, y, z: (x + y) * z - x / b.tanh(y) + 3 * x * x,
        lambda b, x, y, z: (y + x) * z + 3 * x * x - x / b.tanh(y),
    )
    numbers, engine = Numbers(plan), Engine(plan, Cores())
    engine.relate()
    rings, rng, done = Rings(engine.knowledge), random.Random(0), 0
    leaves = {f"s:{name}" for name in plan.specification.inputs} | {
        f"s:{op.out}" for op in plan.specification.ops if op.name == "tanh"
    }
    for ref, op in engine.model.ops.items():
        if op.name not in ("add", "subtract", "multiply", "divide"):
            continue
        cell = engine.knowledge.full_index(ref)
        index = list(cell.at.values())
        try:
            if ref.startswith("s:"):
                poly = rings.of_specification(ref, index, cell.ranges, Trail(), leaves)
            else:
                poly = rings.of_plan(ref, index, cell.ranges, Trail(), deep=deep)
        except (Unrelated, Unfollowable, TooLarge):
            continue
        for _ in range(5):
            at = {s: rng.randrange(lo, hi) for s, (lo, hi) in cell.ranges.items()}
            here = tuple(f.evaluate(at) for f in index)
            assert value(poly, numbers, at) == pytest.approx(numbers.element(ref, here), rel=1e-9)
            done += 1
    assert done >= 40


def test_a_sum_in_a_divisor_stays_whole() -> None:
    """``recip`` distributes over nothing: 1 / (y + z) is the reciprocal of one tensor."""
    plan = two(lambda b, x, y, z: x / (y + z), lambda b, x, y, z: x / (y + z))
    engine = Engine(plan, Cores())
    engine.knowledge.declare_inputs()
    ops = {op.name: ref for ref, op in engine.model.ops.items() if ref.startswith("s:")}
    index = (Affine.symbol("i"), Affine.symbol("j"))
    ranges = {"i": (0, 8), "j": (0, 3)}
    poly = Rings(engine.knowledge).of_specification(ops["divide"], index, ranges, Trail(), {"s:x"})
    assert poly == {(("s:x", index), (Inverse(ops["add"]), index)): 1} or poly == {
        ((Inverse(ops["add"]), index), ("s:x", index)): 1
    }
    assert unproved(plan) == []
