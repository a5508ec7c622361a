"""How many representatives a class needs: what is counted, and what a stage with fewer is refused for."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checker.errors import Rejected, Undecided
from checker.language.proof import Element, Tensor
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof
from checker.rules import widths
from checker.rules.algebra import Algebra
from checker.rules.model import Model
from checker.rules.widths import Width, check_widths

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import definition, dump, fact, one_case, op, plan_of, program

SCALAR = ["g", "f32[]"]
WHOLE: list[Any] = [[[0, ["i"]]]]


def lit(value: str) -> Any:
    return ("lit", Fraction(value))


@pytest.mark.parametrize(
    "ops,width",
    [
        ([("%0", "reduce", ["x"], "f32[]", {"dims": [0], "kind": "add"})], 1),
        ([("%0", "reduce", ["x"], "f32[]", {"dims": [0], "kind": "max"})], 2),
        (
            [
                (
                    "%0",
                    "dot_general",
                    ["x", "x"],
                    "f32[]",
                    {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [0], "rhs_contract": [0]},
                )
            ],
            1,
        ),
        (
            [
                ("%0", "reduce", ["x"], "f32[]", {"dims": [0], "kind": "add"}),
                ("%1", "multiply", ["%0", "%0"], "f32[]", {}),
            ],
            2,
        ),
        (
            [
                ("%0", "reduce", ["x"], "f32[]", {"dims": [0], "kind": "add"}),
                ("%1", "multiply", ["%0", "%0"], "f32[]", {}),
                ("%2", "multiply", ["%1", "%0"], "f32[]", {}),
            ],
            3,
        ),
        (
            [
                ("%0", "reduce", ["x"], "f32[]", {"dims": [0], "kind": "add"}),
                ("%1", "multiply", ["%0", "%0"], "f32[]", {}),
                ("%2", "add", ["%1", "%0"], "f32[]", {}),
            ],
            2,
        ),
        (
            [
                ("%0", "reduce", ["x"], "f32[]", {"dims": [0], "kind": "add"}),
                ("%1", "exponential", ["%0"], "f32[]", {}),
            ],
            3,
        ),
        (
            [
                ("%0", "exponential", ["x"], "f32[4]", {}),
                ("%1", "reduce", ["%0"], "f32[]", {"dims": [0], "kind": "add"}),
            ],
            2,
        ),
        (
            [
                ("%0", "negate", ["x"], "f32[4]", {}),
                ("%1", "reduce", ["%0"], "f32[]", {"dims": [0], "kind": "add"}),
                ("%2", "maximum", ["%1", "%1"], "f32[]", {}),
            ],
            3,
        ),
    ],
)
def test_widths(ops: list[Any], width: int) -> None:
    """Of the premises' last result, which the goal claims to be itself (docs/certificate.md, Widths)."""
    n = 40
    ops = [(r, name, x, t.replace("4", str(n)), a) for r, name, x, t, a in ops]
    spec = program([["x", f"f32[{n}]"]], [op(r, name, x, t, **a) for r, name, x, t, a in ops], [])
    plan = plan_of(
        [["r", 1]], spec, [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}], [], []
    )
    last = f"s:{ops[-1][0]}"
    trees = [["s:x", WHOLE], *([f"s:{r}", WHOLE if "[]" not in t else []] for r, _, _, t, _ in ops)]

    def made(m: int) -> None:
        premises = [
            definition(f"s:{r}", *([] if "[]" in t else [[0, k]]))
            for r, _, _, t, _ in ops
            for k in range(1 if "[]" in t else m)
        ]
        proof = read_proof(
            dump(
                {
                    "format": "trainverify-proof",
                    "version": 1,
                    "facts": [fact(last, last, [], [], [])],
                    "stages": [
                        {
                            "kind": "algebra",
                            "goal": 0,
                            "title": "t",
                            "classes": [["i", n, m]],
                            "trees": trees,
                            "goal_at": [],
                            "cases": [{"reps": [], "premises": premises, "file": "0001"}],
                        }
                    ],
                }
            )
        )
        stage = Algebra(Model(read_plan(dump(plan))), proof.facts, proof.stages[0], "here")  # type: ignore[arg-type]
        check_widths(stage, "here")

    made(width)
    if width > 1:
        with pytest.raises(
            Rejected,
            match=rf"^obligation 9 .* at here, case 0: class i of size {n} has "
            rf"{width - 1} representatives, {width} are needed",
        ):
            made(width - 1)


