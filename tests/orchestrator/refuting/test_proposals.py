"""Edits that people would make are among those that are proposed, and only well-typed ones are."""

from __future__ import annotations

import pytest

from certificates.plan.checking import check_plan
from orchestrator.refuting.edits import numbered
from orchestrator.refuting.proposals import Proposals
from orchestrator.refuting.sites import Sites

from .mistakes import repairs, standings, step


@pytest.mark.parametrize(
    ("bug", "kind", "words"),
    [
        ("missing", "insert", "add an all_reduce over dp"),
        ("twice", "scale", "divide by 2"),
        ("swapped", "swap", ""),
    ],
)
def test_the_edit_that_repairs_is_proposed(bug: str, kind: str, words: str) -> None:
    found = [edit for edit in repairs(step(bug)) if edit.kind == kind]
    assert found and any(words in edit.what for edit in found)


def test_every_edited_plan_is_a_plan() -> None:
    plan = step("twice")
    every = list(Proposals(Sites(plan, [0]), standings(plan)).all())
    assert len(every) > 20
    for edit in every[::3]:
        check_plan(numbered(edit.apply(plan)))


def test_proposals_do_not_depend_on_time() -> None:
    plan = step("swapped")
    first, second = (
        [(e.kind, e.what, e.ops) for e in Proposals(Sites(plan, [0]), standings(plan)).all()] for _ in "ab"
    )
    assert first == second
