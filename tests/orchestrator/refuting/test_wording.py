"""Ops, lines and tensors as a user reads them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from certificates.plan.plan import Plan
from certificates.plan.program import Loc
from orchestrator.refuting.standing import Standing
from orchestrator.refuting.wording import Line, Names, line_of, multiple, op_words


@pytest.mark.parametrize("function", ["step", "f, called", "called at model.py:3"])
def test_an_op_s_own_line_is_named(mlp: Plan, function: str) -> None:
    line = line_of(mlp, Loc(0, 7, function))
    assert line == Line("conftest.py", 7, function)
    assert str(line) == f"conftest.py:7 in {function}"


def test_the_caller_s_line_is_named_where_a_helper_ran_the_op(mlp: Plan) -> None:
    """Another caller of the helper may be right: the helper's line says little."""
    line = line_of(mlp, Loc(0, 7, "reduce_all, called at a b/model.py:31 in forward"))
    assert line == Line("a b/model.py", 31, "forward", "reduce_all at conftest.py:7")
    assert str(line) == "a b/model.py:31 in forward (through reduce_all at conftest.py:7)"


def test_an_op_without_a_line_has_none(mlp: Plan) -> None:
    assert line_of(mlp, None) is None


def test_a_collective_is_named_with_its_axes(mlp: Plan) -> None:
    ops = {op.out: op for op in mlp.classes[0].program.ops}
    assert op_words(mlp, ops["%3"]) == "`all_reduce %3` over tp"
    assert op_words(mlp, ops["%1"]) == "`tanh %1`"
    world = dataclasses.replace(mlp.groups["tp"], axes=("dp", "tp"), ranks=mlp.mesh.fibres(("dp", "tp")))
    wide = dataclasses.replace(mlp, groups={**mlp.groups, "tp": world})
    assert op_words(wide, ops["%3"]) == "`all_reduce %3` over dp/tp"


def test_a_gradient_is_named_by_its_parameter(mlp: Plan) -> None:
    outputs = mlp.specification.outputs
    for name in ("params.w1", "params.w2"):
        assert Names(mlp).of(outputs[f"grads.{name}"]) == f"the specification's gradient of `{name}`"


def test_inputs_have_their_names_and_other_tensors_op_and_line(mlp: Plan) -> None:
    names = Names(mlp)
    assert names.of("params.w1") == "`params.w1`"
    tanh = next(op for op in mlp.specification.ops if op.name == "tanh")
    assert tanh.loc is not None
    assert names.of(tanh.out) == f"the specification's `tanh {tanh.out}` (conftest.py:{tanh.loc.line})"


def test_a_new_weight_is_not_a_gradient(mlp: Plan) -> None:
    """Nor is what is made of the gradient, a step of it for instance."""
    names, program = Names(mlp), mlp.specification
    made = {op.out: op for op in program.ops}
    new = made[program.outputs["params.w1"]]
    for value in (new.out, new.ins[1]):
        assert "gradient" not in names.of(value)


def test_a_learning_rate_of_a_parameter_s_shape_is_not_its_gradient(mlp: Plan) -> None:
    """It rests on no batch."""
    rates = [op for op in mlp.specification.ops if op.ins == ("hyper.lr",)]
    assert len(rates) == 2
    for op in rates:
        assert Names(mlp).of(op.out).startswith(f"the specification's `broadcast_in_dim {op.out}`")


@pytest.mark.parametrize(
    ("coef", "axes", "said"),
    [
        (Fraction(1), (), "`params.w1`"),
        (Fraction(2), (), "2 x `params.w1`"),
        (Fraction(1, 4), ("dp",), "1/4 x `params.w1`, as a partial sum over dp"),
        (Fraction(1), ("dp", "tp"), "`params.w1`, as a partial sum over dp/tp"),
    ],
)
def test_a_standing_in_words(mlp: Plan, coef: Fraction, axes: tuple[str, ...], said: str) -> None:
    assert multiple(Names(mlp), Standing(coef, axes, "params.w1")) == said
