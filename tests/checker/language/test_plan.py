"""A plan as data: boxes, axes, and what stands for an input of a function."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checker.language.plan import apart
from checker.reading.plan import read_plan

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (((0, 2),), ((2, 4),), True),
        (((2, 4),), ((0, 2),), True),
        (((0, 3),), ((2, 4),), False),
        (((0, 4),), ((1, 2),), False),
        (((0, 2), (0, 2)), ((0, 2), (2, 3)), True),
        (((0, 2), (0, 2)), ((1, 2), (1, 3)), False),
        ((), (), False),
    ],
)
def test_boxes_are_apart_if_an_axis_tells_them(a: tuple, b: tuple, want: bool) -> None:  # type: ignore[type-arg]
    """Classes that share a rank would give it two programs."""
    assert apart(a, b) == want


def test_what_stands_for_an_input_at_each_call() -> None:
    """The operand at the input's place, in the order of the calls, of this function and this program only."""
    f = program([["a", "f32[4]"], ["b", "f32[4]"]], [op("%0", "add", ["a", "b"], "f32[4]")], [["r", "%0"]])
    g = program([["b", "f32[4]"]], [op("%0", "negate", ["b"], "f32[4]")], [["r", "%0"]])

    def main(first: str, second: str) -> dict[str, object]:
        calls = [
            [["%0"], "call", [first, second], "f", 0],
            [["%1"], "call", [second], "g", 0],
            [["%2"], "call", ["%1", "%0"], "f", 1],
        ]
        return program([["x", "f32[4]"], ["y", "f32[4]"]], calls, [["z", "%2"]])

    document = plan_of(
        [["r", 2], ["q", 3]],
        main("x", "y"),
        [{"name": "c0", "box": {"r": [0, 2], "q": [0, 3]}, "program": main("y", "x")}],
        [],
        [],
    )
    document["functions"] = {
        name: {"specification": body, "classes": {"c0": body}} for name, body in (("f", f), ("g", g))
    }
    plan = read_plan(dump(document))
    assert plan.operands("f", "s", "a") == [("s", "x"), ("s", "%1")]
    assert plan.operands("f", "s", "b") == [("s", "y"), ("s", "%0")]
    assert plan.operands("f", "c0", "a") == [("c0", "y"), ("c0", "%1")]
    assert plan.operands("g", "c0", "b") == [("c0", "x")]
    assert (plan.axis("r"), plan.axis("q")) == (0, 1) and plan.box("c0") == {"r": (0, 2), "q": (0, 3)}
