"""Following elements: one step back through data movement gives the number that the oracle has there."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.plan.affine import Affine
from certificates.plan.plan import Plan
from orchestrator.cells import Cell, Unfollowable, explore
from orchestrator.relating.knowledge import Knowledge
from orchestrator.relating.movement import Step, moves, step
from smtlib_emit.model import Model

from ..oracle import Numbers
from ..plans import exchange
from ..random_plans import random_plan


def check(plan: Plan, seed: int = 0) -> int:
    model, numbers, done = Model(plan), Numbers(plan, seed), 0
    knowledge, rng = Knowledge(model), random.Random(seed)
    for ref in model.ops:
        if not moves(model, ref):
            continue
        whole = knowledge.full_index(ref)

        def back(cell: Cell, ref: str = ref) -> Step:
            return step(model, ref, list(cell.at.values()), cell.ranges)

        parts = explore(whole, back)
        for cell, (coef, source, at) in parts:
            for _ in range(10):
                values = {s: rng.randrange(lo, hi) for s, (lo, hi) in cell.ranges.items()}
                here = tuple(f.evaluate(values) for f in cell.at.values())
                there = tuple(f.evaluate(values) for f in at)
                left, right = numbers.element(ref, here), float(coef) * numbers.element(source, there)
                assert left == pytest.approx(right, rel=1e-9), f"{ref}{here} from {source}{there}"
                done += 1
    return done


def test_steps_of_hand_written_plans(any_plan: Plan) -> None:
    assert check(any_plan) > 10


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_steps_of_random_plans(seed: int) -> None:
    check(random_plan(seed, 12), seed)


def test_steps_through_all_to_all_and_concatenation() -> None:
    assert check(exchange()) > 60


def test_arithmetic_is_not_followed(mlp: Plan) -> None:
    model = Model(mlp)
    ref = next(r for r, op in model.ops.items() if op.name == "tanh")
    assert not moves(model, ref)
    with pytest.raises(Unfollowable, match=r"tanh .* is not data movement"):
        step(model, ref, [Affine(0)] * 4, {})


def test_a_product_with_a_number_is_followed_and_one_with_a_tensor_is_not(mlp: Plan) -> None:
    model = Model(mlp)
    products = [r for r, op in model.ops.items() if op.name == "multiply"]
    followed = {r: moves(model, r) for r in products}
    assert set(followed.values()) == {True, False}
    for ref, through in followed.items():
        assert through == any(model.literal(v) is not None for v in model.operands(ref))