def test_only_what_the_goal_rests_on_counts() -> None:
    """An exponential of a sum needs three representatives, in a goal; beside one, none."""
    total = op("%0", "reduce", ["x"], "f32[]", dims=[0], kind="add")
    spec = program([SCALAR, ["x", "f32[4]"]], [total, op("%1", "exponential", ["%0"], "f32[]")], [])
    premises = [definition("s:%0"), definition("s:%1")]
    assert one_case(premises, spec=spec, trees={"s:x": WHOLE, "s:%0": [], "s:%1": []}).cases


def at(*variables: str) -> Element:
    return Element(Tensor("s", "x"), tuple((0, v) for v in variables))


def over(variable: str, node: Any, function: str | None = None) -> Any:
    return ("fold" if function else "sum", function, ((variable,), node))


I0, J0 = at("i.b0"), at("j.b0")
SUM_I, SUM_J = over("i.b0", I0), over("j.b0", J0)
Counted = dict[str, int]


@pytest.mark.parametrize(
    "node,free,products,inside,applications",
    [
        (at("i.g0", "j.b1"), {"i.g0", "j.b1"}, {}, {}, {}),
        (lit("3"), set(), {}, {}, {}),
        (SUM_I, set(), {"i": 1}, {"i": 1}, {}),
        (over("i.b0", at("i.b0", "j.b0")), {"j.b0"}, {"i": 1}, {"i": 1}, {}),
        (over("i.b0", over("i.b1", at("i.b0", "i.b1"))), set(), {"i": 2}, {"i": 2}, {}),
        (("mul", SUM_I, SUM_J), set(), {"i": 1, "j": 1}, {"i": 1, "j": 1}, {}),
        (("mul", SUM_I, SUM_I), set(), {"i": 2}, {"i": 2}, {}),
        (("mul", lit("2"), SUM_I), set(), {"i": 1}, {"i": 1}, {}),
        (("mul", SUM_I, at("j.b7")), {"j.b7"}, {"i": 1}, {"i": 1}, {}),
        (("+", ("mul", SUM_I, SUM_I), SUM_J, SUM_I), set(), {"i": 2, "j": 1}, {"i": 2, "j": 1}, {}),
        (("-", SUM_J, ("neg", SUM_I)), set(), {"i": 1, "j": 1}, {"i": 1, "j": 1}, {}),
        (("*", Fraction(2), SUM_I), set(), {"i": 1}, {"i": 1}, {}),
        (("fexp", SUM_I), set(), {}, {"i": 1}, {"fexp": [({"i": 1}, {"i": 1})]}),
        (("fexp", I0), {"i.b0"}, {}, {}, {"fexp": [({"i": 1}, {})]}),
        (("fexp", at("i.g0")), {"i.g0"}, {}, {}, {"fexp": [({}, {})]}),
        (("fexp", at("i.b0", "i.b1", "j.v0")), {"i.b0", "i.b1", "j.v0"}, {}, {},
         {"fexp": [({"i": 2, "j": 1}, {})]}),
        (over("i.b0", ("fexp", I0)), set(), {"i": 1}, {"i": 1}, {"fexp": [({"i": 1}, {})]}),
        (("mul", SUM_J, ("fexp", SUM_I)), set(), {"j": 1}, {"i": 1, "j": 1},
         {"fexp": [({"i": 1}, {"i": 1})]}),
        (("mul", ("fexp", SUM_I), SUM_J), set(), {"j": 1}, {"i": 1, "j": 1},
         {"fexp": [({"i": 1}, {"i": 1})]}),
        (("fexp", ("mul", I0, SUM_I)), {"i.b0"}, {}, {"i": 1}, {"fexp": [({"i": 2}, {"i": 1})]}),
        (over("i.b0", I0, "max2"), set(), {}, {"i": 1}, {"max2": [({"i": 1}, {})]}),
        (over("i.b0", over("j.b0", at("i.b0", "j.b0")), "min2"), set(), {"j": 1}, {"i": 1, "j": 1},
         {"min2": [({"i": 1, "j": 1}, {"j": 1})]}),
        (("max2", SUM_I, I0), {"i.b0"}, {"i": 1}, {"i": 1}, {"max2": [({"i": 2}, {"i": 1})]}),
        (("cmp_lt", SUM_I, SUM_J), set(), {}, {"i": 1, "j": 1},
         {"cmp_lt": [({"i": 1, "j": 1}, {"i": 1, "j": 1})]}),
    ],
)  # fmt: skip
def test_what_is_counted(
    node: Any, free: set[str], products: Counted, inside: Counted, applications: dict[str, Any]
) -> None:
    """Free variables, summed ones in one product, bound ones inside; and what an application counts."""
    stage: Any = SimpleNamespace(stage=SimpleNamespace(classes={"i": (99, 1), "j": (99, 1)}), where="here")
    width = Width(stage, {})
    assert width.measure(node) == (free, products, inside)
    assert width.applications == applications


