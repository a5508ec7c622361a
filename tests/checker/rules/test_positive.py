"""Tensors that are positive, or finite, by the way they are computed: the conditions of the law `field`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.language.proof import Reduced, Tensor
from checker.reading.plan import read_plan
from checker.rules import positive
from checker.rules.model import Model
from checker.rules.positive import Signs

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program

V = "f32[4]"
#: Over x (any sign): e = exp x is positive, s = x x not negative, m may be infinite and n = exp m be zero.
OPS = [
    op("%e", "exponential", ["x"], V),
    op("%s", "multiply", ["x", "x"], V),
    op("%c", "constant", [], V, value="1/2"),
    op("%0", "constant", [], V, value="0"),
    op("%h", "constant", [], V, value="-inf"),
    op("%m", "select", ["p", "x", "%h"], V),
    op("%n", "exponential", ["%m"], V),
    op("%d", "subtract", ["x", "x"], V),
    op("%z", "constant", [], "f32[]", value="0"),
    op("%u", "constant", [], "f32[]", value="2"),
]


def model(*ops: Any) -> Model:
    """A specification with these ops after OPS; results are renamed to what the format allows."""
    names: dict[str, str] = {}

    def renamed(o: Any) -> Any:
        operands = [names.get(v, v) for v in o[2]]
        names[o[0]] = f"%{len(names)}"
        return [names[o[0]], o[1], operands, *o[3:]]

    spec = program([["x", V], ["p", "i1[4]"], ["i", "i64[4]"]], [renamed(o) for o in [*OPS, *ops]], [])
    none = [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}]
    return Model(read_plan(dump(plan_of([["r", 1]], spec, none, [], []))))


def signs(name: str, *operands: str, type_: str = V, **attrs: Any) -> tuple[bool, bool]:
    """Is the result positive, is it finite?"""
    found = model([*op("%r", name, list(operands), type_)[:4], attrs, None])
    last = Tensor("s", found.plan.spec.ops[-1].result)
    return Signs(found).positive(last), Signs(found).finite(last)


def test_inputs_and_constants() -> None:
    found = model()
    names = dict(zip((o[0] for o in OPS), found.plan.spec.ops, strict=True))
    asked = Signs(found)
    assert {o for o in names if asked.positive(Tensor("s", names[o].result))} == {"%e", "%c", "%u"}
    assert {o for o in names if not asked.finite(Tensor("s", names[o].result))} == {"%h", "%m"}
    for name in ("x", "p", "i"):
        assert asked.finite(Tensor("s", name)) and not asked.positive(Tensor("s", name))
    assert asked.positive(Tensor("#f", "1/2")) and asked.finite(Tensor("#f", "0"))
    assert not asked.positive(Tensor("#f", "0")) and not asked.positive(Tensor("#b", "true"))


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_one_of_two_is_enough_if_the_other_is_not_negative(name: str) -> None:
    assert signs(name, "%e", "%s")[0] and signs(name, "%0", "%e")[0]
    assert not signs(name, "%e", "x")[0] and not signs(name, "%s", "%s")[0]


@pytest.mark.parametrize("name", ["multiply", "divide", "minimum"])
def test_both_of_two(name: str) -> None:
    assert signs(name, "%e", "%c") == (True, True)
    for a, b in (("%e", "%s"), ("%s", "%e"), ("x", "%e"), ("%e", "%n")):
        assert not signs(name, a, b)[0]


def test_a_square_is_not_positive() -> None:
    assert not signs("multiply", "x", "x")[0]


@pytest.mark.parametrize("name", ["subtract", "power"])
def test_of_two_never(name: str) -> None:
    assert not signs(name, "%e", "%c")[0]


def test_functions() -> None:
    assert signs("logistic", "x")[0] and signs("sqrt", "%e")[0] and signs("exponential", "%d")[0]
    assert not signs("exponential", "%m")[0] and not signs("sqrt", "%s")[0] and not signs("sqrt", "x")[0]
    for name in ("log", "rsqrt", "tanh", "abs", "negate"):
        assert not signs(name, "%e")[0]


def test_sums_and_movement() -> None:
    for kind in ("add", "max", "min"):
        assert signs("reduce", "%e", type_="f32[]", dims=[0], kind=kind)[0]
        assert not signs("reduce", "%s", type_="f32[]", dims=[0], kind=kind)[0]
    assert signs("pad", "%e", "%u", type_="f32[5]", low=[1], high=[0])[0]
    assert not signs("pad", "%e", "%z", type_="f32[5]", low=[1], high=[0])[0]
    assert not signs("pad", "%s", "%u", type_="f32[5]", low=[1], high=[0])[0]
    contract = {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [0], "rhs_contract": [0]}
    assert signs("dot_general", "%e", "%c", type_="f32[]", **contract)[0]
    assert not signs("dot_general", "%e", "%s", type_="f32[]", **contract)[0]
    assert not signs("gather", "%e", "i", axis=0, batch_dims=0)[0]


def test_where_an_infinity_goes_on() -> None:
    assert not signs("maximum", "%m", "x")[1] and not signs("subtract", "%m", "x")[1]
    assert not signs("add", "%m", "x")[1] and not signs("convert", "%m", type_="f64[4]")[1]
    assert not signs("reshape", "%m", type_="f32[2,2]")[1] and not signs("negate", "%m")[1]
    assert signs("exponential", "%m")[1] and signs("tanh", "x")[1]


def test_a_chain_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [op(f"%k{i}", "sqrt", [f"%k{i - 1}" if i else "%e"], V) for i in range(5)]
    found = model(*chain)
    last = Tensor("s", found.plan.spec.ops[-1].result)
    assert Signs(found).positive(last)
    monkeypatch.setattr(positive, "MAX_DEPTH", 4)
    assert not Signs(found).positive(last)


def ranks(second: str) -> Model:
    """Two ranks add and gather what they hold: one `exp x`, the other another function of it."""
    spec = program([["x", V]], [], [])
    classes = []
    for rank, name in enumerate(("exponential", second)):
        ops = [
            op("%0", name, ["x"], V),
            op("%1", "all_reduce", ["%0"], V, group="r", kind="add", seq=0),
            op("%2", "all_gather", ["%0"], "f32[8]", group="r", dim=0, seq=1),
        ]
        box = {"r": [rank, rank + 1]}
        classes.append({"name": f"c{rank}", "box": box, "program": program([["x", V]], ops, [])})
    group = {"r": {"axes": ["r"], "ranks": [[0, 1]]}}
    return Model(read_plan(dump(plan_of([["r", 2]], spec, classes, [], [], group))))


def test_collectives_need_all_ranks() -> None:
    for second, good in (("exponential", True), ("logistic", True), ("tanh", False)):
        asked = Signs(ranks(second))
        for value in ("%1", "%2"):
            assert asked.positive(Tensor("c0", value)) is good
        assert asked.positive(Reduced("add", ("r",), (Tensor("c0", "%0"), Tensor("c1", "%0")))) is good


def body(outer: str, sign: str) -> Model:
    """A function that is called with ``exp x`` and with another function of x."""
    inner = program([["a", V]], [op("%0", "sqrt", ["a"], V)], [["y", "%0"]])
    ops = [
        op("%0", "exponential", ["x"], V),
        op("%1", outer, ["x"], V),
        [["%2"], "call", ["%0"], "f", 0],
        [["%3"], "call", ["%1"], "f", 1],
        op("%4", sign, ["%3"], V),
    ]
    spec = program([["x", V]], ops, [])
    same = [{"name": "c0", "box": {"r": [0, 1]}, "program": spec}]
    document = plan_of([["r", 1]], spec, same, [], [])
    document["functions"] = {"f": {"specification": inner, "classes": {"c0": inner}}}
    return Model(read_plan(dump(document)))


def test_calls_pass_signs_on() -> None:
    for outer, good in (("logistic", True), ("tanh", False)):
        found = body(outer, "sqrt")
        assert Signs(found).positive(Tensor("s", "%4")) is good
        inside = Model(found.plan.functions["f"], "f", found.plan)
        assert Signs(inside).positive(Tensor("s", "%0")) is good and Signs(inside).finite(Tensor("s", "a"))
