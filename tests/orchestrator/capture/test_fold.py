"""Loops over microbatches become one program at each, written by hand: what is folded, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.checking import check_plan
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from orchestrator.capture.fold import RUNS, NotAlike, fold_plan
from orchestrator.capture.unfold import same
from orchestrator.evaluating import interpreter
from trainverify import Kind, verify

COUNT, ROWS, WIDTH = 3, 2, 4


class Step:
    """One rank's program under construction: rows of the batch, a weight, and what one microbatch does."""

    def __init__(self) -> None:
        self.b = ProgramBuilder({"dp": 2}, groups={"dp": ("dp",)})
        self.x = self.b.input("batch.x", f"f32[{COUNT * ROWS},{WIDTH}]")
        self.w = self.b.input("params.w", f"f32[{WIDTH},{WIDTH}]")
        self.table = self.b.input("buffers.table", "f32[9]")

    def rows(self, k: int) -> Value:
        return self.x[k * ROWS : (k + 1) * ROWS]

    def microbatch(self, k: int) -> tuple[Value, Value]:
        """Loss and gradient; the weight is gathered anew, and a scale is made of nothing."""
        x = self.rows(k)
        y = x @ self.w
        return (y * y).sum(0, 1), self.b.dot(x, 2 * y, contract=((0,), (0,)))

    def plan(self, loss: Value, gradient: Value) -> Plan:
        b = self.b
        b.output("loss", b.all_reduce(loss, "dp"))
        b.output("params.w", self.w - b.all_reduce(gradient, "dp"))
        return plan_of(b)


def plan_of(b: ProgramBuilder) -> Plan:
    s = ProgramBuilder()
    x = s.input("batch.x", f"f32[{2 * COUNT * ROWS},{WIDTH}]")
    w = s.input("params.w", f"f32[{WIDTH},{WIDTH}]")
    y = x @ w
    s.output("loss", (y * y).sum(0, 1))
    s.output("params.w", w - s.dot(x, 2 * y, contract=((0,), (0,))))
    return build_plan(
        name="loop",
        mesh={"dp": 2},
        specification=s.build(),
        classes=b.build(),
        inputs={"batch.x": {"dp": Shard(0)}, "params.w": {}},
        outputs={"loss": {}, "params.w": {}},
        groups={"dp": ("dp",)},
        given=["batch.x"],
    )


def total(values: list[Value]) -> Value:
    out = values[0]
    for value in values[1:]:
        out = out + value
    return out


def loop(start: Callable[[Step], Value] | None = None) -> Plan:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    loss = total([start(step), *losses]) if start else total(list(losses))
    return step.plan(loss, total(list(gradients)))


def names(plan: Plan) -> list[str]:
    return [op.name for op in plan.classes[0].program.ops]


def folded(plan: Plan) -> Plan:
    """The folded plan, which is well-formed, unfolds to the plan, and computes it."""
    found, places, _ = fold_plan(plan, COUNT)
    check_plan(found)
    assert same(plan, found, places)
    rng = np.random.default_rng(0)
    inputs = interpreter.random_inputs(plan, rng)
    want = interpreter.run_plan(plan, interpreter.scatter_inputs(plan, inputs, rng))
    got = interpreter.run_plan(found, interpreter.scatter_inputs(found, inputs, rng))
    for i, outputs in enumerate(got):
        for name, value in outputs.items():
            np.testing.assert_allclose(value, want[i % plan.mesh.ranks][name], rtol=1e-9)
    return found


def test_a_loop_is_one_program_and_a_sum_over_time() -> None:
    found = folded(loop())
    assert found.mesh.axes == {"mb": COUNT, "dp": 2} and found.mesh.time == ("mb",)
    ops = found.classes[0].program.ops
    (cut,) = [op for op in ops if op.name == "slice"]
    assert cut.affines("start")[0] == Affine.of(0, {"mb": ROWS})
    assert [op.name for op in ops if op.attrs.get("group") == RUNS] == ["all_reduce"] * 2
    assert names(found).count("dot_general") == 2
    assert verify(found).kind is Kind.PROVED


@pytest.mark.parametrize(
    "start",
    [lambda s: s.b.constant(0, "f32[]"), lambda s: s.b.constant(0, "f32[1]").reshape()],
    ids=["zero", "zero of another shape"],
)
def test_a_sum_that_begins_with_zero_is_a_sum(start: Callable[[Step], Value]) -> None:
    assert names(folded(loop(start))) == names(folded(loop()))


def test_what_a_sum_begins_with_is_added_once() -> None:
    found = folded(loop(lambda s: s.b.constant(5, "f32[]")))
    assert names(found).count("add") == 1 and verify(found).kind is Kind.REFUTED


