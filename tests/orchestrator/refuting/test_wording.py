"""Lines, ops and tensors in the words of a diagnosis."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder
from certificates.plan.plan import Plan
from certificates.plan.program import Loc
from orchestrator.refuting.standing import Standing
from orchestrator.refuting.wording import Line, Names, line_of, multiple, op_words

from ..plans import pair
from .mistakes import step, value


def trained() -> Plan:
    """A parameter that is read, its gradient by the batch, and the updated parameter."""

    def write(b: ProgramBuilder) -> None:
        w, x = b.input("params.w", "f32[3]"), b.input("batch.x", "f32[3]")
        b.output("params.w", w - x * w * 2)

    return pair({"dp": 2}, write, write, {"params.w": {}, "batch.x": {}}, {"params.w": {}})


def test_the_line_of_the_caller_stands_for_a_helper() -> None:
    plan = dataclasses.replace(step(), sources=("lib/comm.py",))
    assert line_of(plan, None) is None
    assert str(line_of(plan, Loc(0, 7, "reduce"))) == "lib/comm.py:7 in reduce"
    called = line_of(plan, Loc(0, 7, "reduce, called at train.py:31 in step"))
    assert called == Line("train.py", 31, "step", "reduce at lib/comm.py:7")
    assert str(called) == "train.py:31 in step (through reduce at lib/comm.py:7)"


def test_a_collective_is_told_with_its_axes() -> None:
    plan = step()
    ops = {op.out: op for op in plan.classes[0].program.ops}
    name = value(plan, "all_reduce")
    assert op_words(plan, ops[name]) == f"`all_reduce {name}` over dp"
    local = value(plan, "reduce")
    assert op_words(plan, ops[local]) == f"`reduce {local}`"


def test_a_tensor_is_an_input_a_gradient_or_an_op() -> None:
    plan = trained()
    names, ops = Names(plan), plan.specification.ops
    assert names.of("params.w") == "`params.w`"
    gradient = next(op.out for op in ops if op.name == "multiply")
    assert names.of(gradient) == "the specification's gradient of `params.w`"
    other = Names(step())
    summed = next(op for op in step().specification.ops if op.name == "reduce")
    assert other.of(summed.out).startswith(f"the specification's `reduce {summed.out}`")
    assert "mistakes.py:" in other.of(summed.out)


def test_a_multiple_says_coefficient_and_axes() -> None:
    names = Names(trained())
    assert multiple(names, Standing(Fraction(1), (), "params.w")) == "`params.w`"
    said = multiple(names, Standing(Fraction(1, 2), ("dp", "tp"), "params.w"))
    assert said == "1/2 x `params.w`, as a partial sum over dp/tp"
