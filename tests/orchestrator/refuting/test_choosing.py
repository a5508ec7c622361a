"""Of edits that repair a plan, the one is told first that people would make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from orchestrator.refuting.choosing import Choice
from orchestrator.refuting.edits import Edit, Kind
from orchestrator.refuting.scenarios import Scenario, random_inputs
from orchestrator.refuting.sites import Sites
from orchestrator.refuting.standing import Standings

from ..plans import pair
from .test_diagnose import unreduced


def choice(plan: Plan, wrong: Sequence[int] | None = None) -> Choice:
    """If all outputs are wrong, or these."""
    scenario = Scenario(random_inputs(plan, random.Random(3)))
    wrong = range(len(plan.outputs)) if wrong is None else wrong
    return Choice(plan, Sites(plan, wrong), Standings(plan, scenario, scenario.expand(plan)))


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


def halves(b: ProgramBuilder, right: bool, mine: bool) -> None:
    """Two means over ranks by lines of their own; one gets another half, by a line that it shares."""
    found = []
    for name in ("u", "v"):
        part = b.reduce(b.input(name, f"f32[{4 if mine else 8}]"), (0,), "add")
        found.append(b.all_reduce(part, "dp") if mine else part)
    if not right:
        found[1] = found[1] / 2
    for name, value in zip(("u", "v"), found, strict=True):
        b.output(name + "2", b.tanh(value / 2))


def halved() -> tuple[Plan, Choice, list[Op]]:
    """The plan of which ``v2`` is wrong, and its divisions: of v alone, then of u and v by one line."""
    rows = {"dp": Shard(0)}
    plan = pair({"dp": 2}, lambda b: halves(b, True, False), lambda b: halves(b, False, True),
                {"u": rows, "v": rows}, {"u2": {}, "v2": {}})  # fmt: skip
    found = [op for op in plan.classes[0].program.ops if op.name == "divide"]
    return plan, choice(plan, [1]), found


def test_a_line_that_makes_right_ones_too_comes_after_one_that_does_not() -> None:
    """Both divisions can go. All gradients pass one of them, and the others of these are right."""
    _, chosen, (own, _, shared) = halved()
    assert chosen.key(edit("drop", own.out)) < chosen.key(edit("drop", shared.out))


def test_what_right_outputs_rest_on_comes_last() -> None:
    _, chosen, (own, right, _) = halved()
    assert chosen.key(edit("drop", own.out)) < chosen.key(edit("change", right.out))
    assert chosen.key(edit("scale", own.out, after=True)) < chosen.key(edit("drop", right.out))


def test_the_first_op_that_only_wrong_outputs_rest_on_may_read_another_operand() -> None:
    """Of a kind that explains little, it comes before what right outputs contradict, not before the rest."""

    def write(b: ProgramBuilder, mine: bool) -> None:
        x, y = b.input("x", "f32[4]"), b.input("y", "f32[4]")
        kept = b.tanh(x) * 1
        b.output("right", kept)
        b.output("wrong", b.exponential(kept if mine else y))

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True),
                {"x": {}, "y": {}}, {"right": {}, "wrong": {}})  # fmt: skip
    chosen = choice(plan, [1])
    first, kept = result(plan, "exponential"), result(plan, "multiply")
    keys = [chosen.key(e) for e in (edit("drop", first), edit("operand", first), edit("drop", kept))]
    assert keys == sorted(keys) and chosen.key(edit("operand", kept)) > keys[-1]


def test_a_factor_is_told_from_other_operands_and_a_mean_from_other_factors() -> None:
    plan, chosen, (own, _, shared) = halved()
    assert chosen.factor("c0", own) == Fraction(1, 2)
    assert chosen.factor("c0", next(op for op in plan.classes[0].program.ops if op.name == "tanh")) is None
    assert chosen.is_mean(edit("drop", own.out)), "the sum over two ranks, divided by two"
    assert not chosen.is_mean(edit("drop", shared.out)), "no sum stands beside it"
    assert not chosen.is_mean(edit("literal", own.out))


def test_a_factor_that_the_specification_has_at_the_line_is_no_mistake_of_the_ranks() -> None:
    """Ranks and single device run one loss; the ranks divide once more by themselves."""

    def loss(b: ProgramBuilder) -> Value:
        return b.tanh(b.input("x", "f32[4]")) / 2

    def write(b: ProgramBuilder, mine: bool) -> None:
        h = loss(b)
        b.output("y", h / 2 if mine else h)

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}}, {"y": {}})
    shared, own = (op.out for op in plan.classes[0].program.ops if op.name == "divide")
    chosen = choice(plan)
    assert chosen.right_beside(edit("drop", shared)) and not chosen.right_beside(edit("drop", own))
    assert chosen.key(edit("drop", own)) < chosen.key(edit("drop", shared))
    assert not chosen.right_beside(edit("swap", shared)), "only its factor is known to be right"


def test_a_factor_that_stands_there_comes_before_one_that_may_be_missing() -> None:
    _, chosen, (own, _, _) = halved()
    before = own.ins[0]
    assert chosen.key(edit("drop", own.out)) < chosen.key(edit("scale", before, after=True))
    assert chosen.key(edit("scale", before, after=True)) < chosen.key(edit("operand", own.out))


def test_a_factor_that_the_specification_has_elsewhere_is_told_by_what_stands_for_it() -> None:
    """On another line, as ranks have a step of their own; and a third of what is right."""

    def whole(b: ProgramBuilder) -> None:
        b.output("y", b.tanh(b.input("x", "f32[4]") / 4))

    def mine(b: ProgramBuilder) -> None:
        b.output("y", b.tanh(b.input("x", "f32[2]") / 4) / 3)

    plan = pair({"dp": 2}, whole, mine, {"x": {"dp": Shard(0)}}, {"y": {"dp": Shard(0)}})
    same, more = (op.out for op in plan.classes[0].program.ops if op.name == "divide")
    chosen = choice(plan)
    assert chosen.is_given(edit("literal", same)) and not chosen.is_given(edit("literal", more))


def test_all_literals_of_an_op_are_its_factor() -> None:
    """A backward pass begins with a 1 that is divided: not by 1."""

    def write(b: ProgramBuilder, count: int) -> None:
        b.output("y", b.input("x", "f32[4]") * (b.constant(1, "f32[4]") / count))

    plan = pair({"dp": 2}, lambda b: write(b, 2), lambda b: write(b, 3), {"x": {}}, {"y": {}})
    op = next(op for op in plan.classes[0].program.ops if op.name == "divide")
    assert choice(plan).factor("c0", op) == Fraction(1, 3)
