"""A view has the line of the statement that made it, wherever it is read first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder
from orchestrator.capture.geometry import Geometry
from orchestrator.capture.memory import Memory
from orchestrator.capture.recorder import TensorRef

x = torch.arange(24, dtype=torch.float64).reshape(4, 6)


def lines(program: Any, function: Callable[..., Any]) -> list[tuple[str, int]]:
    """Ops with the lines of ``function`` that they are of, counted from its first."""
    first = function.__code__.co_firstlineno
    return [(d.name, d.frame[1] - first) for d in program.drafts if d.name != "constant"]


def test_a_slice_is_of_the_line_that_cut_it(lowered) -> None:
    def step(a: Tensor) -> Tensor:
        rows = a[1:3]
        twice = a.exp()
        return rows * twice[:2]

    made = lines(lowered(step, x), step)
    assert made == [("exponential", 2), ("slice", 1), ("slice", 3), ("multiply", 3)]


def test_each_kind_of_view_is_of_its_line(lowered) -> None:
    for view, op in (
        (lambda a: a.t(), "transpose"),
        (lambda a: a.reshape(8, 3), "reshape"),
        (lambda a: a.sum(0).expand(2, 6), "broadcast_in_dim"),
        (lambda a: a.select(1, 2), "slice"),
        (lambda a: a.chunk(2)[1], "slice"),
        (lambda a: a[:, ::2], "slice"),
        (lambda a: a.unsqueeze(1), "reshape"),
    ):

        def step(a: Tensor, view: Callable[[Tensor], Tensor] = view) -> Tensor:
            shown = view(a)
            a = a * 2
            return shown.exp()

        program = lowered(step, x)
        of_the_view = view.__code__.co_firstlineno
        assert {d.frame[1] for d in program.drafts if d.name == op} == {of_the_view}, op


def test_what_pytorch_turns_round_was_taken_where_the_user_took_it(lowered) -> None:
    """``F.linear`` transposes its weight: that view of a view is of the line that calls it, the slice not."""

    def step(a: Tensor, flat: Tensor) -> Tensor:
        weight = flat[12:36].view(4, 6)
        a = a.exp()
        return F.linear(a, weight)

    flat = torch.arange(36, dtype=torch.float64)
    made = lines(lowered(step, x, flat), step)
    assert {line for name, line in made if name in ("slice", "reshape")} == {1}
    assert made[-2:] == [("transpose", 3), ("dot_general", 3)]


def test_where_nothing_is_taken_out_the_last_view_counts(lowered) -> None:
    """One reshape is left of two."""

    def step(a: Tensor) -> Tensor:
        pairs = a.unflatten(1, (3, 2))
        return pairs.flatten(0, 1) * 2

    assert lines(lowered(step, x), step) == [("reshape", 2), ("multiply", 2)]


def test_a_view_that_is_made_again_is_the_first_that_was_read(lowered) -> None:
    """Equal ops are one; ``a[1:3].flatten()`` makes two views and shows one."""

    def step(a: Tensor) -> Tensor:
        first = a[1:3].exp()
        second = a[1:3]
        return second * first

    def another(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = a[1:3].flatten().exp()
        second = a[1:3]
        a = a * 2
        return a, first, second.exp()

    assert [line for op, line in lines(lowered(step, x), step) if op == "slice"] == [1]
    assert [line for op, line in lines(lowered(another, x), another) if op == "slice"] == [1, 2]


def test_a_view_stays_of_its_line_when_something_else_stands_there(lowered) -> None:
    def step(a: Tensor) -> tuple[Tensor, Tensor]:
        bucket = a.clone().view(-1)
        early = bucket[3:9]
        first = early * 2
        bucket.mul_(2)
        return first, early.exp()

    assert [line for op, line in lines(lowered(step, x), step) if op == "slice"] == [2, 2]


def test_what_is_written_through_a_view_is_of_the_line_that_writes(lowered) -> None:
    def step(a: Tensor) -> Tensor:
        out = a.clone()
        row = out[1]
        row.copy_(a[2].exp())
        return out * 2

    made = lines(lowered(step, x), step)
    assert ("reshape", 3) in made and ("exponential", 3) in made
    assert [line for name, line in made if name == "concatenate"] == [4], "no statement put them together"


def test_the_caller_is_the_one_of_the_view() -> None:
    b = Builder()
    memory = Memory(b, lambda type_, _allocated: b.input("missing", type_))
    whole, part = Geometry.contiguous((4, 2)), Geometry.contiguous((2, 2), 2)
    memory.write(7, "f32", whole, b.input("x", TensorType("f32", (4, 2))))
    maker, reader = (("kit.py", 3, "cut"), ("train.py", 10, "step")), (("train.py", 20, "step"), None)
    b.frame, b.caller = maker
    assert memory.lines.noted([TensorRef(7, "f32", part)], [TensorRef(7, "f32", whole)])
    b.frame, b.caller = reader
    draft = b.draft(memory.read(7, "f32", part))
    assert draft is not None and (draft.name, draft.frame, draft.caller) == ("slice", *maker)
    assert (b.frame, b.caller) == reader


def test_what_is_no_view_of_its_operands_is_not_taken_for_one() -> None:
    lines = Memory(Builder(), lambda type_, _allocated: Builder().input("missing", type_)).lines
    one, other = (TensorRef(storage, "f32", Geometry.contiguous((2,))) for storage in (0, 1))
    assert not lines.noted([], [one]) and not lines.noted([one, other], [one])
    assert lines.noted([one, one], [other, one])