@pytest.mark.parametrize(
    "left,right,free,i,j",
    [
        (lit("1"), lit("1"), [], 1, 1),
        (lit("1"), lit("1"), ["i", "i", "j"], 2, 1),
        (SUM_I, ("mul", SUM_J, SUM_J), [], 1, 2),
        (SUM_I, ("mul", SUM_J, SUM_J), ["i", "j"], 2, 3),
        (("fexp", SUM_I), lit("1"), [], 3, 1),
        (("fexp", SUM_I), ("fexp", SUM_J), [], 3, 3),
        (
            ("mul", ("mul", ("fexp", SUM_I), ("flog", SUM_I)), ("mul", ("fsin", SUM_I), ("fcos", SUM_I))),
            lit("1"),
            [],
            3,
            1,
        ),
        (("fexp", SUM_I), ("flog", SUM_J), ["j"], 3, 4),
        (over("i.b0", ("fexp", I0)), lit("1"), [], 2, 1),
        (over("i.b0", ("fexp", I0)), ("fexp", ("mul", SUM_I, SUM_I)), [], 6, 1),
        (over("i.b0", ("fexp", I0)), ("flog", ("mul", SUM_I, SUM_I)), [], 6, 1),
        (("mul", over("i.b0", ("fexp", I0)), over("i.b0", ("fexp", I0))), lit("1"), [], 2, 1),
        (over("i.b0", I0, "max2"), over("j.b0", J0, "max2"), [], 2, 2),
        (over("i.b0", over("i.b1", ("fexp", at("i.b0", "i.b1")))), ("fexp", SUM_I), [], 4, 1),
        (over("i.b0", over("i.b1", ("fexp", at("i.b0", "i.b1")))), ("flog", SUM_I), [], 4, 1),
    ],
    ids=str,
)
def test_how_many_representatives(left: Any, right: Any, free: list[str], i: int, j: int) -> None:
    """w = max(F + B, F + s_x + s_y + max(b_x, b_y)), pair by pair of one function's applications."""
    stage: Any = SimpleNamespace(stage=SimpleNamespace(classes={"i": (99, 1), "j": (99, 1)}), where="here")
    width = Width(stage, {})
    found = width.result((left, right), free)
    b = [width.measure(side)[1] for side in (left, right)]
    for cls, want in (("i", i), ("j", j)):
        pairs = [
            x[0].get(cls, 0) + y[0].get(cls, 0) + max(x[1].get(cls, 0), y[1].get(cls, 0))
            for apps in width.applications.values()
            for x in apps
            for y in apps
        ]
        assert found[cls] == want == max(1, free.count(cls) + max([*(m.get(cls, 0) for m in b), *pairs]))


def test_the_work_of_measuring_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    stage: Any = SimpleNamespace(stage=SimpleNamespace(classes={}), where="here")
    for cap in (1, 0):
        monkeypatch.setattr(widths, "MAX_STEPS", cap)
        if cap:
            assert Width(stage, {}).measure(SUM_I)
        else:
            with pytest.raises(Undecided, match="here: the expression is too large"):
                Width(stage, {}).measure(SUM_I)