def test_two_values_of_each_microbatch_are_added_up_in_it() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    halves = [part for g in gradients for part in (g / 4, g * 3 / 4)]
    assert verify(folded(step.plan(total(list(losses)), total(halves)))).kind is Kind.PROVED


def in_two_precisions() -> Plan:
    """Gradients in half precision; the sum of the first two is handed on in full precision."""
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    some, last = gradients[0].convert("bf16") + gradients[1].convert("bf16"), gradients[2].convert("bf16")
    return step.plan(total(list(losses)), some.convert("f32") + last.convert("f32"))


def test_a_sum_in_two_precisions_is_a_sum() -> None:
    """As schedules without bubbles have it, whose weight gradients come apart from the others."""
    found = folded(in_two_precisions())
    (summed,) = [op for op in found.classes[0].program.ops if op.attrs.get("group") == RUNS and op.type.shape]
    assert str(summed.type) == f"bf16[{WIDTH},{WIDTH}]"
    assert verify(found).kind is Kind.PROVED


def test_summands_in_two_precisions_are_added_up_in_a_microbatch() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    parts = [(g / 4).convert("bf16").convert("f32") + g * 3 / 4 for g in gradients]
    assert verify(folded(step.plan(total(list(losses)), total(parts)))).kind is Kind.PROVED


def test_a_sum_in_half_precision_that_is_read_before_it_is_whole_is_not_folded() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    some = gradients[0].convert("bf16") + gradients[1].convert("bf16")
    loss = total(list(losses)) + some.convert("f32").sum(0, 1)
    with pytest.raises(NotAlike, match="a sum over some microbatches is read before it is whole"):
        fold_plan(step.plan(loss, some.convert("f32") + gradients[2]), COUNT)


def test_a_conversion_that_is_not_the_identity_joins_no_microbatches() -> None:
    """What counts microbatches with something in them is no sum over them."""
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    some = step.b.compare(losses[0] + losses[1], 1, "LT")
    plan = step.plan(some.convert("f32") + losses[2], total(list(gradients)))
    with pytest.raises(NotAlike, match="convert joins some microbatches, and a sum reads it"):
        fold_plan(plan, COUNT)


def test_a_stack_of_all_microbatches_is_a_stack_over_time() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    stacked = step.b.concatenate([x.reshape(1) for x in losses], 0)
    found = folded(step.plan(stacked.sum(0), total(list(gradients))))
    assert names(found).count("all_gather") == 1


def stacked(change: Callable[[ProgramBuilder, Value], Value], order: Sequence[int] = (2, 0, 1)) -> Plan:
    """The loss is made of a stack of the losses, which are taken in this order."""
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    stack = step.b.concatenate([losses[k].reshape(1) for k in order], 0)
    return step.plan(change(step.b, stack), total(list(gradients)))


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0)])
def test_a_stack_in_another_order_that_is_added_up_is_a_sum_over_time(order: Sequence[int]) -> None:
    """Microbatches that are taken last first have their losses in that order."""
    found = folded(stacked(lambda b, x: x.sum(0) / 1, order))
    assert names(found).count("all_gather") == 0
    assert [op.name for op in found.classes[0].program.ops if op.attrs.get("group") == RUNS] == [
        "all_reduce"
    ] * 2
    assert verify(found).kind is Kind.PROVED


@pytest.mark.parametrize(
    "change",
    [
        lambda b, x: (x * b.iota("f32[3]", 0)).sum(0),
        lambda b, x: b.reduce(x, (0,), "max"),
        lambda b, x: x.sum(0) + x[0:1].reshape(),
        lambda b, x: b.reduce(b.reshape(x, (1, 3)), (0,), "add")[1:2].reshape(),
    ],
    ids=["weights", "largest", "first", "along another dimension"],
)
def test_a_stack_in_another_order_whose_order_counts_is_not_folded(change: Callable[..., Value]) -> None:
    with pytest.raises(NotAlike, match="a stack is not of one value of each microbatch, in their order"):
        fold_plan(stacked(change), COUNT)


def test_what_is_gathered_anew_for_each_microbatch_is_gathered_once_at_each() -> None:
    """The gathers are equal, and rest on no slice of the batch: who reads them tells whose they are."""
    step = Step()
    b, parts = step.b, []
    for k in range(COUNT):
        twice = b.all_gather(step.w, "dp")
        y = step.rows(k) @ twice[0:WIDTH]
        again = b.all_gather(step.w, "dp")
        gradient = b.dot(step.rows(k), 2 * (step.rows(k) @ again[:WIDTH]), contract=((0,), (0,)))
        parts.append(((y * y).sum(0, 1), gradient))
    found = folded(step.plan(total([loss for loss, _ in parts]), total([g for _, g in parts])))
    assert names(found).count("all_gather") == 2
    assert verify(found).kind is Kind.PROVED


