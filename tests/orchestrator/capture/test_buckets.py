"""Flat, padded buckets: how chunks cut tensors, and whole captures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from certificates.plan.plan import Plan
from orchestrator.capture import capture
from orchestrator.capture.buckets import boxes
from orchestrator.capture.errors import LayoutError
from orchestrator.capture.userfile import load_definition
from orchestrator.evaluating import interpreter

FILE = Path(__file__).resolve().parents[3] / "examples" / "models" / "ddp_zero1.py"


@pytest.mark.parametrize("shape", [(), (7,), (4, 5), (3, 2, 4), (1, 6), (5, 1)])
def test_boxes_tile_every_range_in_order(shape: tuple[int, ...]) -> None:
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    for low in range(whole.size + 1):
        for high in range(low, whole.size + 1):
            parts = [
                whole[tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))].reshape(-1)
                for starts, sizes in boxes(shape, low, high)
            ]
            assert [x for part in parts for x in part] == list(range(low, high))


def agrees(plan: Plan) -> None:
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    assert interpreter.compare_outputs(plan, interpreter.run_specification(plan, inputs), ranks, 1e-7) == []


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1])
def test_hand_written_buckets(zero: int) -> None:
    plan = capture(load_definition(FILE, {"zero": zero}), jobs=2)
    assert len(plan.classes) == (4 if zero else 1)
    agrees(plan)


@pytest.mark.slow
def test_a_bucket_in_another_order_is_not_equal() -> None:
    definition = load_definition(FILE)
    swapped = {
        name: dataclasses.replace(bucket, tensors=bucket.tensors[::-1])
        for name, bucket in definition.buckets.items()
    }
    plan = capture(dataclasses.replace(definition, buckets=swapped), jobs=2)
    with pytest.raises(AssertionError):
        agrees(plan)


@pytest.mark.slow
def test_a_bucket_that_is_too_small_is_refused() -> None:
    definition = load_definition(FILE)
    whole = {n: dataclasses.replace(b, axis=None) for n, b in definition.buckets.items()}
    with pytest.raises(LayoutError, match="1 chunks of shape"):
        capture(dataclasses.replace(definition, buckets=whole), jobs=2)
