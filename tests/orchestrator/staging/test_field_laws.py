"""Instances of the law ``field``, written out from definitions and facts."""

from __future__ import annotations

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.proof.stages import AlgebraStage, ElemDef, Law
from orchestrator.proving.engine import Engine
from orchestrator.solving.cores import Cores

from ..plans import pair, unproved


def gate(b: ProgramBuilder, rows: int, *, out: bool) -> Value:
    x = b.input("x", f"f32[{rows}]")
    return x / (1 + b.exponential(-x)) if out else x * b.logistic(x)


def written_out() -> Engine:
    plan = pair(
        {"tp": 2},
        lambda b: b.output("y", gate(b, 6, out=False)),
        lambda b: b.output("y", gate(b, 3, out=True)),
        {"x": {"tp": Shard(0)}},
        {"y": {"tp": Shard(0)}},
    )
    engine = Engine(plan, Cores())
    engine.relate()
    return engine


def test_one_instance_shows_the_goal_without_any_ring_law() -> None:
    engine = written_out()
    ((number,),) = engine.claims()
    engine.prove(number)
    stages = [s for s in engine.proved.built.values() if isinstance(s, AlgebraStage)]
    laws = [p for s in stages for c in s.cases for p in c.premises if isinstance(p, Law)]
    assert [law.schema for law in laws] == ["field"]
    opened = [p.e.ref for s in stages for c in s.cases for p in c.premises if isinstance(p, ElemDef)]
    assert {"c0:%4", "s:%1"} <= set(opened)


@pytest.mark.parametrize("masked", [False, True])
def test_no_element_may_be_infinite(masked: bool) -> None:
    """A masked score's exponential may be zero: it has no reciprocal that cancels."""

    def write(b: ProgramBuilder, rows: int, twice: bool) -> None:
        x, p = b.input("x", f"f32[{rows}]"), b.input("p", f"i1[{rows}]")
        hidden = b.select(p, x, b.constant("-inf" if masked else -9, x.type))
        e = b.exponential(hidden)
        b.output("e", e)
        b.output("y", e / e * x if twice else x * 1)

    rows = {"tp": Shard(0)}
    plan = pair(
        {"tp": 2}, lambda b: write(b, 6, False), lambda b: write(b, 3, True), {"x": rows, "p": rows},
        {"e": rows, "y": rows},
    )  # fmt: skip
    assert bool(unproved(plan)) is masked
