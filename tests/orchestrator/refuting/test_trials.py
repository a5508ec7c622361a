"""Whether a plan keeps its relations is seen on a few inputs; what cannot be evaluated is not right."""

from __future__ import annotations

import pytest

from orchestrator.errors import OutOfTime

from .mistakes import step, trials


def test_a_right_plan_has_no_wrong_output() -> None:
    assert trials(step()).wrong() == []
    assert trials(step()).ranks(0) == ()


@pytest.mark.parametrize("bug", ["missing", "twice", "swapped"])
def test_the_wrong_output_is_found_and_the_right_one_left_alone(bug: str) -> None:
    plan = step(bug)
    tried = trials(plan)
    assert [plan.outputs[i].plan for i in tried.wrong()] == ["y"]
    assert tried.ranks(tried.wrong()[0]) == (0, 1), "it is wrong wherever it lies"


def test_only_a_plan_whose_outputs_are_all_right_repairs() -> None:
    tried = trials(step("twice"))
    assert tried.repairs(step(), [0]) and not tried.repairs(step("swapped"), [0])
    assert tried.count == 2


def test_without_time_nothing_is_said() -> None:
    with pytest.raises(OutOfTime):
        trials(step("twice"), seconds=-1.0).wrong()
