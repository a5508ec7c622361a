"""Whole numbers that a step makes of numbers alone: what is written out, and what stays refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.capture.recorder import Node, Recorder, TensorRef, recording
from orchestrator.capture.whole_numbers import with_whole_numbers

Make = Callable[[torch.Tensor], torch.Tensor]


def recorded(make: Make) -> tuple[list[Node], list[Node]]:
    """The ops of ``make``, which is given an input, as they were recorded and as they are lowered."""
    recorder = Recorder()
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = torch.empty(6)
        with recording(recorder):
            make(given)
    return recorder.nodes, with_whole_numbers(recorder.nodes)


def written(make: Make) -> object:
    """The elements that stand for the result of the last op; ``None`` if it stays as it was."""
    before, after = recorded(make)
    if before[-1] == after[-1]:
        return None
    (*_, ref) = after[-1].args
    assert isinstance(ref, TensorRef)
    assert after[-1].outs == before[-1].outs
    return ref.literal


def distances(length: int = 5) -> torch.Tensor:
    place = torch.arange(length)
    return place[None, :] - place[:, None]


def buckets(apart: torch.Tensor, count: int = 8, far: int = 16) -> torch.Tensor:
    """As T5 has them: the logarithm of 0 is chosen nowhere."""
    found = torch.zeros_like(apart)
    found += (apart > 0).to(torch.long) * (count // 2)
    near, apart = count // 4, torch.abs(apart)
    scaled = torch.log(apart.float() / near) / math.log(far / near) * near
    large = near + scaled.to(torch.long)
    large = torch.min(large, torch.full_like(large, count // 2 - 1))
    found += torch.where(apart < near, apart, large)
    return found


def overwritten(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(6).float()
    table[1:3] = 7.5
    return table.add_(0.25).floor()


def test_the_buckets_of_distances_are_those_of_pytorch() -> None:
    assert written(lambda x: buckets(distances())) == tuple(buckets(distances()).flatten().tolist())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: torch.arange(1, 9).float().log2().ceil().long(), (0, 1, 2, 2, 3, 3, 3, 3)),
        (overwritten, (0.0, 7.0, 7.0, 3.0, 4.0, 5.0)),
        (lambda x: (torch.zeros_like(x) + 2.6).floor(), 2.0),
        (lambda x: torch.div(torch.arange(4) * 1.5, 2, rounding_mode="trunc"), (0.0, 0.0, 1.0, 2.0)),
        (lambda x: torch.tensor([0.5, 2.5, 3.5]).to(torch.int32), (0, 2, 3)),
        (lambda x: torch.arange(5).view(1, 5).t().float().div(2).round()[1:] > 1, (False, False, True, True)),
    ],
)
def test_what_is_made_of_numbers_is_written_out(make: Make, expected: object) -> None:
    assert written(make) == expected


ATEN = torch.ops.aten
HALVES = (-1.5, -0.5, 0.0, 2.5)


@pytest.mark.parametrize(
    "op",
    [
        ATEN.floor.default,
        ATEN.ceil.default,
        ATEN.trunc.default,
        ATEN.round.default,
        lambda x: ATEN.div.Tensor_mode(x, x.abs() + 1, rounding_mode="floor"),
        lambda x: ATEN.div.Scalar_mode(x, 0.5, rounding_mode="floor"),
        lambda x: ATEN.floor_divide.default(x, torch.full((4,), 0.5)),
        lambda x: ATEN.remainder.Scalar(x, 0.5),
        lambda x: ATEN.remainder.Tensor(x, torch.full((4,), 0.5)),
        lambda x: ATEN.fmod.Scalar(x, 0.5),
        lambda x: ATEN.fmod.Tensor(x, torch.full((4,), 0.5)),
        lambda x: ATEN._to_copy.default(x, dtype=torch.int16),
        lambda x: torch.ops.prims.convert_element_type.default(x, torch.int8),
    ],
)
def test_every_op_that_rounds_is_computed_as_pytorch_does(op: Make) -> None:
    expected = op(torch.tensor(HALVES)).tolist()
    found = written(lambda x: op(torch.arange(4).mul(0) + torch.tensor(HALVES)))
    assert found == (tuple(expected) if len(set(expected)) > 1 else expected[0])


def late(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(6).float()
    table.copy_(x)
    return table.floor()


def part_of_empty(x: torch.Tensor) -> torch.Tensor:
    table = torch.empty(6)
    table[:3] = 1.5
    return table.floor()


def resized(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(6).float()
    table.untyped_storage().resize_(0)
    table.untyped_storage().resize_(24)
    return table.floor()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.floor(),
        lambda x: (torch.arange(6) + x).long(),
        late,
        part_of_empty,
        resized,
        lambda x: torch.rand(6).mul(9).floor(),
        lambda x: torch.arange(4).bernoulli(0.5).float().floor(),
        lambda x: torch.arange(2000).div(2).floor(),  # too many elements
        lambda x: torch.arange(4).div(3).round(decimals=1),  # not whole
        lambda x: torch.arange(4).float().log().long(),  # what a processor makes of -inf
        lambda x: torch.arange(4).float().log().floor(),  # -inf itself
        lambda x: torch.arange(4).mul(1e30).floor(),  # larger than a float says exactly
        lambda x: torch.arange(6) + 1,  # nothing is rounded: it is what it is
    ],
)
def test_what_is_not_stays_as_it_was(make: Make) -> None:
    before, after = recorded(make)
    assert before == after


def test_what_is_made_later_of_the_input_is_not_taken_for_the_numbers_before() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(6).float()
        first = table.floor()
        table.add_(x)
        table.floor()
        return first

    before, after = recorded(both)
    changed = [n.op for n, m in zip(before, after, strict=True) if n != m]
    assert changed == ["aten.floor.default"]
    assert [n.op for n in after].count("aten.floor.default") == 1
