"""What a layer does once around its runs is a function: weights gathered, gradients reduced, with norms."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.plan.calls import calls
from certificates.plan.checking import check_plan
from certificates.plan.functions import inline
from certificates.plan.plan import Plan
from orchestrator.emit import provable
from orchestrator.outlining import preludes, repeats
from orchestrator.outlining.outline import expressions, outline
from tests.schedule_plans import judged
from tests.sharded_pipeline import OWN, STAGES, sharded


@pytest.fixture(autouse=True)
def short_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of few ops are worth a function here."""
    monkeypatch.setattr(repeats, "LEAST_PERIOD", 4)
    monkeypatch.setattr(preludes, "LEAST_OPS", 3)


def doing(plan: Plan, *names: str) -> list[str]:
    """Functions whose bodies on ranks have all of these ops."""
    return [
        f
        for f, made in plan.functions.items()
        if all(set(names) <= {op.name for op in body.ops} for body in made.classes.values())
    ]


def test_gathers_and_reductions_of_a_layer_are_calls_of_its_stage() -> None:
    flat = sharded()
    made = outline(flat)
    check_plan(made)
    (gathers,), (reduces,) = doing(made, "all_gather"), doing(made, "reduce_scatter", "multiply", "reduce")
    for function in (gathers, reduces):
        found = [{c.instance for c in calls(cls.program) if c.function == function} for cls in made.classes]
        assert found == [set(range(OWN)), set(range(OWN, STAGES))]
    assert not any(
        op.name in ("all_gather", "reduce_scatter") for cls in made.classes for op in cls.program.ops
    )
    known: dict[object, int] = {}
    assert expressions(inline(made), known) == expressions(replace(flat, schedule=None), known)


def test_what_the_specification_does_not_do_hands_back_an_operand() -> None:
    made = outline(sharded())
    (gathers,) = doing(made, "all_gather")
    body = made.functions[gathers].specification
    assert body.ops == () and list(body.outputs.values()) == list(body.inputs)
    called = next(c for c in calls(made.specification) if c.function == gathers)
    assert called.ins == (f"params.{called.instance}.w",) and called.results[0] not in called.ins


def test_the_schedule_of_a_plan_with_preludes_and_sequels_stays_safe() -> None:
    made = outline(sharded())
    safe = judged(made)
    assert safe is not None and safe.safe
    assert made.schedule is not None
    meets = {i.seq for lane in made.schedule.lanes for e in lane.events for i in getattr(e, "items", ())}
    assert not meets & {2000 + s for s in range(STAGES)} and not meets & {3000 + s for s in range(STAGES)}


def test_where_such_plans_are_not_accepted_layers_are_functions_still() -> None:
    def plain(plan: Plan) -> bool:
        return not doing(plan, "all_gather")

    made = outline(sharded(), plain)
    assert made.functions and not doing(made, "reduce_scatter")
    assert any(op.name == "all_gather" for op in made.classes[0].program.ops)
    assert made.schedule is not None


@pytest.mark.parametrize(("scale", "proved"), [(Fraction(1), True), (Fraction(2), False)])
def test_such_a_plan_is_proved_and_a_wrong_one_is_not(scale: Fraction, proved: bool) -> None:
    """The sum over microbatches that a call is given is a share of the sum over replicas that it makes."""
    made = outline(sharded(scale))
    assert doing(made, "all_gather") and doing(made, "reduce_scatter")
    assert provable(made) is proved


def test_a_bare_prelude_is_too_small_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preludes, "LEAST_OPS", 50)
    assert not doing(outline(sharded()), "all_gather")
