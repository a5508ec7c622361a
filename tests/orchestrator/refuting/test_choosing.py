"""Of the edits that repair, the one that a person would make is the first."""

from __future__ import annotations

import pytest

from orchestrator.refuting.choosing import LATE, Choice
from orchestrator.refuting.sites import Sites

from .mistakes import repairs, standings, step, value


@pytest.mark.parametrize(
    ("bug", "kinds"),
    [("missing", {"insert"}), ("twice", {"scale", "literal", "drop"}), ("swapped", {"swap"})],
)
def test_the_likeliest_repair_comes_first(bug: str, kinds: set[str]) -> None:
    assert repairs(step(bug))[0].kind in kinds


def test_other_operands_and_further_terms_come_last() -> None:
    """They repair much, and explain little."""
    kinds = [edit.kind in LATE for edit in repairs(step("twice"))]
    assert kinds == sorted(kinds)


def test_the_relation_changes_at_the_op_that_is_wrong() -> None:
    plan = step("missing")
    choice = Choice(plan, Sites(plan, [0]), standings(plan))
    ops = {op.out: op for op in plan.classes[0].program.ops}
    assert choice.settled("c0", value(plan, "reduce")) and choice.settled("c0", "x")
    assert [out for out in ops if choice.deviates("c0", ops[out])] != []
    assert not choice.settled("c0", value(plan, "subtract"))
