"""Tensors as the rules see them: who is reduced, how literals are read, what comments say."""

from __future__ import annotations

import sys
from pathlib import Path

from checker.language.proof import (
    Reduced,
    Tensor,
)
from checker.reading.plan import read_plan
from checker.rules.model import Model

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program


def c0(value: str) -> Tensor:
    return Tensor("c0", value)


def test_who_takes_part_in_a_sum() -> None:
    """A class without the collective is no member of its reduced tensor."""
    reduce = op("%0", "all_reduce", ["x"], "f32[3]", group="b", kind="add", seq=0)
    programs = [program([["x", "f32[3]"]], ops, []) for ops in ([reduce], [])]
    boxes = [{"a": [i, i + 1], "b": [0, 3]} for i in range(2)]
    plan = read_plan(dump(plan_of([["a", 2], ["b", 3]], program([["g", "f32[]"]], [], []), [
        {"name": f"c{i}", "box": boxes[i], "program": p} for i, p in enumerate(programs)],
        [], [], {"b": {"axes": ["b"], "ranks": [[0, 1, 2], [3, 4, 5]]}})))  # fmt: skip
    model = Model(plan)
    ref = model.reduced_of(plan.classes["c0"].program.ops[0], c0("%0"))
    assert ref == Reduced("add", ("b",), (c0("x"),))


def test_literals_are_read() -> None:
    nothing = program([], [], [])
    model = Model(
        read_plan(dump(plan_of([], nothing, [{"name": "c0", "box": {}, "program": nothing}], [], [])))
    )
    assert model.read(Tensor("#b", "true"), ()) == "true" and model.read(Tensor("#b", "false"), ()) == "false"
    assert model.read(Tensor("#f", "-1/2"), ()) == "(- (/ 1.0 2.0))"
    assert model.read(Tensor("#i", "-3"), ()) == "(- 3)"
    infinite = program([], [op("%0", "constant", [], "f32[]", value="inf"),
                            op("%1", "constant", [], "f32[]", value="-inf")], [])  # fmt: skip
    plan = Model(read_plan(dump(plan_of([], infinite, [{"name": "c0", "box": {}, "program": infinite}], [],
                                        []))))  # fmt: skip
    assert [plan.read(c0(v), ()) for v in ("%0", "%1")] == ["pos_inf", "neg_inf"]