def test_views_of_one_memory_have_one_form() -> None:
    """The first microbatch sees its gradient through another view, as the buffers of FSDP do."""
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    flat = [g.reshape(WIDTH * WIDTH) for g in gradients]
    seen = [flat[0][8:16].reshape(2, 4)[1:2].reshape(4), *(g[2:4].reshape(8)[4:8] for g in gradients[1:])]
    plan = step.plan(total(list(losses)) + total(seen).sum(0), total(list(gradients)))
    assert names(folded(plan)).count("add") == 1


def scaled_last(step: Step, k: int) -> tuple[Value, Value]:
    loss, gradient = step.microbatch(k)
    return loss, gradient * 2 if k == COUNT - 1 else gradient


def shifted(step: Step, k: int) -> tuple[Value, Value]:
    loss, gradient = step.microbatch(k)
    return loss * (k * k + 1), gradient


def of_powers(step: Step, k: int) -> tuple[Value, Value]:
    """The integer is not affine in the microbatch."""
    loss, gradient = step.microbatch(k)
    return loss * step.table[k * k : k * k + 1].reshape(), gradient


def passed_on(step: Step, k: int, before: list[Value]) -> tuple[Value, Value]:
    loss, gradient = step.microbatch(k)
    before.append(loss if not before else loss * before[-1])
    return before[-1], gradient


@pytest.mark.parametrize(
    ("microbatch", "message"),
    [
        (scaled_last, "values that do not correspond"),
        (shifted, "values that do not correspond"),
        (of_powers, "a number of slice is not affine in the microbatch"),
    ],
)
def test_what_differs_is_not_folded(
    microbatch: Callable[[Step, int], tuple[Value, Value]], message: str
) -> None:
    step = Step()
    losses, gradients = zip(*(microbatch(step, k) for k in range(COUNT)), strict=True)
    with pytest.raises(NotAlike, match=message) as caught:
        fold_plan(step.plan(total(list(losses)), total(list(gradients))), COUNT)
    assert caught.value.loc is not None


def test_a_microbatch_that_reads_another_ones_result_is_not_folded() -> None:
    step, before = Step(), list[Value]()
    losses, gradients = zip(*(passed_on(step, k, before) for k in range(COUNT)), strict=True)
    with pytest.raises(NotAlike, match="multiply joins"):
        fold_plan(step.plan(losses[-1], total(list(gradients))), COUNT)


def test_a_sum_that_is_read_before_it_is_whole_is_not_folded() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    some = gradients[0] + gradients[1]
    with pytest.raises(NotAlike, match="a sum over some microbatches is read before it is whole"):
        fold_plan(step.plan(total(list(losses)) + some.sum(0, 1), some + gradients[2]), COUNT)


def test_a_microbatch_that_is_left_out_is_not_folded() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    with pytest.raises(NotAlike):
        fold_plan(step.plan(total(list(losses)), total(list(gradients[1:]))), COUNT)


def test_an_output_of_one_microbatch_is_not_folded() -> None:
    step = Step()
    losses, gradients = zip(*(step.microbatch(k) for k in range(COUNT)), strict=True)
    step.b.output("last", losses[-1])
    with pytest.raises(NotAlike, match="last is made of one microbatch"):
        fold_plan(step.plan(total(list(losses)), total(list(gradients))), COUNT)


def test_a_folded_plan_that_computes_something_else_does_not_unfold_to_the_plan() -> None:
    plan = loop()
    found, places, _ = fold_plan(plan, COUNT)
    cls = found.classes[0]
    ops = list(cls.program.ops)
    cut = next(i for i, op in enumerate(ops) if op.name == "slice")
    start = ops[cut].affines("start")
    wrongs = [
        replace(ops[cut], attrs={**ops[cut].attrs, "start": (form, start[1])})
        for form in (Affine(0), Affine.of(ROWS * (COUNT - 1), {"mb": -ROWS}))
    ]
    verdicts = []
    for wrong in wrongs:
        program = replace(cls.program, ops=(*ops[:cut], wrong, *ops[cut + 1 :]))
        verdicts.append(same(plan, replace(found, classes=(replace(cls, program=program),)), places))
    assert verdicts == [False, True]  # all microbatches in reverse order are the same sum
