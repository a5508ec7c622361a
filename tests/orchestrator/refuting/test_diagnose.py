"""One cause is named, at the changed op, and an edit only if the edited plan was proved."""

from __future__ import annotations

import dataclasses

import pytest

from certificates.plan.plan import Plan
from orchestrator.emit import provable
from orchestrator.refuting.diagnose import Cause, diagnose
from orchestrator.refuting.edits import Edit
from orchestrator.refuting.search import search
from orchestrator.refuting.sites import Sites
from tests.corpus.mutate import mutants


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
