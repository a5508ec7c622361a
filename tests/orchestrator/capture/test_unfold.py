"""A folded plan is compared with the plan that was captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.program import Op, Program
from orchestrator.capture.fold import RUNS, fold_plan
from orchestrator.capture.unfold import same

from .test_fold import COUNT, in_two_precisions, loop, stacked


def changed(change: Callable[[list[Op]], None]) -> bool:
    """Is the folded loop, changed, still what was captured?"""
    plan = loop()
    found, places, _ = fold_plan(plan, COUNT)
    cls = found.classes[0]
    ops = list(cls.program.ops)
    change(ops)
    program = Program(cls.program.inputs, tuple(ops), cls.program.outputs)
    return same(plan, replace(found, classes=(replace(cls, program=program),)), places)


def nothing(ops: list[Op]) -> None: ...


def other_op(ops: list[Op]) -> None:
    at = next(i for i, op in enumerate(ops) if op.name == "subtract")
    ops[at] = replace(ops[at], name="add")


def no_sum_over_time(ops: list[Op]) -> None:
    at = next(i for i, op in enumerate(ops) if op.attrs.get("group") == RUNS)
    ops[at] = replace(ops[at], name="multiply", ins=(ops[at].ins[0], ops[at].ins[0]), attrs={})


def other_sum_over_ranks(ops: list[Op]) -> None:
    at = next(i for i, op in enumerate(ops) if op.attrs.get("group") == "dp")
    ops[at] = replace(ops[at], attrs={**ops[at].attrs, "kind": "max"})


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (nothing, True),
        (other_op, False),
        (no_sum_over_time, False),
        (other_sum_over_ranks, False),
    ],
)
def test_every_change_is_seen(change: Callable[[list[Op]], None], verdict: bool) -> None:
    assert changed(change) is verdict


@pytest.mark.parametrize(("name", "verdict"), [("convert", True), ("negate", False)])
def test_a_sum_may_be_before_a_conversion_or_after_it_and_nothing_else(name: str, verdict: bool) -> None:
    plan = in_two_precisions()
    found, places, _ = fold_plan(plan, COUNT)
    cls = found.classes[0]
    ops = [
        replace(op, name=name) if op.name == "convert" and op.type.dtype == "f32" else op
        for op in cls.program.ops
    ]
    program = Program(cls.program.inputs, tuple(ops), cls.program.outputs)
    assert same(plan, replace(found, classes=(replace(cls, program=program),)), places) is verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda b, x: x.sum(0) / 1, True),
        (lambda b, x: (x * 2).sum(0) / 1, False),
        (lambda b, x: b.reduce(x, (0,), "max") / 1, False),
        (lambda b, x: x[0:1].sum(0) / 1, False),
    ],
)
def test_a_stack_is_a_sum_only_where_it_is_added_up(change: Callable[..., Value], verdict: bool) -> None:
    """What is folded is the sum of a stack in another order; what was captured may be something else."""
    found, places, _ = fold_plan(stacked(lambda b, x: x.sum(0) / 1), COUNT)
    assert same(stacked(change, (0, 2, 1)), found, places) is verdict


def test_a_stack_that_is_added_up_along_another_dimension_is_no_sum() -> None:
    def columns(b: ProgramBuilder, x: Value) -> Value:
        return b.reduce(x.reshape(1, COUNT), (0,), "add").sum(0) / 1

    plan = stacked(columns, (0, 1, 2))
    found, places, _ = fold_plan(plan, COUNT)
    assert same(plan, found, places)
    assert not same(stacked(columns, (2, 1, 0)), found, places)
