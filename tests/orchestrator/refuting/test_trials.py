"""Whether an edited plan is right is seen on several inputs, in all outputs, as long as there is time."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from certificates.plan.plan import Plan
from orchestrator.errors import OutOfTime
from orchestrator.evaluating.network import SPEED, Work
from orchestrator.refuting.edits import Edit
from orchestrator.refuting.scenarios import random_inputs
from orchestrator.refuting.trials import Trials

from .test_diagnose import unreduced


def trials(plan: Plan, seconds: float = math.inf) -> Trials:
    return Trials.of(plan, random_inputs(plan, random.Random(3)), Work(last=seconds * SPEED))


def renamed(plan: Plan, out: str, name: str) -> Plan:
    """Another op in the place of one."""
    op = next(o for o in plan.classes[0].program.ops if o.out == out)
    other = dataclasses.replace(op, name=name)
    return Edit("change", "", (("c0", out),), {"c0": {out: (other,)}}).apply(plan)


def number(plan: Plan, output: str) -> int:
    return [r.plan for r in plan.outputs].index(output)


def test_a_right_plan_has_no_wrong_outputs(mlp: Plan) -> None:
    found = trials(mlp)
    assert found.wrong() == [] and found.repairs(mlp, [])


def test_the_outputs_that_a_mistake_reaches_are_wrong_and_no_others(mlp: Plan) -> None:
    """The second weight's last subtraction is no other output's business."""
    plan = renamed(mlp, mlp.classes[0].program.outputs["params.w2"], "add")
    assert trials(plan).wrong() == [number(plan, "params.w2")]
    assert len(trials(unreduced(mlp)[0]).wrong()) == len(mlp.outputs)


def test_outputs_of_no_dimension_are_told_first(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    assert plan.outputs[trials(plan).wrong()[0]].plan == "loss"


def test_only_an_edit_after_which_all_is_right_repairs(mlp: Plan) -> None:
    """An edit that moves the mistake to another output does not."""
    first, second = (mlp.classes[0].program.outputs[n] for n in ("params.w1", "params.w2"))
    plan = renamed(mlp, second, "add")
    found = trials(plan)
    wrong = found.wrong()
    moved = renamed(renamed(plan, second, "subtract"), first, "add")
    assert found.repairs(renamed(plan, second, "subtract"), wrong)
    assert not found.repairs(moved, wrong) and not found.repairs(plan, wrong)


def test_what_cannot_be_evaluated_is_not_right(mlp: Plan) -> None:
    plan, partial = unreduced(mlp)
    found = trials(plan)
    dangling = Edit("drop", "", (("c0", partial),), {"c0": {partial: ()}}).apply(plan)
    assert not found.repairs(dangling, found.wrong())


def test_plans_that_were_tried_are_counted(mlp: Plan) -> None:
    found = trials(mlp)
    found.repairs(mlp, [])
    found.repairs(mlp, [])
    assert found.count == 2


def test_a_mistake_of_all_ranks_is_seen_at_all_ranks_that_hold_the_output(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    found = trials(plan)
    assert found.ranks(number(plan, "loss")) == (0, 1, 2, 3)
    assert trials(mlp).ranks(number(mlp, "loss")) == ()


def test_a_mistake_of_one_class_is_seen_at_its_ranks_only(uneven: Plan) -> None:
    """A rank that alone multiplies by another number spoils its own piece, or all that gather it."""
    last = uneven.classes[-1]
    multiply = next(op for op in last.program.ops if op.name == "multiply")
    wrong = dataclasses.replace(multiply, name="divide")
    edit = Edit("change", "", ((last.name, multiply.out),), {last.name: {multiply.out: (wrong,)}})
    found = trials(edit.apply(uneven))
    assert found.wrong() == [0] and found.ranks(0)


def test_it_ends_when_the_time_is_over(mlp: Plan) -> None:
    found = trials(mlp, 0)
    with pytest.raises(OutOfTime):
        found.repairs(mlp, [0])


def test_a_network_that_grew_large_is_made_anew(mlp: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every edit adds nodes; the inputs stay the same."""
    found = trials(mlp)
    before = list(found.scenarios)
    monkeypatch.setattr("orchestrator.refuting.trials._NODES", 0)
    assert found.repairs(mlp, []) and found.repairs(mlp, [])
    assert all(new is not old for new, old in zip(found.scenarios, before, strict=True))
    assert [s.inputs for s in found.scenarios] == [s.inputs for s in before]
