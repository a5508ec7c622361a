"""Ranges of integer buffers that `build` makes of numbers: what is computed, and what is not guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator.capture.definition import Batch, Definition
from orchestrator.capture.errors import CaptureError
from orchestrator.capture.known import Known

Function = Callable[[], Any]


def ranges(
    make: Function, later: Callable[[nn.Module], Any] = lambda _model: None
) -> dict[str, tuple[int, int]]:
    """What is known of the buffer ``b`` that ``make`` gives, after ``later`` has run, too."""
    known = Known()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with known:
            model = nn.Module()
            model.register_buffer("b", make())
        known.built(model)
        with known:
            later(model)
    return known.ranges(model)


def swin() -> torch.Tensor:
    row, column = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
    return (row - column + 2).flatten()


def filled() -> torch.Tensor:
    made = torch.zeros(6, dtype=torch.long)
    made[1:3] = 7
    made.view(2, 3)[1] -= 2
    return made


def buckets() -> torch.Tensor:
    return torch.arange(1, 9).float().log2().ceil().long()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.tensor([3, 0, 2]), (0, 4)),
        (lambda: torch.arange(10).view(2, 5)[:, 1:] * 3 - 1, (2, 27)),
        (swin, (0, 5)),
        (filled, (-2, 8)),
        (buckets, (0, 4)),
    ],
)
def test_what_is_made_of_numbers_alone_has_a_range(make: Function, expected: tuple[int, int]) -> None:
    assert ranges(make) == {"buffers.b": expected}
    values = make()
    assert (int(values.min()), int(values.max()) + 1) == expected


def through_data() -> torch.Tensor:
    made = torch.arange(4)
    made.data.add_(torch.randint(0, 5, (4,)))
    return made


def through_a_view() -> torch.Tensor:
    made = torch.arange(4)
    made[1:].copy_(torch.randint(0, 9, (3,)))
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randint(0, 5, (3,)),
        lambda: torch.randperm(4),
        lambda: torch.empty(3, dtype=torch.long),
        lambda: nn.Embedding(3, 4).weight.argmax(0),
        lambda: torch.arange(1 << 23),
        lambda: torch.arange(0),
        lambda: torch.arange(4.0),
        through_data,
        through_a_view,
    ],
)
def test_what_is_random_undefined_or_written_unseen_has_none(make: Function) -> None:
    assert ranges(make) == {}


@pytest.mark.parametrize(
    "later",
    [
        lambda m: m.b.add_(1),
        lambda m: m.b.data.__setitem__(0, 9),
        lambda m: m.b[1:].fill_(9),
        lambda m: m.register_buffer("b", torch.arange(9)),
        lambda m: setattr(m.b, "data", torch.arange(9)),
    ],
)
def test_what_is_changed_after_the_model_was_built_has_none(later: Callable[[nn.Module], Any]) -> None:
    assert ranges(lambda: torch.arange(3)) == {"buffers.b": (0, 3)}
    assert ranges(lambda: torch.arange(3), later) == {}


class Biased(nn.Module):
    """A table that is read at the rows that a buffer names, as relative positions are."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3))
        self.register_buffer("rows", torch.arange(first, 3).repeat(3)[:3].flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.table[self.rows] * x).sum()


def definition(**given: Any) -> Definition:
    def step(model: nn.Module, _optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return {"loss": model(batch["x"])}

    kept: dict[str, Any] = {
        "build": Biased,
        "step": step,
        "batch": {"x": Batch((4, 3), shard={"dp": 0})},
    } | given
    return Definition(
        name="biased",
        mesh={"dp": 2},
        parallelize=lambda model, _mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        mean_over={"loss": ("dp",)},
        **kept,
    )


def test_the_range_is_declared_in_the_plan_and_negative_rows_are_not_looked_for() -> None:
    from orchestrator.capture.assemble import capture

    plan = capture(definition(), jobs=1)
    assert plan.ranges == {"buffers.rows": (0, 3)}
    assert "select" not in {
        op.name for program in (plan.specification, plan.classes[0].program) for op in program.ops
    }


def test_a_buffer_that_the_first_step_fills_has_no_range() -> None:
    """A counter, or a table that is made lazily: what `build` gave it does not last."""
    from orchestrator.capture.assemble import capture

    def step(model: Any, _optimizer: Any, batch: Any) -> dict[str, torch.Tensor]:
        if not hasattr(model, "ready"):
            model.ready = True
            model.rows.data.sub_(1)
        with torch.no_grad():
            return {"loss": model(batch["x"])}

    plan = capture(definition(step=step), jobs=1)
    assert plan.ranges == {} and "select" in {op.name for op in plan.specification.ops}


def test_ranks_that_build_other_rows_are_refused() -> None:
    import os

    from orchestrator.capture.assemble import capture

    def build() -> nn.Module:
        return Biased(int("RANK" in os.environ))

    with pytest.raises(CaptureError, match="build makes integers in"):
        capture(definition(build=build), jobs=1)


def test_buffers_that_are_made_of_zeros_are_told() -> None:
    """Of any dtype, but not where a number, a chance or uninitialised memory has a part in it."""
    made: dict[str, Function] = {
        "zeros": lambda: torch.zeros(3), "counts": lambda: torch.zeros(2, dtype=torch.int64),
        "truth": lambda: torch.zeros(2, dtype=torch.bool), "none": lambda: torch.tensor(0.0),
        "difference": lambda: torch.arange(3.0) - torch.arange(3), "one": lambda: torch.tensor([0.0, 1.0]),
        "random": lambda: torch.rand(3) * 0, "memory": lambda: torch.empty(3),
        "nan": lambda: torch.full((2,), float("nan")),
    }  # fmt: skip
    known = Known()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with known:
            model = nn.Module()
            for name, make in made.items():
                model.register_buffer(name, make())
        known.built(model)
    assert known.zeros == {f"buffers.{n}" for n in ("zeros", "counts", "truth", "none", "difference")}
