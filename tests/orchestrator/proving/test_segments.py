"""The order in which ops of all classes are related."""

from __future__ import annotations

import pytest

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from orchestrator.proving.segments import segments
from tests.pipeline_plans import pipeline

from ..random_plans import random_plan


@pytest.mark.parametrize("seed", range(6))
def test_segments_hold_every_op_once_and_only_what_is_ready(seed: int) -> None:
    plan = random_plan(seed, 14)
    seen: list[str] = []
    for segment in segments(plan):
        for ref in segment:
            owner, name = ref.split(":")
            program = plan.by_class[owner].program
            op = next(o for o in program.ops if o.out == name)
            earlier = {f"{owner}:{o.out}" for o in program.ops if o.name in COLLECTIVES}
            needed = {f"{owner}:{v}" for v in op.ins if v not in program.inputs}
            assert needed <= set(seen) | earlier
            seen.append(ref)
    expected = [f"{c.name}:{o.out}" for c in plan.classes for o in c.program.ops if o.name not in COLLECTIVES]
    assert sorted(seen) == sorted(expected)


def test_classes_wait_for_one_another_at_a_collective(uneven: Plan) -> None:
    """The last class is related up to the gather before anything after it is."""
    parts = list(segments(uneven))
    assert [sorted({r.split(":")[0] for r in part}) for part in parts] == [["full", "last"]] * 2


def test_a_stage_waits_for_what_it_receives() -> None:
    """Forward through all stages, then backward: nothing is related before what its sender sent."""
    plan = pipeline(3, 2, 4)
    seen: list[str] = []
    for segment in segments(plan):
        for ref in segment:
            owner, name = ref.split(":")
            op = next(o for o in plan.by_class[owner].program.ops if o.out == name)
            if op.name == "recv":
                sent = plan.meets(op)
                assert any(f"{c}:{o.out}" in seen for c, o in sent.items())
            seen.append(ref)
    ops = [f"{c.name}:{o.out}" for c in plan.classes for o in c.program.ops if o.name not in COLLECTIVES]
    assert sorted(seen) == sorted(ops)
