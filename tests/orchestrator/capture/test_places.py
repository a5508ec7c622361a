"""Where index tensors point."""

from __future__ import annotations

import pytest
import torch

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.lowering.places import counted_axis, distinct_axis, places
from orchestrator.capture.lowering.table import Context

x = torch.randn(3, 4, 2, dtype=torch.float64)
rows, columns = torch.tensor([2, 0, -1]), torch.tensor([[1], [-2], [3]])


@pytest.fixture
def context() -> Context:
    return Context(Builder(), lambda _group: ())


def test_a_range_is_found_behind_broadcasts_and_reshapes(context) -> None:
    b = context.b
    count = b.iota(0, (3,))
    assert counted_axis(context, b.expand(b.reshape(count, (3, 1)), (3, 5))) == 0
    assert counted_axis(context, b.expand(count, (5, 3))) == 1
    assert counted_axis(context, b.transpose(b.expand(count, (5, 3)), (1, 0))) == 0
    assert counted_axis(context, b.convert(count, "i32")) == 0
    assert counted_axis(context, b.binary("add", count, b.like(1, count))) is None
    assert counted_axis(context, b.reshape(b.iota(0, (6,)), (2, 3))) is None


def test_an_axis_of_different_elements_is_found_behind_moves_and_slices(context) -> None:
    b, index = context.b, context.b.input("i", TensorType("i64", (3, 4)))
    assert distinct_axis(context, index) is None
    context.distinct[index.name] = 1
    assert distinct_axis(context, index) == 1
    assert distinct_axis(context, b.transpose(index, (1, 0))) == 0
    assert distinct_axis(context, b.slice(index, (0, 1), (3, 2))) == 1
    assert distinct_axis(context, b.insert(b.convert(index, "i32"), 0, 5)) == 2
    assert distinct_axis(context, b.reshape(index, (3, 1, 4))) == 2
    assert distinct_axis(context, b.reshape(index, (12,))) is None
    assert distinct_axis(context, b.binary("add", index, index)) is None
    assert distinct_axis(context, b.concatenate([index, index], 1)) is None
    assert distinct_axis(context, b.iota(0, (3, 4))) == 0


def test_places_differ_if_one_axis_does_beside_those_that_are_counted(context) -> None:
    b, index = context.b, context.b.input("i", TensorType("i64", (3, 4)))
    other = b.input("j", TensorType("i64", (3, 4)))
    context.distinct |= {index.name: 1, other.name: 0}
    assert places(context, (3, 9), [b.reshape(b.iota(0, (3,)), (3, 1)), index]).distinct
    assert not places(context, (3, 9), [b.reshape(b.iota(0, (3,)), (3, 1)), other]).distinct
    assert not places(context, (9, 9), [other, index]).distinct


def test_a_dimension_that_is_counted_through_is_a_batch_dimension(context) -> None:
    """So the look-up stays local where that dimension is cut over ranks."""
    b = context.b
    index = b.input("i", TensorType("i64", (3, 5)))
    at = places(context, (3, 4, 2), [b.reshape(b.iota(0, (3,)), (3, 1)), index])
    assert (at.counted, at.looked_up, at.size, at.result) == (1, 1, 4, (3, 5, 2))
    part = places(context, (4, 4, 2), [b.reshape(b.iota(0, (3,)), (3, 1)), index])
    assert (part.counted, part.looked_up, part.size) == (0, 2, 16)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, i, j: a[i, j],
        lambda a, i, j: a[i[:, None], :, i[:2] % 1 if False else i[:2].clamp(-1, 1)],
        lambda a, i, j: a[:, j, 0],
        lambda a, i, j: a[torch.arange(3)[:, None], j],
        lambda a, i, j: a[torch.arange(3), i],
        lambda a, i, j: a[i, :, i.clamp(-1, 1)],
    ],
)
def test_look_ups(agrees, function) -> None:
    agrees(function, x, rows, columns)


def test_values_that_may_meet_are_refused(lowered) -> None:
    with pytest.raises(LoweringError, match="two may be equal"):
        lowered(lambda a, i: a.index_put((i, i), a[:, 0]), x, rows)


def test_values_at_a_range_cannot_meet(agrees) -> None:
    agrees(lambda a, i: a.index_put((torch.arange(2), i[:2]), a[:2, 0]), x, rows)
    agrees(lambda a, i: a.index_put((i, torch.arange(3)), a[:, 0]), x, rows)


def test_a_mask_is_no_place(lowered) -> None:
    with pytest.raises(LoweringError, match="a mask among several indices"):
        lowered(lambda a, i: a.index_put((a[:, 0, 0] > 0, i), torch.ones(())), x, rows)
