"""Of edits that repair a plan, the one is told first that people would make."""

from __future__ import annotations

import random

from certificates.plan.plan import Plan
from orchestrator.refuting.choosing import Choice
from orchestrator.refuting.edits import Edit, Kind
from orchestrator.refuting.scenarios import Scenario, random_inputs
from orchestrator.refuting.sites import Sites
from orchestrator.refuting.standing import Standings

from .test_diagnose import unreduced


def choice(plan: Plan) -> Choice:
    scenario = Scenario(random_inputs(plan, random.Random(3)))
    return Choice(plan, Sites(plan, [0]), Standings(plan, scenario, scenario.expand(plan)))


def edit(kind: Kind, *outs: str, after: bool = False) -> Edit:
    return Edit(kind, "", tuple(("c0", out) for out in outs), {}, after=after)


def result(plan: Plan, name: str) -> str:
    """Of the first op of the name."""
    return next(op.out for op in plan.classes[0].program.ops if op.name == name)


def test_the_relation_is_lost_at_the_op_that_reads_a_partial_sum_as_whole(mlp: Plan) -> None:
    """Not at the product that makes it, and not at ops that only pass the mistake on."""
    plan, _ = unreduced(mlp)
    chosen = choice(plan)
    found = [op.name for op in plan.classes[0].program.ops if chosen.deviates("c0", op)]
    assert found[0] == "subtract"
    assert not any(choice(mlp).deviates("c0", op) for op in mlp.classes[0].program.ops)


def test_inputs_are_settled_and_what_follows_from_the_mistake_is_not(mlp: Plan) -> None:
    plan, partial = unreduced(mlp)
    chosen = choice(plan)
    assert chosen.settled("c0", "params.w1") and chosen.settled("c0", partial)
    assert not chosen.settled("c0", result(plan, "subtract"))


def test_what_is_missing_is_put_where_the_relation_changes(mlp: Plan) -> None:
    plan, partial = unreduced(mlp)
    chosen = choice(plan)
    copied = next(op.out for op in plan.classes[0].program.ops if op.ins == (partial,))
    at, far = edit("insert", copied, after=True), edit("insert", result(plan, "tanh"), after=True)
    assert chosen.key(at) < chosen.key(far)


def test_beside_a_collective_comes_before_any_other_place(mlp: Plan) -> None:
    chosen = choice(mlp)
    beside, other = edit("scale", result(mlp, "all_reduce"), after=True), edit("scale", "%0", after=True)
    assert chosen.key(beside) < chosen.key(other)


def test_an_op_that_is_wrong_itself_comes_before_ops_that_pass_it_on(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    chosen = choice(plan)
    first = next(op.out for op in plan.classes[0].program.ops if chosen.deviates("c0", op))
    assert chosen.key(edit("literal", first)) < chosen.key(edit("group", "%6"))


def test_what_stands_there_comes_before_what_is_missing_and_that_before_other_operands(mlp: Plan) -> None:
    chosen = choice(mlp)
    kinds: tuple[Kind, ...] = ("operand", "insert", "change", "add", "group", "literal", "swap", "drop")
    ordered = sorted((edit(k, "%4") for k in kinds), key=chosen.key)
    assert [e.kind for e in ordered] == [
        "group", "drop", "swap", "change", "insert", "literal", "operand", "add",
    ]  # fmt: skip


def test_other_operands_explain_little_wherever_they_are(mlp: Plan) -> None:
    """Any tensor may be the sum of two others by chance."""
    plan, _ = unreduced(mlp)
    chosen = choice(plan)
    first = next(op.out for op in plan.classes[0].program.ops if chosen.deviates("c0", op))
    assert chosen.key(edit("literal", "%6")) < chosen.key(edit("operand", first))


def test_of_equal_edits_the_last_and_of_these_the_one_of_fewest_ops_comes_first(mlp: Plan) -> None:
    chosen = choice(mlp)
    assert chosen.key(edit("change", "%30")) < chosen.key(edit("change", "%26"))
    assert chosen.key(edit("change", "%30")) < chosen.key(edit("change", "%30", "%26"))
