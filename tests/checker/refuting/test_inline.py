"""A plan with its calls written out, as a witness evaluates it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from checker.reading.plan import read_plan
from checker.refuting.inline import inline

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program


def test_calls_are_written_out_where_they_stand() -> None:
    """Functions of one output, called with equal numbers: no value of one is taken for another's."""

    def body(name: str) -> Any:
        return program([["a", "f32[4]"]], [op("%0", name, ["a"], "f32[4]")], [["b", "%0"]])

    outer = program(
        [["x", "f32[4]"]],
        [[["%0"], "call", ["x"], "f", 0], [["%1"], "call", ["%0"], "g", 0], [["%2"], "call", ["%1"], "f", 1]],
        [["y", "%2"]],
    )
    plan = plan_of([["r", 1]], outer, [{"name": "c0", "box": {"r": [0, 1]}, "program": outer}], [], [])
    plan["functions"] = {
        f: {"specification": body(n), "classes": {"c0": body(n)}}
        for f, n in (("f", "negate"), ("g", "exponential"))
    }
    flat = inline(read_plan(dump(plan)))
    for written in (flat.spec, flat.classes["c0"].program):
        assert [o.name for o in written.ops] == ["negate", "exponential", "negate"]
        values = ["x", *(o.result for o in written.ops)]
        assert len(set(values)) == 4 and dict(written.outputs) == {"y": values[-1]}
        assert [o.operands for o in written.ops] == [(v,) for v in values[:-1]]
