"""Backward passes in two parts: what a stage sends on is a function, and so is what it leaves for later."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.plan.calls import calls
from certificates.plan.functions import inline
from certificates.plan.plan import Plan
from certificates.plan.schedule import Run
from orchestrator.emit import provable
from orchestrator.outlining import preludes, repeats
from orchestrator.outlining.flow import Flow
from orchestrator.outlining.layers import layers
from orchestrator.outlining.outline import expressions, outline
from orchestrator.outlining.splits import chain
from tests.schedule_plans import judged
from tests.sharded_pipeline import OWN, STAGES, sharded


@pytest.fixture(autouse=True)
def short_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of few ops are worth a function here."""
    monkeypatch.setattr(repeats, "LEAST_PERIOD", 4)
    monkeypatch.setattr(preludes, "LEAST_OPS", 1)


def weight_gradients(plan: Plan) -> list[str]:
    """Functions that do nothing with ranks, and multiply matrices once in the specification."""
    return [
        f
        for f, made in plan.functions.items()
        if [op.name for op in made.specification.ops].count("dot_general") == 1
        and not any(op.name == "tanh" for op in made.specification.ops)
    ]


@pytest.mark.parametrize("late", [(1,), (0, 1)], ids=["one rank", "both ranks"])
def test_what_a_stage_leaves_for_later_is_a_function_of_every_layer(late: Container[int]) -> None:
    """Also of the stage that does all at once, and of the specification."""
    flat = sharded(late=late)
    made = outline(flat)
    (function,) = weight_gradients(made)
    found = [{c.instance for c in calls(cls.program) if c.function == function} for cls in made.classes]
    assert found == [set(range(OWN)), set(range(OWN, STAGES))]
    assert {c.instance for c in calls(made.specification) if c.function == function} == set(range(STAGES))
    known: dict[object, int] = {}
    assert expressions(inline(made), known) == expressions(replace(flat, schedule=None), known)


def test_where_no_stage_leaves_anything_the_backward_pass_is_one_function() -> None:
    assert weight_gradients(outline(sharded())) == []


def test_gradients_of_weights_stay_behind_the_message_in_the_schedule() -> None:
    """Done with the rest, they would be told to read activations earlier than they do."""
    made = outline(sharded(late=(1,)))
    safe = judged(made)
    assert safe is not None and safe.safe
    assert made.schedule is not None
    last = next(lane for lane in made.schedule.lanes if lane.box["pp"] == (1, 2))
    kinds = [type(e).__name__ for e in last.events]
    sent = [i for i, e in enumerate(last.events) if any(x.end == "send" for x in getattr(e, "items", ()))]
    (function,) = weight_gradients(made)
    program = made.by_class["c1"].program
    at = [i for i, op in enumerate(program.ops) if dict(op.attrs).get("function") == function]
    segments = {
        name
        for name, spans in made.schedule.segments["c1"].items()
        if any(lo <= i < hi for lo, hi in spans for i in at)
    }
    runs = [i for i, e in enumerate(last.events) if isinstance(e, Run) and e.segment in segments]
    assert sent and runs and min(runs) > max(sent), kinds


@pytest.mark.parametrize(("scale", "proved"), [(Fraction(1), True), (Fraction(2), False)])
def test_such_a_plan_is_proved_and_a_wrong_one_is_not(scale: Fraction, proved: bool) -> None:
    made = outline(sharded(scale, late=(1,)))
    assert weight_gradients(made)
    assert provable(made) is proved


def test_what_layers_hand_on_is_without_the_gradients_of_their_weights() -> None:
    forward, backward, *_ = layers(Flow(sharded().specification), False)
    members = next(iter(forward.instances.values())).members
    assert chain(forward) == set(range(len(members)))
    of = next(iter(backward.instances.values()))
    rest = [backward.flow.producer[m].name for p, m in enumerate(of.members) if p not in chain(backward)]
    assert rest.count("dot_general") == 1 and "tanh" not in rest
