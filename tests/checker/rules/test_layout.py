"""Layout stages: value symbols are introduced once, by one integer element, from earlier symbols."""

from __future__ import annotations

import copy
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed, Rejected
from checker.language.affine import Affine
from checker.language.proof import BoundValue, Def, Fact, LayoutStage, Tensor
from checker.reading.plan import read_plan
from checker.rules.layout import Layout
from checker.rules.model import Model

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, piece, plan_of, program, relation, row_parallel, z

Z, V, W, Q = (Affine.symbol(s) for s in ("z0", "v0", "v1", "q0"))
X, INDEX, G = (Tensor("s", t) for t in ("x", "i", "%0"))


def stage(*premises: Any) -> Layout:
    """y = x[i[k]] for k < 2, with fresh symbols v0, v1 and q0."""
    spec = program(
        [["x", "f32[4]"], ["i", "i64[2]"]],
        [op("%0", "gather", ["x", "i"], "f32[2]", axis=0, batch_dims=0)],
        [],
    )
    plan = read_plan(
        dump(
            plan_of(
                [["r", 1]],
                spec,
                [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}],
                [],
                [],
            )
        )
    )
    goal = Fact(G, G, Fraction(1), (("z0", 0, 2),), (Z,), (Z,))
    symbols = (("v0", None), ("q0", (0, 4)), ("v1", None))
    return Layout(Model(plan), [goal], LayoutStage(0, "", "0001", symbols, premises), "here")


def test_a_value_symbol_has_one_meaning() -> None:
    assert len(stage(BoundValue(INDEX, (Z,), "v0"), Def(G, (Z,), (V,))).assertions) == 3
    for premises in (
        (BoundValue(INDEX, (Z,), "v0"), BoundValue(INDEX, (Affine(0),), "v0")),
        (BoundValue(INDEX, (Affine(1),), "v0"), Def(G, (Z,), (V,))),
        (Def(G, (Z,), (V,)), Def(G, (Affine(1),), (V,))),
    ):
        with pytest.raises(Rejected, match=r"obligation 6 .*v0 is introduced twice"):
            stage(*premises)


@pytest.mark.parametrize(
    "premise,reason",
    [
        (BoundValue(INDEX, (V,), "v0"), "depends on itself"),
        (BoundValue(INDEX, (W,), "v0"), "depends on itself or on a later"),
        (Def(G, (V,), (V,)), "depends on itself"),
        (BoundValue(INDEX, (Z,), "q0"), "no fresh v symbol"),
        (BoundValue(INDEX, (Z,), "z0"), "no fresh v symbol"),
        (Def(G, (Z,), (Q,)), "no fresh v symbol"),
        (Def(G, (Z,), (Z,)), "no fresh v symbol"),
        (BoundValue(X, (Z,), "v0"), "holds no integers"),
    ],
)
def test_what_names_no_value(premise: Any, reason: str) -> None:
    with pytest.raises(Rejected, match=f"obligation 6 .*{reason}"):
        stage(premise)


@pytest.mark.parametrize("arg", [(), (V, V), (V.shift(1),), (Affine(0),)])
def test_a_gather_reads_at_its_symbol(arg: Any) -> None:
    with pytest.raises(
        Rejected,
        match=r"obligation 5 .*: gather of s:%0: the operand index does not fit"
        if arg
        else r"obligation [56] ",
    ):
        stage(Def(G, (Z,), arg))


def test_a_sequence_number_occurs_once_in_a_class() -> None:
    plan = copy.deepcopy(row_parallel().plan)
    plan["classes"][0]["program"]["ops"].append(
        op("%2", "all_reduce", ["%0"], "f32[4,8]", group="g", kind="add", seq=0)
    )
    with pytest.raises(Malformed, match="its seq occurs twice"):
        read_plan(dump(plan))


def test_booleans_are_not_reduced() -> None:
    given = program([["p", "i1[2]"]], [], [])
    whole = piece("c0", [2], [z(0)], [z(0)])
    plan = plan_of(
        [["r", 2]],
        given,
        [{"name": "c0", "box": {"r": [0, 2]}, "program": given}],
        [relation("p", "p", whole, reduce=["max", ["r"]])],
        [],
    )
    with pytest.raises(Malformed, match="unknown reduction"):
        read_plan(dump(plan))
    for wrong in (["mean", ["r"]], ["add", []], ["add", ["s"]], ["add"], "add"):
        plan["inputs"][0]["reduce"] = wrong
        with pytest.raises(Malformed):
            read_plan(dump(plan))
