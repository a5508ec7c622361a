"""Parts that a rank holds are elements of what the specification puts together from padded parts."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.proving.engine import Engine

from ..plans import CORES, pair, unproved

PARTS = 4


def gradient(b: ProgramBuilder, x: Value, w: Value, order: tuple[int, ...], overlap: bool = False) -> Value:
    """The gradient of stacked weights of which each part is used by itself: padded, then added."""
    count, total = w.shape[0], None
    for e in order:
        part = b.exponential(b.reshape(b.slice(w, [e, 0], [1, 3]), (3,)))
        row = b.reshape((x * b.broadcast(part, x.shape, (1,))).sum(0), (1, 3))
        padded = b.pad(row, [e, 0], [count - 1 - e, 0])
        if overlap:
            padded = padded + b.pad(row, [0, 0], [count - 1, 0])
        total = padded if total is None else total + padded
    assert total is not None
    return total


def experts(order: tuple[int, ...], *, overlap: bool = False, factor: int = 1) -> Plan:
    """Four parts, of which each of two ranks has two; an update that is no sum: an absolute value."""

    def write(b: ProgramBuilder, count: int, order: tuple[int, ...], factor: int) -> None:
        rows = 4 if count == PARTS else 2
        x, w = b.input("x", f"f32[{rows},3]"), b.input("w", f"f32[{count},3]")
        found = gradient(b, x, w, order, overlap)
        if count < PARTS:
            found = b.all_reduce(found, "dp") * b.constant(factor, found.type)
        b.output("y", w + b.abs(found))

    return pair(
        {"dp": 2, "ep": 2},
        lambda b: write(b, PARTS, (3, 2, 1, 0), 1),
        lambda b: write(b, PARTS // 2, order, factor),
        {"x": {"dp": Shard(0)}, "w": {"ep": Shard(0)}},
        {"y": {"ep": Shard(0)}},
    )


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_ranks_parts_are_those_of_the_whole(order: tuple[int, ...]) -> None:
    assert unproved(experts(order)) == []


def test_parts_of_another_size_or_order_are_not() -> None:
    assert unproved(experts((1, 0), factor=2))
    assert unproved(experts((0, 0)))


def test_parts_that_meet_are_no_patchwork() -> None:
    engine = Engine(experts((1, 0), overlap=True), CORES)
    engine.relate()
    patchworks = engine.relations.patchworks
    assert any(patchworks._all()) and not patchworks._of(max(patchworks._all()))


def test_what_a_tensor_was_known_as_proves_what_it_is_said_to_be() -> None:
    engine = Engine(experts((1, 0)), CORES)
    engine.relate()
    known = engine.knowledge
    (ref,) = (r for r in known.restated if str(r).startswith("c0:"))
    (number,) = known.by_lhs[ref]
    assert str(known.facts[number].rhs) in engine.relations.patchworks._all()
    engine.prove(number)
