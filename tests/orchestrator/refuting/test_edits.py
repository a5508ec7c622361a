"""An edit is data; the edited plan is a plan again once its results are numbered."""

from __future__ import annotations

import dataclasses

from certificates.plan.checking import check_plan
from certificates.plan.program import Op
from orchestrator.refuting.edits import Edit, followed, next_seq, numbered, replaced

from .mistakes import step, trials, value


def test_an_op_is_replaced_in_the_class_that_is_named() -> None:
    plan = step("swapped")
    name = value(plan, "subtract")
    op = next(o for o in plan.classes[0].program.ops if o.out == name)
    turned = dataclasses.replace(op, ins=op.ins[::-1])
    edit = Edit("swap", "exchange", (("c0", name),), {"c0": {name: (turned,)}})
    assert trials(plan).repairs(edit.apply(plan), [0])
    elsewhere = dataclasses.replace(edit, rewrites={"c9": {name: (turned,)}})
    assert elsewhere.apply(plan) == plan


def test_what_follows_an_op_takes_its_name_and_the_plan_can_be_checked() -> None:
    plan = step("missing")
    name, seq = value(plan, "reduce"), next_seq(plan)
    op = next(o for o in plan.classes[0].program.ops if o.out == name)

    def reduced(hidden: str) -> list[Op]:
        return [
            Op(name, "all_reduce", (hidden,), op.type, {"group": "dp", "kind": "add", "seq": seq}, op.loc)
        ]

    groups = step().groups
    edit = Edit("insert", "add", (("c0", name),), {"c0": {name: followed(op, 0, reduced)}}, groups, True)
    edited = numbered(edit.apply(plan))
    check_plan(edited)
    assert [o.out for o in edited.classes[0].program.ops] == [
        f"%{i}" for i in range(len(edited.classes[0].program.ops))
    ]
    assert trials(edited).wrong() == []


def test_rendezvous_get_a_number_that_no_collective_has() -> None:
    assert next_seq(step("missing")) == 0
    assert next_seq(step()) == 1


def test_a_rewrite_that_fails_for_one_op_is_none() -> None:
    ops = [("c0", op) for op in step().classes[0].program.ops]
    counts: list[int] = []

    def same(cls: str, op: Op, count: int) -> list[Op]:
        counts.append(count)
        return [op]

    assert replaced(ops, same) == {"c0": {op.out: (op,) for _, op in ops}}
    assert counts == list(range(len(ops)))
    assert replaced(ops, lambda c, op, n: None if op.name == "reduce" else [op]) is None
