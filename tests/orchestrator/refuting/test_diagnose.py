"""One cause is named, at the changed op, and an edit only if the edited plan was proved."""

from __future__ import annotations

import dataclasses

import pytest

from certificates.plan.plan import Plan
from orchestrator.emit import provable
from orchestrator.errors import OutOfTime
from orchestrator.refuting.diagnose import Cause, diagnose
from orchestrator.refuting.edits import Edit
from orchestrator.refuting.scenarios import Scenario
from orchestrator.refuting.search import search
from orchestrator.refuting.sites import Sites
from orchestrator.refuting.trials import Trials
from tests.corpus.mutate import mutants
from tests.right_plans.bugs import BUGS, lines


def unreduced(plan: Plan) -> tuple[Plan, str]:
    """Without the first all-reduce over tp, and the op that it followed."""
    op = next(o for o in plan.classes[0].program.ops if o.name == "all_reduce" and o.text("group") == "tp")
    same = dataclasses.replace(op, name="reshape", attrs={})
    edit = Edit("drop", "", (("c0", op.out),), {plan.classes[0].name: {op.out: (same,)}})
    return edit.apply(plan), op.ins[0]


def cause(plan: Plan, proved: bool) -> Cause:
    witness = search(plan)
    assert witness is not None
    found = diagnose(plan, witness, 30.0, lambda p, _: proved and provable(p))
    assert found is not None
    return found


def test_a_missing_reduction_is_told_and_the_proved_edit_suggested(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    found = cause(plan, True)
    assert "is still a partial sum over tp" in found.what and "a reduction over tp is missing" in found.what
    assert found.suggestion.startswith("add an all_reduce over tp, after ")
    assert len(found.outputs) > 1 and found.to_json(plan)["suggestion"] == found.suggestion


def test_what_is_not_proved_is_not_suggested(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    found = cause(plan, False)
    assert found.suggestion == "" and "suggestion" not in found.describe(plan)
    assert "partial sum over tp" in found.what


def test_names_op_and_line_of_another_mistake(mlp: Plan) -> None:
    mutant = next(m for m in mutants(mlp) if m.operator == "duplicate" and "tanh" in m.where)
    found = cause(mutant.build(), True)
    assert found.op.name == "tanh" and found.at is not None and found.at.file.endswith(".py")


@pytest.mark.parametrize("wrong", [[], [0]])
def test_sites_bear_on_all_wrong_outputs(mlp: Plan, wrong: list[int]) -> None:
    sites = Sites(mlp, wrong)
    for site in sites.all():
        bears = 0
        for cls, op in site.ops:
            bears |= sites.reach[cls][op.out]
        assert bears & sites.wrong == sites.wrong


@pytest.mark.parametrize(
    ("bug", "suggestion"),
    [
        ("prediction_by_local_counts", "all_reduce over cp instead of the multiply"),
        ("added_before_the_reduction", "sum operand 1 only over the ranks, then add the other"),
        ("packed_lengths", "read end instead of short"),
        ("weights_of_another_expert", "concatenate in the order 1, 0"),
    ],
)
def test_bugs_that_happened_are_told_at_their_line_with_an_edit_that_was_proved(
    bug: str, suggestion: str
) -> None:
    plan = BUGS[bug].plan(False)
    found = cause(plan, True)
    assert found.at is not None and found.at.line in lines(BUGS[bug])
    assert found.suggestion.startswith(suggestion)


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("gradient_of_a_convolution", "is not the tensor that is claimed"),
        ("batch_and_sequence_exchanged", "its operands are the specification's, its result is not"),
    ],
)
def test_where_no_edit_repairs_the_first_op_that_is_out_of_place_is_told(bug: str, words: str) -> None:
    found = cause(BUGS[bug].plan(False), True)
    assert found.at is not None and found.at.line in lines(BUGS[bug])
    assert found.suggestion == "" and words in found.what


@pytest.mark.parametrize("bug", ["mean_on_a_sum", "divisor_per_stage", "divide_factor_of_experts"])
def test_a_reduction_that_reads_a_partial_sum_is_not_told_to_lack_one(bug: str) -> None:
    """It is what makes the sum whole. One more before it would be a factor in disguise."""
    found = cause(BUGS[bug].plan(False), True)
    assert "a reduction" not in found.what and "all_reduce" not in found.suggestion


def test_the_time_for_edits_may_end_and_a_cause_is_named_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was computed for edits had the deadline of edits, and kept it when a network was made anew."""

    def late(trials: Trials, *_: object) -> bool:
        for number, scenario in enumerate(trials.scenarios):
            scenario.network.deadline = 0.0
            trials.scenarios[number] = Scenario(scenario.inputs)
        raise OutOfTime

    monkeypatch.setattr(Trials, "repairs", late)
    found = cause(BUGS["tied_head"].plan(False), False)
    assert found.op.name == "all_reduce" and "one term of the specification's" in found.what


@pytest.mark.parametrize("bug", ["divisor_under_ulysses", "mean_on_a_sum", "factor_of_a_group"])
def test_a_wrong_factor_is_told_with_other_lines_where_it_may_be_mended(bug: str) -> None:
    """A half before a sum and a half after it are one plan. What is told first is no mean over ranks."""
    plan = BUGS[bug].plan(False)
    found = cause(plan, True)
    assert found.at is not None and found.at.line in lines(BUGS[bug])
    assert 1 <= len(found.others) <= 2
    told = [found.at.line, *(other.at.line for other in found.others if other.at is not None)]
    assert len(told) == len({*told}) == 1 + len(found.others)
    assert f"; or: {found.others[0].what}" in found.describe(plan)
    assert found.to_json(plan)["or"][0]["line"] == told[1]  # type: ignore[index]


def test_a_factor_with_one_place_is_told_alone(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    assert cause(plan, True).others == () and cause(plan, True).to_json(plan)["or"] == []
