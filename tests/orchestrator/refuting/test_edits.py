"""An edit is one change of a plan; what it is about keeps its names, and the edited plan can be written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from certificates.plan.checking import check_plan
from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from orchestrator.refuting.edits import Edit, followed, next_seq, numbered, replaced


def doubled(plan: Plan, out: str) -> Edit:
    """Adds the result of an op to itself."""
    rewrites = {}
    for c in plan.classes:
        op = next(o for o in c.program.ops if o.out == out)
        sum_ = Op("?", "add", (), op.type, {}, op.loc)
        new = followed(op, 0, lambda hidden, sum_=sum_: [dataclasses.replace(sum_, ins=(hidden, hidden))])
        rewrites[c.name] = {out: new}
    return Edit("add", "double it", tuple((c.name, out) for c in plan.classes), rewrites, after=True)


def test_what_reads_a_result_reads_what_is_made_of_it(mlp: Plan) -> None:
    before, after = mlp.classes[0].program, doubled(mlp, "%1").apply(mlp).classes[0].program
    hidden, new = after.ops[1], after.ops[2]
    assert dataclasses.replace(hidden, out="%1") == before.ops[1] and hidden.out != "%1"
    assert (new.out, new.name, new.ins) == ("%1", "add", (hidden.out, hidden.out))
    assert after.ops[3:] == before.ops[2:] and after.outputs == before.outputs


def test_the_plan_itself_and_classes_without_the_op_stay(uneven: Plan) -> None:
    first, other = uneven.classes[:2]
    op = first.program.ops[0]
    made = Edit("drop", "", ((first.name, op.out),), {first.name: {op.out: ()}}).apply(uneven)
    assert made.by_class[other.name] is other
    assert made.by_class[first.name].program.ops == first.program.ops[1:]
    assert uneven.classes[0].program.ops[0] is op


def test_a_group_that_the_plan_lacks_comes_with_the_edit(mlp: Plan) -> None:
    world = dataclasses.replace(mlp.groups["dp"], axes=("dp", "tp"), ranks=mlp.mesh.fibres(("dp", "tp")))
    made = Edit("group", "", (), {}, {"world": world}).apply(mlp)
    assert set(made.groups) == {"dp", "tp", "world"} and "world" not in mlp.groups


def test_an_edited_plan_can_be_written_once_it_is_numbered(mlp: Plan) -> None:
    made = numbered(doubled(mlp, "%1").apply(mlp))
    check_plan(made)
    program = made.classes[0].program
    assert [op.out for op in program.ops] == [f"%{i}" for i in range(len(program.ops))]
    assert program.outputs["loss"] == "%10" and mlp.classes[0].program.outputs["loss"] == "%9"


def test_numbers_of_a_plan_in_order_stay(mlp: Plan) -> None:
    assert numbered(mlp) == mlp


def test_a_new_collective_meets_no_other(mlp: Plan) -> None:
    used = {op.integer("seq") for c in mlp.classes for op in c.program.ops if op.name in COLLECTIVES}
    assert next_seq(mlp) not in used and next_seq(mlp) == max(used) + 1
    bare = tuple(dataclasses.replace(c, program=dataclasses.replace(c.program, ops=())) for c in mlp.classes)
    assert next_seq(dataclasses.replace(mlp, classes=bare)) == 0


def test_ops_of_several_classes_are_counted_in_each(mlp: Plan) -> None:
    """So that collectives which meet get one number in all classes."""
    a, b = mlp.classes[0].program.ops[:2]
    seen: list[tuple[str, str, int]] = []

    def new(cls: str, op: Op, n: int) -> Sequence[Op]:
        seen.append((cls, op.out, n))
        return [op]

    found = replaced([("c0", a), ("c0", b), ("c1", a)], new)
    assert seen == [("c0", a.out, 0), ("c0", b.out, 1), ("c1", a.out, 0)]
    assert found == {"c0": {a.out: (a,), b.out: (b,)}, "c1": {a.out: (a,)}}


def test_an_edit_is_made_in_all_places_or_not_at_all(mlp: Plan) -> None:
    a, b = mlp.classes[0].program.ops[:2]
    assert replaced([("c0", a), ("c0", b)], lambda cls, op, n: None if op is b else [op]) is None
