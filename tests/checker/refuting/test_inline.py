"""A plan with its calls written out, as a witness evaluates it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from certificates.plan.functions import inline as written_out
from certificates.plan.writing import dumps
from checker.reading.plan import read_plan
from checker.refuting.inline import inline

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program

from tests.sliced_plans import Sliced


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


def test_each_class_of_a_slice_gets_the_body_of_its_role() -> None:
    """As many ops, meeting among the same classes, as where the emitter writes the calls out."""
    plan = Sliced(2, 2, replicas=3, parts=2).plan()
    ours, theirs = inline(read_plan(dumps(plan))), read_plan(dumps(written_out(plan)))
    assert [o.name for o in ours.spec.ops] == [o.name for o in theirs.spec.ops]
    for name, cls in ours.classes.items():
        other = theirs.classes[name].program
        assert [(o.name, o.type) for o in cls.program.ops] == [(o.name, o.type) for o in other.ops]
    meets = [sorted(sorted(m) for m in p.rendezvous.values()) for p in (ours, theirs)]
    assert meets[0] == meets[1] and ["c00", "c01"] in meets[0]
