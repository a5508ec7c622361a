"""A folded plan is compared with the plan that was captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from certificates.plan.program import Op, Program
from orchestrator.capture.fold import RUNS, fold_plan
from orchestrator.capture.unfold import same

from .test_fold import COUNT, in_two_precisions, loop


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
