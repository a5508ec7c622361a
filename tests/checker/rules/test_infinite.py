"""Where infinite literals may go, and where not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Rejected
from checker.reading.plan import read_plan
from checker.rules.infinite import infinities

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program


def notes(*ops: Any, value: str = "-inf", local: Any = None) -> list[str]:
    """What is assumed of a program in which %0 is an infinite literal and x a number."""
    spec = program(
        [["x", "f32[4]"], ["p", "i1[4]"]], [op("%0", "constant", [], "f32[4]", value=value), *ops], []
    )
    own = local or program([], [], [])
    plan = read_plan(
        dump(
            plan_of(
                [["r", 2]],
                spec,
                [{"name": "c0", "box": {"r": [0, 2]}, "program": own}],
                [],
                [],
                {"g": {"axes": ["r"], "ranks": [[0, 1]]}},
            )
        )
    )
    return infinities(plan)


def unary(name: str, x: str, k: int = 1) -> Any:
    return op(f"%{k}", name, [x], "f32[4]")


def binary(name: str, x: str, y: str, k: int = 1) -> Any:
    return op(f"%{k}", name, [x, y], "f32[4]")


def extremum(kind: str, x: str = "%0", k: int = 1) -> Any:
    return op(f"%{k}", "reduce", [x], "f32[]", dims=[0], kind=kind)


EXP2, NEG2 = unary("exponential", "%1", 2), unary("negate", "%1", 2)
SELECT = op("%1", "select", ["p", "%0", "x"], "f32[4]")
FINE: list[tuple[str, list[Any], int]] = [
    ("-inf", [unary("exponential", "%0")], 0),
    ("-inf", [binary("add", "%0", "x"), EXP2], 0),
    ("-inf", [binary("add", "x", "%0"), EXP2], 0),
    ("-inf", [binary("subtract", "%0", "x"), EXP2], 0),
    ("inf", [binary("subtract", "x", "%0"), EXP2], 0),
    ("inf", [unary("negate", "%0"), EXP2], 0),
    ("-inf", [binary("maximum", "%0", "%0"), EXP2], 0),
    ("-inf", [binary("maximum", "x", "%0"), EXP2], 0),
    ("-inf", [SELECT, EXP2], 0),
    ("inf", [SELECT, NEG2, unary("exponential", "%2", 3)], 0),
    ("-inf", [op("%1", "transpose", ["%0"], "f32[4]", perm=[0]), EXP2], 0),
    ("-inf", [SELECT, extremum("max", "%1", 2)], 1),
    ("inf", [SELECT, extremum("min", "%1", 2)], 1),
    ("-inf", [], 0),
    (
        "-inf",
        [SELECT, extremum("max", "%1", 2), op("%3", "exponential", ["%2"], "f32[]"), unary("negate", "x", 4)],
        1,
    ),
]
WRONG: list[tuple[str, list[Any], str]] = [
    ("inf", [unary("exponential", "%0")], "exponential"),
    ("-inf", [unary("log", "%0")], "log"),
    ("-inf", [binary("add", "%0", "%0")], "add"),
    ("-inf", [binary("subtract", "%0", "%0")], "subtract"),
    ("-inf", [binary("subtract", "x", "%0"), EXP2], "exponential"),
    ("inf", [binary("subtract", "%0", "x"), EXP2], "exponential"),
    ("inf", [binary("add", "x", "%0"), EXP2], "exponential"),
    ("-inf", [unary("negate", "%0"), EXP2], "exponential"),
    ("-inf", [extremum("min")], "reduce"),
    ("inf", [extremum("max")], "reduce"),
    ("-inf", [extremum("add")], "reduce"),
    ("-inf", [binary("multiply", "x", "%0")], "multiply"),
    ("-inf", [binary("divide", "x", "%0")], "divide"),
    ("-inf", [op("%1", "compare", ["%0", "x"], "i1[4]", direction="LT")], "compare"),
    ("-inf", [unary("negate", "%0"), binary("maximum", "%0", "%1", 2)], "maximum"),
    ("-inf", [SELECT, binary("multiply", "%1", "x", 2)], "multiply"),
]


def test_finite_literals_go_anywhere() -> None:
    assert notes(op("%1", "constant", [], "f32[4]", value="2"), binary("multiply", "%1", "x", 2)) == []


@pytest.mark.parametrize("value,ops,count", FINE, ids=lambda v: str(v)[:50])
def test_where_infinite_literals_may_go(value: str, ops: list[Any], count: int) -> None:
    assert len(notes(*ops, value=value)) == count


@pytest.mark.parametrize("value,ops,name", WRONG, ids=lambda v: str(v)[:50])
def test_where_infinite_literals_may_not_go(value: str, ops: list[Any], name: str) -> None:
    with pytest.raises(
        Rejected,
        match=rf"^obligation 2 .* at specification, op %\d: an infinite literal "
        rf"reaches {name}, which is outside the model",
    ):
        notes(*ops, value=value)


def test_an_infinite_literal_crosses_a_collective() -> None:
    """Class c1 sends -inf; c0, which stands before it, receives it and multiplies: refused there."""
    send = [
        op("%0", "constant", [], "f32[2]", value="-inf"),
        op("%1", "slice", ["%0"], "f32[2]", start=[0], stride=[1]),
    ]
    take = [op("%0", "negate", ["x"], "f32[2]"), op("%1", "negate", ["%0"], "f32[2]")]
    gather = op("%2", "all_gather", ["%1"], "f32[4]", group="g", dim=0, seq=0)
    uses = {
        "exponential": op("%3", "exponential", ["%2"], "f32[4]"),
        "multiply": op("%3", "multiply", ["%2", "%2"], "f32[4]"),
    }
    for name, use in uses.items():
        programs = [
            program([["x", "f32[2]"]], [*take, gather, use], []),
            program([["x", "f32[2]"]], [*send, gather], []),
        ]
        plan = read_plan(
            dump(
                plan_of(
                    [["r", 2]],
                    program([], [], []),
                    [
                        {"name": f"c{i}", "box": {"r": [i, i + 1]}, "program": p}
                        for i, p in enumerate(programs)
                    ],
                    [],
                    [],
                    {"g": {"axes": ["r"], "ranks": [[0, 1]]}},
                )
            )
        )
        if name == "exponential":
            assert infinities(plan) == []
        else:
            with pytest.raises(Rejected, match=r"^obligation 2 .* at class c0, op %3: .* reaches multiply"):
                infinities(plan)


@pytest.mark.parametrize(
    ("mask", "want"), [("p", 1), ("true", 0), ("false", None)], ids=["an input", "never", "always"]
)
def test_a_masked_row_of_a_rank_is_assumed_away(mask: str, want: int | None) -> None:
    given = [["x", "f32[4]"], ["p", "i1[4]"]]
    local = program(
        given,
        [
            op("%0", "constant", [], "f32[4]", value="-inf"),
            op("%1", "constant", [], "i1[4]", value="false" if mask == "p" else mask),
            op("%2", "select", ["p" if mask == "p" else "%1", "x", "%0"], "f32[4]"),
            op("%3", "all_reduce", ["%2"], "f32[4]", group="g", kind="max", seq=0),
        ],
        [],
    )
    if want is None:
        with pytest.raises(Rejected, match=r"^obligation 2 .* class c0: constants mask a whole row that %3"):
            notes(local=local)
    else:
        said = "class c0: no row that %3 (all_reduce max) reduces is completely masked"
        assert notes(local=local) == [said] * want
    local["ops"][3][4]["kind"] = "add"
    with pytest.raises(Rejected, match=r"^obligation 2 .* at class c0, op %3: .* reaches all_reduce"):
        notes(local=local)
