"""Flat, padded buckets: how chunks cut tensors, and whole captures."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from certificates.plan.plan import Mesh, Plan, RankClass
from certificates.plan.program import Program
from certificates.plan.types import TensorType
from orchestrator.capture import capture
from orchestrator.capture.buckets import boxes, relations, split_classes
from orchestrator.capture.definition import Bucket
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


MESH = Mesh({"tp": 2, "dp": 3})
SHAPES = {"params.a": (3, 4), "params.b": (), "params.c": (2, 2, 2)}
NOTHING = Program({}, (), {})


@pytest.mark.parametrize("axis", ["dp", None])
@pytest.mark.parametrize("tensors", [tuple(SHAPES), tuple(SHAPES)[::-1]])
def test_every_element_of_a_bucket_lies_where_chunks_of_its_tensors_put_it(
    axis: str | None, tensors: tuple[str, ...]
) -> None:
    """21 elements over three ranks are chunks of 8, or one of 24 on every rank; the rest is padding."""
    bucket, chunk = Bucket(tensors, axis), 8 if axis else 24
    whole = [RankClass("c0", {"tp": (0, 2), "dp": (0, 3)}, NOTHING)]
    classes = split_classes(whole, MESH, {"params.flat": bucket})
    assert [c.box["dp"] for c in classes] == ([(0, 1), (1, 2), (2, 3)] if axis else [(0, 3)])
    types = [TensorType("f32", (chunk,))] * len(classes)
    found = list(relations("params.flat", bucket, SHAPES, MESH, classes, types))
    assert [(r.spec, r.plan) for r in found] == [(t, "params.flat") for t in tensors]
    numbered, elements = 0, {}
    for tensor in tensors:
        size = math.prod(SHAPES[tensor])
        elements[tensor] = np.arange(numbered, numbered + size).reshape(SHAPES[tensor])
        numbered += size
    for rank, cls in enumerate(classes):
        held = np.full(chunk, -1)
        for relation in found:
            for piece in (p for p in relation.pieces if p.cls == cls.name):
                for digits in itertools.product(*map(range, piece.sizes)):
                    at = {f"z{d}": digit for d, digit in enumerate(digits)}
                    (place,) = [f.evaluate(at) for f in piece.plan]
                    held[place] = elements[relation.spec][tuple(f.evaluate(at) for f in piece.spec)]
        first = rank * chunk
        assert held.tolist() == [n if n < numbered else -1 for n in range(first, first + chunk)]


def test_chunks_that_do_not_hold_their_tensors_are_refused() -> None:
    classes = [RankClass(f"c{i}", {"tp": (0, 2), "dp": (i, i + 1)}, NOTHING) for i in range(3)]
    for shapes in ([(6,)] * 3, [(8,), (8,), (7,)], [(2, 4)] * 3):
        types = [TensorType("f32", shape) for shape in shapes]
        with pytest.raises(LayoutError, match=r"3 chunks of shape .* for 21 elements"):
            list(relations("params.flat", Bucket(tuple(SHAPES), "dp"), SHAPES, MESH, classes, types))


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
