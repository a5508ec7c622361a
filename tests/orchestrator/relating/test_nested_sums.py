"""Sums over ranks of sums over ranks, in the order of any framework."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Partial, Placement, Shard
from certificates.plan.plan import Plan
from certificates.proof.facts import Reduced
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

from ..oracle import Numbers
from ..plans import pair, unproved

MESH = {"dp": 2, "tp": 2}


def total(way: Callable[[ProgramBuilder, Value], Value], output: dict[str, Placement] | None = None) -> Plan:
    """The column sums of a matrix whose rows are cut over both axes."""
    return pair(
        MESH, lambda s: s.output("y", s.input("x", "f32[12,4]").sum(0)),
        lambda b: b.output("y", way(b, b.input("x", "f32[6,2]").sum(0))),
        {"x": {"dp": Shard(0), "tp": Shard(1)}}, {"y": output or {}},
    )  # fmt: skip


def norm(way: Callable[[ProgramBuilder, Value], Value]) -> Plan:
    """A sum of squares over everything: each rank's share, summed over both axes."""
    return pair(
        MESH, lambda s: s.output("y", _square(s.input("x", "f32[12,4]"))),
        lambda b: b.output("y", way(b, _square(b.input("x", "f32[6,2]")))),
        {"x": {"dp": Shard(0), "tp": Shard(1)}}, {"y": {}},
    )  # fmt: skip


def _square(x: Value) -> Value:
    return (x * x).sum()


@pytest.mark.parametrize("order", [("dp", "tp"), ("tp", "dp")])
def test_one_axis_after_the_other_in_either_order(order: tuple[str, str]) -> None:
    plan = norm(lambda b, v: b.all_reduce(b.all_reduce(v, order[0]), order[1]))
    assert unproved(plan) == []


def test_a_scattered_sum_that_is_summed_again() -> None:
    plan = total(lambda b, v: b.all_gather(b.all_reduce(v, "dp"), "tp"))
    assert unproved(plan) == []
    scattered = total(lambda b, v: b.all_gather(b.all_gather(b.reduce_scatter(v, "dp"), "dp"), "tp"))
    assert unproved(scattered) == []


@pytest.mark.parametrize("axes", [("dp", "dp"), ("tp", "tp"), ("dp",), ("tp",), ("dp", "tp", "dp")])
def test_an_axis_that_is_missing_or_twice_is_not_proved(axes: tuple[str, ...]) -> None:
    """The gradient norm that forgets, or counts twice, one axis of the mesh."""

    def way(b: ProgramBuilder, v: Value) -> Value:
        for axis in axes:
            v = b.all_reduce(v, axis)
        return v

    assert unproved(norm(way))


def test_facts_about_nested_sums_hold() -> None:
    plan = norm(lambda b, v: b.all_reduce(b.all_reduce(v, "tp"), "dp"))
    engine, numbers = Engine(plan, Cores()), Numbers(plan)
    engine.relate()
    nested = [f for f in engine.knowledge.facts if isinstance(f.lhs, Reduced)]
    assert {f.lhs.axes for f in nested if isinstance(f.lhs, Reduced)} >= {("dp", "tp")}
    assert [text for f in nested if (text := numbers.failure(f))] == []


def test_a_sum_that_stays_open_over_one_axis() -> None:
    plan = pair(
        MESH, lambda s: s.output("y", _square(s.input("x", "f32[12,4]"))),
        lambda b: b.output("y", b.all_reduce(_square(b.input("x", "f32[6,2]")), "tp")),
        {"x": {"dp": Shard(0), "tp": Shard(1)}}, {"y": {"dp": Partial()}},
    )  # fmt: skip
    assert unproved(plan) == []
