"""What a rank's tensor is to the specification: which tensor, how many times, summed over which ranks."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Placement, Shard
from certificates.plan.plan import Plan
from certificates.plan.program import Op
from orchestrator.refuting.scenarios import Blocks, Scenario, random_inputs
from orchestrator.refuting.standing import Standing, Standings, contents, distinct
from orchestrator.refuting.wording import Names, multiple

from ..plans import pair
from .test_diagnose import unreduced


def standings(plan: Plan) -> Standings:
    scenario = Scenario(random_inputs(plan, random.Random(3)))
    return Standings(plan, scenario, scenario.expand(plan))


def op_of(plan: Plan, name: str) -> Op:
    """The first of the name."""
    return next(op for op in plan.classes[0].program.ops if op.name == name)


def doubled(factor: int = 2) -> Plan:
    """The rank's tensor is a multiple of the specification's."""

    def write(b: ProgramBuilder, rows: int, times: int) -> None:
        h = b.tanh(b.input("x", f"f32[{rows},3]"))
        b.output("y", h * times if times > 1 else h)

    cut = {"dp": Shard(0)}
    return pair({"dp": 2}, lambda b: write(b, 8, 1), lambda b: write(b, 4, factor), {"x": cut}, {"y": cut})


def test_a_shard_stands_for_its_tensor_once() -> None:
    plan = doubled(1)
    tanh = op_of(plan, "tanh").out
    spec = plan.specification.outputs["y"]
    assert standings(plan).of(1, tanh)[0] == Standing(Fraction(1), (), spec)


@pytest.mark.parametrize("factor", [2, 3])
def test_a_multiple_is_told_by_its_factor(factor: int) -> None:
    """By a mesh size, or by a count that stands in the program."""
    plan = doubled(factor)
    found = standings(plan)
    product = op_of(plan, "multiply")
    assert found.of(0, product.out)[0] == Standing(Fraction(factor), (), plan.specification.outputs["y"])
    assert next(found.factors([("c0", product)])) == factor
    assert list(found.factors([("c0", op_of(plan, "tanh"))])) == []
    assert not found.lost(0, product.out)


def test_a_factor_that_only_one_of_two_ops_has_is_none_of_both() -> None:
    plan = doubled()
    found = standings(plan)
    assert list(found.factors([("c0", op_of(plan, "multiply")), ("c0", op_of(plan, "tanh"))])) == []


def test_a_partial_sum_is_told_by_the_axes_it_is_summed_over(mlp: Plan) -> None:
    plan, partial = unreduced(mlp)
    op = next(o for o in plan.classes[0].program.ops if o.out == partial)
    found = standings(plan)
    assert found.of(0, partial)[0].axes == ("tp",)
    assert list(found.partial([("c0", op)])) == [(("tp",), Fraction(1))]
    assert list(found.partial([("c0", op_of(plan, "tanh"))])) == []


def test_ops_are_partial_sums_together_only_over_the_same_axes(mlp: Plan) -> None:
    found, ops = standings(mlp), {op.out: op for op in mlp.classes[0].program.ops}
    assert list(found.partial([("c0", ops["%21"]), ("c0", ops["%23"])])) == [(("dp",), Fraction(1))]
    assert list(found.partial([("c0", ops["%21"]), ("c0", ops["%2"])])) == []


def test_what_is_computed_from_a_mistake_is_lost(mlp: Plan) -> None:
    plan, _ = unreduced(mlp)
    found = standings(plan)
    subtract = op_of(plan, "subtract").out
    assert found.lost(0, subtract) and found.of(0, subtract) == () and not found.settled(0, subtract)
    assert not found.lost(0, "batch.x") and not found.lost(0, op_of(plan, "tanh").out)


def test_nothing_of_a_right_plan_is_lost(mlp: Plan) -> None:
    found = standings(mlp)
    for rank in range(mlp.mesh.ranks):
        for op in mlp.classes[0].program.ops:
            assert not found.lost(rank, op.out) and found.settled(rank, op.out), op.out


def test_a_whole_tensor_that_is_a_multiple_is_not_settled() -> None:
    def write(b: ProgramBuilder, times: int) -> None:
        h = b.tanh(b.input("x", "f32[4,3]"))
        b.output("y", h * times if times > 1 else h)

    plan = pair({"dp": 2}, lambda b: write(b, 1), lambda b: write(b, 2), {"x": {}}, {"y": {}})
    found = standings(plan)
    assert not found.settled(0, op_of(plan, "multiply").out)
    assert found.settled(0, op_of(plan, "tanh").out)


def test_rows_in_another_order_are_not_the_tensor() -> None:
    """All values occur; those of a tensor of the same shape must be in their places."""

    def write(b: ProgramBuilder, turn: bool) -> None:
        x = b.input("x", "f32[4]")
        b.output("y", b.concatenate([x[2:], x[:2]], 0) if turn else b.tanh(x) * 1)

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}}, {"y": {}})
    scenario = Scenario({"x": _blocks(4)})
    found = Standings(plan, scenario, scenario.expand(plan))
    turned = op_of(plan, "concatenate").out
    assert not any(s.spec == "x" for s in found.of(0, turned)) and found.lost(0, turned)


def _blocks(count: int) -> Blocks:
    """Another number for each element."""
    return Blocks((tuple(range(count + 1)),), tuple(Fraction(7 + 2 * i, 8) for i in range(count)))


def test_integers_are_not_judged() -> None:
    """They are too often equal by chance."""

    def write(b: ProgramBuilder, more: int) -> None:
        n = b.input("n", "i64[4]")
        b.output("y", n + more)

    ranges = {"n": (0, 9)}
    plan = pair({"dp": 2}, lambda b: write(b, 1), lambda b: write(b, 2), {"n": {}}, {"y": {}}, ranges)
    found = standings(plan)
    assert found.of(0, op_of(plan, "add").out) == () and not found.lost(0, op_of(plan, "add").out)


def test_a_tensor_of_zeros_is_not_lost() -> None:
    def write(b: ProgramBuilder, zero: bool) -> None:
        x = b.input("x", "f32[4]")
        kept: Value = b.tanh(x)
        b.output("y", kept - kept if zero else kept)

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}}, {"y": {}})
    assert not standings(plan).lost(0, op_of(plan, "subtract").out)


def test_values_are_counted_once_and_without_zero() -> None:
    plan = doubled()
    scenario = Scenario(random_inputs(plan, random.Random(3)))
    expansion = scenario.expand(plan)
    node = expansion.value(-1, "x")
    values, keys = distinct(scenario, node), contents(scenario, node)
    assert values is not None and keys is not None
    assert 0 not in values and len(values) == len(set(values.tolist())) == len(keys)


def test_a_block_of_a_transposed_tensor_stands_for_it_and_rows_of_another_place_do_not() -> None:
    def write(b: ProgramBuilder, ranks: bool) -> None:
        h = b.tanh(b.input("x", "f32[4,6]"))
        b.output("turned", b.transpose(b.transpose(h, (1, 0)) * 3, (1, 0)) if ranks else h * 3)
        b.output("mixed", b.concatenate([h[0:1], h[2:3]], 0) if ranks else h[0:2])

    outputs: dict[str, dict[str, Placement]] = {"turned": {}, "mixed": {}}
    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}}, outputs)
    blocks = Blocks((tuple(range(5)), tuple(range(7))), tuple(Fraction(7 + 2 * i, 8) for i in range(24)))
    scenario = Scenario({"x": blocks})
    found = Standings(plan, scenario, scenario.expand(plan))
    assert not found.lost(0, op_of(plan, "transpose").out)
    assert found.lost(0, op_of(plan, "concatenate").out)


def test_a_standing_holds_on_all_inputs_or_it_is_chance() -> None:
    """Rows that are alike add up to twice a row; on other inputs they do not."""

    def write(b: ProgramBuilder, twice: bool) -> None:
        h = b.tanh(b.input("x", "f32[2,3]"))
        b.output("y", h.sum(0) if twice else h[0:1].reshape(3))

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}}, {"y": {}})
    alike = Scenario({"x": Blocks(((0, 2), (0, 1, 3)), (Fraction(1), Fraction(2)))})
    other = Scenario({"x": Blocks(((0, 1, 2), (0, 3)), (Fraction(1), Fraction(2)))})
    name = op_of(plan, "reduce").out
    one, two = (Standings(plan, s, s.expand(plan)) for s in (alike, other))
    assert one.of(0, name)[0].coef == 2
    assert Standings(plan, alike, alike.expand(plan), [two]).of(0, name) == ()


def test_what_is_the_same_on_all_ranks_is_no_partial_sum() -> None:
    """Half of a tensor on each of two ranks adds up to it, and no reduction is missing there."""

    def write(b: ProgramBuilder, half: bool) -> None:
        h = b.tanh(b.input("x", "f32[4,3]"))
        b.output("y", h / 2 if half else h)

    plan = pair({"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"x": {}}, {"y": {}})
    found = standings(plan).of(0, op_of(plan, "divide").out)
    assert found and all(s.axes == () and s.coef == Fraction(1, 2) for s in found)


def test_masks_are_compared_by_their_places() -> None:
    def write(b: ProgramBuilder, later: int) -> None:
        at = b.iota("i64[4,4]", 0)
        mask = b.compare(at + later if later else at, b.iota("i64[4,4]", 1), "GE")
        b.output("y", b.select(mask, b.input("x", "f32[4,4]"), b.constant(0, "f32[4,4]")))

    for later, alike in ((0, True), (1, False)):
        plan = pair({"dp": 2}, lambda b: write(b, 0), lambda b, n=later: write(b, n), {"x": {}}, {"y": {}})
        assert standings(plan).alike(0, op_of(plan, "compare").out) == alike


def test_what_is_divided_by_a_count_already_is_known_as_such() -> None:
    """A step that divides errors by the tokens has the specification's errors, which divides the sum."""

    def write(b: ProgramBuilder, early: bool) -> None:
        e, on = b.input("e", "f32[6]"), b.input("on", "f32[6]")
        count = on.sum()
        if early:
            b.output("y", (e / b.broadcast(count, (6,))).sum())
        else:
            b.output("y", e.sum() / count)

    plan = pair(
        {"dp": 2}, lambda b: write(b, False), lambda b: write(b, True), {"e": {}, "on": {}}, {"y": {}}
    )
    scenario, other = (Scenario(random_inputs(plan, random.Random(n))) for n in (3, 4))
    others = [Standings(plan, other, other.expand(plan))]
    known = Standings(plan, scenario, scenario.expand(plan), others)
    divided = next(op for op in plan.classes[0].program.ops if op.name == "divide")
    (found,) = known.of(0, divided.out)
    count = next(op for op in plan.specification.ops if op.ins == ("on",))
    assert (found.spec, found.coef, found.per) == ("e", 1, count.out)
    assert multiple(Names(plan), found).startswith("`e`, divided by the specification's `reduce %")
    assert known.stands(0, divided.out, "e") and not known.stands(0, divided.out, "on")
