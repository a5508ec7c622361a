"""Polynomials of ops: they have the values of their ops, and nothing is opened that no law opens."""

from __future__ import annotations

import random

import pytest

from certificates.plan.affine import Affine
from certificates.proof.facts import Reduced
from orchestrator.cells import Unfollowable
from orchestrator.proving.engine import Engine
from orchestrator.relating.ledger import Unrelated
from orchestrator.relating.polynomials import Inverse, Polynomial, Polynomials, TooLarge, Trail
from orchestrator.solving.cores import Cores

from ..oracle import Numbers
from ..plans import unproved
from .test_reordered import two


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
    polynomials, rng, done = Polynomials(engine.knowledge), random.Random(0), 0
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
                poly = polynomials.of_specification(ref, index, cell.ranges, Trail(), leaves)
            else:
                poly = polynomials.of_plan(ref, index, cell.ranges, Trail(), deep=deep)
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
    poly = Polynomials(engine.knowledge).of_specification(ops["divide"], index, ranges, Trail(), {"s:x"})
    assert poly == {(("s:x", index), (Inverse(ops["add"]), index)): 1} or poly == {
        ((Inverse(ops["add"]), index), ("s:x", index)): 1
    }
    assert unproved(plan) == []
