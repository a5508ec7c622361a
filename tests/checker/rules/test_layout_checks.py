"""Layout stages and reduced tensors: each check of layout.py and model.py by what it alone refuses."""

from __future__ import annotations

import sys
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Rejected
from checker.language.affine import Affine
from checker.language.proof import (
    BoundPart,
    BoundSymbol,
    BoundValue,
    Def,
    Element,
    Evident,
    Fact,
    Hyp,
    LayoutStage,
    Range,
    Reduced,
    Tensor,
)
from checker.reading.plan import read_plan
from checker.rules.layout import Layout
from checker.rules.model import Model
from checker.rules.terms import _Printer

sys.path.insert(0, str(Path(__file__).parents[1]))
import samples
from samples import dump, op, plan_of, program

A0, B0 = Affine.symbol("a"), Affine.symbol("b")
X, Y, W, V = (Affine.symbol(s) for s in ("x", "y", "w", "v0"))
Q = [Affine.symbol(f"q{i}") for i in range(5)]
ZERO = Affine(0)


def local(name: str) -> dict[str, Any]:
    """The program of a class; that of the second has other names."""
    return program(
        [["x", "f32[4,6]"], ["n", "i64[4]"], ["p", "i1[4]"], ["u", "f32[1,4]"]],
        [
            op("%0", "negate", ["x"], "f32[4,6]"),
            op("%1", "all_gather", ["%0"], "f32[8,6]", group="a", dim=0, seq=0),
            op("%2", "all_to_all", ["x"], "f32[8,3]", group="a", split_dim=1, concat_dim=0, seq=1),
            op("%3", "all_to_all", ["x"], "f32[4,6]", group="a", split_dim=1, concat_dim=1, seq=2),
            op("%4", "reshape", ["u"], "f32[2,2]"),
            op("%5", "reduce", ["x"], "f32[4]", dims=[1], kind="add"),
            op(
                "%6",
                "dot_general",
                ["x", "x"],
                "f32[4,4]",
                lhs_batch=[],
                rhs_batch=[],
                lhs_contract=[1],
                rhs_contract=[1],
            ),
            op("%7", "abs", ["n"], "i64[4]"),
            op("%8", "multiply", ["n", "n"], "i64[4]"),
            op("%9", "convert", ["p"], "f32[4]"),
            op("%10", "abs", ["x"], "f32[4,6]"),
            op("%17", "convert", ["p"], "i64[4]"),
            op("%11", "constant", [], "i64[4]", value="3"),
            op("%12", "multiply", ["n", "%11"], "i64[4]"),
            op("%13", "all_reduce", ["x"], "f32[4,6]", group="both", kind="add", seq=3),
            op("%14", "reshape", ["x"], "f32[2,2,6]"),
            op("%16", "concatenate", ["x", "x", "x"], "f32[12,6]", dim=0),
            *([op("%15", "negate", ["x"], "f32[4,6]")] if name == "c1" else []),
        ],
        [],
    )


PLAN = read_plan(
    dump(
        plan_of(
            [["a", 2], ["b", 3]],
            program(
                [["x", "f32[4,6]"], ["n", "i64[4]"], ["g", "f32[]"], ["m", "f32[4,3]"]],
                [op("%0", "negate", ["x"], "f32[4,6]")],
                [],
            ),
            [
                {"name": f"c{i}", "box": {"a": [i, i + 1], "b": [0, 3]}, "program": local(f"c{i}")}
                for i in range(2)
            ],
            [],
            [],
            {
                "a": {"axes": ["a"], "ranks": [[0, 3], [1, 4], [2, 5]]},
                "both": {"axes": ["a", "b"], "ranks": [[0, 1, 2, 3, 4, 5]]},
            },
            {"n": [-2, 9]},
        )
    )
)
RANGES = (("a", 0, 1), ("b", 0, 3), ("x", 0, 4), ("y", 0, 6), ("w", -1, 5))
G = Tensor("s", "g")


def c0(value: str) -> Tensor:
    return Tensor("c0", value)


def stage(*premises: Any, facts: tuple[Fact, ...] = (), fresh: Any = None) -> list[str]:
    """The printed premises of a stage whose goal says nothing and has the symbols above."""
    goal = Fact(G, G, Fraction(1), RANGES, (), ())
    symbols = fresh or (*((f"q{i}", (0, n)) for i, n in enumerate((2, 2, 4, 1, 4))), ("v0", None))
    layout = Layout(
        Model(PLAN), [*facts, goal], LayoutStage(len(facts), "", "0001", symbols, premises), "here"
    )
    show = _Printer("t", list(layout.ranges))
    return [show(term) for _, term in layout.assertions[:-1]]


refuses = partial(samples.refuses, at=r" at here, premise \d+")


RESHAPE = (A0, B0, X, Y)


@pytest.mark.parametrize(
    "premise,number,reason",
    [
        (BoundPart(c0("%4"), (A0, B0, Q[0]), (A0, B0, ZERO, Q[2]), 0), 5, "has 4 coordinates, 3 given"),
        (Def(c0("%0"), (A0, B0, X), None), 5, "c0:%0 has 4 coordinates, 3 given"),
        (BoundValue(c0("n"), (A0, B0), "v0"), 5, "c0:n has 3 coordinates, 2 given"),
        (Range("n", ()), 5, "s:n has 1 coordinates, 0 given"),
        (Def(c0("x"), RESHAPE, None), 5, "c0:x is no result of an op"),
        (Def(c0("%9"), (A0, B0, X), (X,)), 5, "operand index is missing or out of place"),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), None), 5, "operand index is missing or out of place"),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), ()), 6, "needs the operand's 4 coordinates"),
        (
            Def(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, B0, ZERO)),
            6,
            "reshape of c0:%4 needs the operand's 4 coord",
        ),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, B0, Q[3], Q[2])), 6, "coordinate 2 of size 1 must be 0"),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, ZERO, ZERO, Q[2])), 6, "not regrouped changes"),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, B0, ZERO, Q[2].shift(1))), 6, "neither resolved nor fresh"),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, B0, ZERO, Q[1])), 6, "neither resolved nor fresh"),
        (Def(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, B0, ZERO, X)), 6, "x is no fresh q symbol"),
        (
            Def(c0("%14"), (A0, B0, Q[0], Q[0], Y), (A0, B0, Q[2], X)),
            6,
            "not regrouped changes|neither resolved",
        ),
        (Def(c0("%3"), RESHAPE, RESHAPE), 5, "all_to_all with one dimension for both has no def"),
        (Def(c0("%5"), (A0, B0, X), None), 5, "reduce of c0:%5 has no layout def"),
        (Def(c0("%6"), (A0, B0, X, X), None), 5, "dot_general of c0:%6 has no layout def"),
        (Def(c0("%7"), (A0, B0, X), None), 5, "abs of c0:%7 has no layout def"),
        (Def(c0("%8"), (A0, B0, X), None), 5, "an integer product in c0:%8 has no layout def"),
        (Def(c0("%16"), (A0, B0, X.shift(12), Y), None), 5, "c0:%16 is read beyond its end"),
        (BoundSymbol("v0"), 6, "v0 has no range"),
        (BoundSymbol("zz"), 6, "zz has no range"),
        (BoundValue(c0("x"), RESHAPE, "v0"), 6, "c0:x holds no integers"),
        (BoundValue(c0("p"), (A0, B0, X), "v0"), 6, "c0:p holds no integers"),
        (Range("x", (X, Y)), 6, "the input relation declares no range of x"),
        (Evident(c0("x"), RESHAPE), 6, "c0:x holds no integers"),
        (Evident(c0("%17"), (A0, B0)), 5, "c0:%17 has 3 coordinates, 2 given"),
        (Evident(c0("n"), (A0, B0, X)), 6, "the ops show no range of c0:n"),
        (Evident(c0("%8"), (A0, B0, X)), 6, "the ops show no range of c0:%8"),
        (Evident(Tensor("#i", "7"), ()), 6, "the ops show no range of #i:7"),
        (Evident(Reduced("add", ("a", "b"), (c0("%17"), Tensor("c1", "%17"))), (X,)), 6, "no range of add"),
        (BoundPart(c0("%4"), (A0, B0, Q[0], Q[1]), (A0, B0, ZERO, Q[2]), 1), 6, "c0:%4 has no part 1"),
        (Hyp((), (), (), "add"), 4, "without lift has one fact and kind add"),
        (Hyp((0,), (X,), ("b",), "add"), 4, "is not|does not run|otherwise"),
    ],
)
def test_a_premise_alone(premise: Any, number: int, reason: str) -> None:
    other = Fact(G, G, Fraction(1), (("x", 0, 4),), (), ())
    with refuses(number, reason):
        stage(premise, facts=(other,))


def test_what_those_premises_say_when_right() -> None:
    at = (A0, B0, Q[0], Q[1])
    assert stage(
        BoundPart(c0("%4"), at, (A0, B0, ZERO, Q[2]), 0), Def(c0("%4"), at, (A0, B0, ZERO, Q[2])),
        Def(c0("%10"), (A0, B0, W, Y), None), Def(c0("%12"), (A0, B0, X), None), BoundSymbol("w"),
        BoundValue(c0("n"), (A0, B0, W), "v0"), Range("n", (W,)), Evident(c0("%17"), (A0, B0, W)),
    ) == [
        "(= (+ (* 2 q0) q1) q2)", "(= (t0 a b q0 q1) (t1 a b 0 q2))",
        "(=> (and (<= 0 w) (< w 4)) (= (t2 a b w y) (fabs (t3 a b w y))))",
        "(= (t4 a b x) (* 3 (t5 a b x)))", "(and (<= (- 1) w) (< w 5))",
        "(=> (and (<= 0 w) (< w 4)) (= v0 (t5 a b w)))",
        "(=> (and (<= 0 w) (< w 4)) (and (<= (- 2) (t6 w)) (< (t6 w) 9)))",
        "(=> (and (<= 0 w) (< w 4)) (and (<= 0 (t7 a b w)) (< (t7 a b w) 2)))"]  # fmt: skip
    resolved = stage(Def(c0("%14"), (A0, B0, *(Affine(1),) * 2, Y), (A0, B0, Affine(3), Y)))
    assert resolved == ["(= (t0 a b 1 1 y) (t1 a b 3 y))"], (
        "no fresh symbol where the equation is an identity"
    )


@pytest.mark.parametrize("shift,read", [
    (4, "(t1 a b x y)"),  # 4 to 7: the second part
    (5, "(ite (< (+ x 5) 8) (t1 a b (+ x 1) y) (t1 a b (+ x (- 3)) y))"),  # 5 to 8
    (8, "(t1 a b x y)"),
])  # fmt: skip
def test_a_concatenation_lists_the_parts_that_its_index_meets(shift: int, read: str) -> None:
    """Each of the three has four rows."""
    said = stage(Def(c0("%16"), (A0, B0, X.shift(shift), Y), None))
    assert said == [f"(= (t0 a b (+ x {shift}) y) {read})"]


# Families ---------------------------------------------------------------------------------------------------


def test_a_family_is_read_where_classes_are() -> None:
    """The coordinate q0 of `a` reaches both classes, its value 1 the second alone."""
    at, arg = (A0, B0, Affine.symbol("q4").shift(4), Y), (Affine(1), B0, Q[4], Y)
    assert stage(Def(c0("%1"), at, arg)) == ["(= (t0 a b (+ q4 4) y) (t1 1 b q4 y))"]
    at, arg = (A0, B0, Affine.total([(4, Q[0]), (1, Q[4])]), Y), (Q[0], B0, Q[4], Y)
    assert stage(Def(c0("%1"), at, arg)) == [
        "(= (t0 a b (+ (* 4 q0) q4) y) (ite (< q0 1) (t1 q0 b q4 y) (t2 q0 b q4 y)))"
    ]


def test_a_class_that_takes_no_part_is_not_read() -> None:
    """Only c0 reduces over `b`; at a mesh form that may reach c1 there is nothing to read, nor is there where
    no class is."""
    gather = op("%0", "all_gather", ["x"], "f32[9]", group="b", dim=0, seq=0)
    own = program([["x", "f32[3]"]], [gather], [])
    idle = program([["x", "f32[3]"]], [], [])
    plan = read_plan(
        dump(
            plan_of(
                [["a", 2], ["b", 3]],
                program([["g", "f32[]"]], [], []),
                [
                    {"name": c, "box": {"a": [i, i + 1], "b": [0, 3]}, "program": p}
                    for i, (c, p) in enumerate((("c0", own), ("c1", idle)))
                ],
                [],
                [],
                {"b": {"axes": ["b"], "ranks": [[0, 1, 2], [3, 4, 5]]}},
            )
        )
    )
    symbols = (("a", -1, 3), ("q0", 0, 3), ("x", 0, 3))
    goal = Fact(G, G, Fraction(1), symbols, (), ())

    def family(mesh: Affine) -> Layout:
        z = Affine.total([(3, Q[0]), (1, X)])
        return Layout(
            Model(plan),
            [goal],
            LayoutStage(0, "", "0001", (), (Def(c0("%0"), (mesh, ZERO, z), (mesh, Q[0], X)),)),
            "here",
        )

    assert family(ZERO).assertions
    with pytest.raises(Rejected, match=r"^obligation 14 .*: class c1 takes no part in %0"):
        family(A0)
    with pytest.raises(Rejected, match=r"^obligation 14 .*: no class is reached by %0"):
        family(A0.shift(5))


# Reduced tensors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind,axes,of,reason",
    [
        ("add", ("a", "b"), ("c0:x", "c1:x"), None),
        ("add", ("a",), ("c0:x", "c1:%15"), None),
        ("add", ("b",), ("c0:x",), None),
        ("max", ("a",), ("c0:n", "c1:n"), None),
        ("add", (), ("c0:x",), "axes must be mesh axes in mesh order"),
        ("add", ("b", "a"), ("c0:x", "c1:x"), "axes must be mesh axes in mesh order"),
        ("add", ("a", "z"), ("c0:x", "c1:x"), "axes must be mesh axes in mesh order"),
        ("add", ("a", "a"), ("c0:x", "c1:x"), "axes must be mesh axes in mesh order"),
        ("add", ("a",), ("c0:x", "s:x"), "a member is no tensor of the plan"),
        ("add", ("a",), ("c0:x", "c9:x"), "a member is no tensor of the plan"),
        ("add", ("a",), ("c1:x", "c0:x"), "members must stand in plan order"),
        ("add", ("a",), ("c0:x", "c0:x"), "members must stand in plan order"),
        ("add", ("a",), ("c0:x", "c1:%1"), "members must have one numeric type"),
        ("add", ("a",), ("c0:x", "c1:n"), "members must have one numeric type"),
        ("max", ("a",), ("c0:p", "c1:p"), "members must have one numeric type"),
        ("add", ("b",), ("c0:x", "c1:x"), "classes disagree outside the axes"),
        ("add", ("a",), ("c0:x",), "the classes do not tile the axes"),
        ("add", ("a", "b"), ("c1:x",), "the classes do not tile the axes"),
    ],
)
def test_reduced_tensors(kind: str, axes: tuple[str, ...], of: tuple[str, ...], reason: str | None) -> None:
    """Obligation 14, one way to break it each; the sum would be over other ranks than it says."""
    ref = Reduced(kind, axes, tuple(Tensor(*m.split(":")) for m in of))
    if reason is None:
        assert Model(PLAN).type(ref).shape == Model(PLAN).type(ref.of[0]).shape
        assert Model(PLAN).mesh_axes(ref) == tuple(a for a in "ab" if a not in axes)
    else:
        with pytest.raises(Rejected, match=f"^obligation 14 .*: {reason}$"):
            Model(PLAN).type(ref)


@pytest.mark.parametrize("ref", [Tensor("s", "%9"), Tensor("c9", "x"), Tensor("c0", "%15"), Tensor("", "x")])
def test_tensors_that_do_not_exist(ref: Tensor) -> None:
    with pytest.raises(Rejected, match=r"^obligation 3 .*there is no tensor"):
        Model(PLAN).ranges(ref)


# Lifted hypotheses ------------------------------------------------------------------------------------------


def given(
    lhs: Tensor,
    rhs: Any,
    right: tuple[Affine, ...],
    symbols: Any = RANGES[:4],
    coef: int = 1,
    left: tuple[Affine, ...] = (A0, B0, X, Y),
) -> Fact:
    return Fact(lhs, rhs, Fraction(coef), symbols, left, right)


ALIKE = given(c0("x"), Tensor("s", "x"), (X, Y), coef=3)
OTHER = (("a", 1, 2), *RANGES[1:4])


def test_a_sum_of_equal_facts() -> None:
    """Over `b` the right side stands still, and counts three times; its maximum counts once."""
    at = (A0, X, Y)
    assert stage(Hyp((0,), at, ("b",), "add"), facts=(ALIKE,)) == ["(= (t0 a x y) (* 9.0 (t1 x y)))"]
    assert stage(Hyp((0,), at, ("b",), "max"), facts=(ALIKE,)) == ["(= (t0 a x y) (* 3.0 (t1 x y)))"]
    half = Fact(ALIKE.lhs, ALIKE.rhs, Fraction(1, 2), ALIKE.symbols, ALIKE.lhs_index, ALIKE.rhs_index)
    assert stage(Hyp((0,), at, ("b",), "max"), facts=(half,)) == ["(= (t0 a x y) (* (/ 1.0 2.0) (t1 x y)))"]
    with refuses(4, "3 symbols, 2 forms"):
        stage(Hyp((0,), at[:2], ("b",), "add"), facts=(ALIKE,))
    assert stage(Hyp((0,), (A0, X, W), ("b",), "add"), facts=(ALIKE,)) == [
        "(=> (<= 0 w) (= (t0 a x w) (* 9.0 (t1 x w))))"
    ]
    with refuses(4, "max of a fact whose coefficient is not positive"):
        stage(Hyp((0,), at, ("b",), "max"), facts=(given(c0("x"), Tensor("s", "x"), (X, Y), coef=-3),))
    assert stage(Hyp((0,), at, ("b",), "add"), facts=(given(c0("x"), Tensor("s", "x"), (X, Y), coef=-3),))


def test_a_sum_of_facts_about_ranks() -> None:
    """Both sides move over `b`, and over `a`, where there is one fact for each class."""
    moving = given(c0("x"), c0("%0"), RESHAPE, coef=2)
    assert stage(Hyp((0,), (A0, X, Y), ("b",), "add"), facts=(moving,)) == [
        "(= (t0 a x y) (* 2.0 (t1 a x y)))"
    ]
    second = given(Tensor("c1", "x"), Tensor("c1", "%0"), RESHAPE, OTHER, coef=2)
    for lift, at in ((("a",), (B0, X, Y)), (("a", "b"), (X, Y))):
        assert len(stage(Hyp((0, 1), at, lift, "add"), facts=(moving, second))) == 1
    with refuses(4, "lifted axes must be mesh axes in mesh order"):
        stage(Hyp((0, 1), (X, Y), ("b", "a"), "add"), facts=(moving, second))
    with pytest.raises(Rejected, match=r"^obligation 14 .*the classes do not tile the axes"):
        stage(Hyp((0,), (B0, X, Y), ("a",), "add"), facts=(moving,))
    with pytest.raises(Rejected, match=r"^obligation 14 .*members must stand in plan order"):
        stage(Hyp((1, 0), (B0, X, Y), ("a",), "add"), facts=(moving, second))
    with refuses(4, "without lift has one fact and kind add"):
        stage(Hyp((0,), RESHAPE, (), "max"), facts=(moving,))
    with refuses(4, "without lift has one fact and kind add"):
        stage(Hyp((), (X, Y), ("a",), "add"), facts=(moving,))


@pytest.mark.parametrize(
    "second",
    [
        given(Tensor("c1", "x"), Tensor("s", "%0"), (X, Y), OTHER, 3),
        given(Tensor("c1", "x"), Tensor("s", "x"), (X, Y), OTHER, 2),
        given(Tensor("c1", "x"), Tensor("s", "x"), (X, ZERO), OTHER, 3),
        given(Tensor("c1", "x"), Tensor("s", "x"), (X, Y), (*OTHER[:3], ("y", 0, 5)), 3),
        given(Tensor("c1", "x"), Tensor("s", "x"), (X, Y), OTHER, 3, (A0, B0, X, ZERO)),
        given(Tensor("c1", "x"), Tensor("c1", "%0"), RESHAPE, OTHER, 3),
    ],
)
def test_lifted_facts_agree(second: Fact) -> None:
    """Were they different, the sum over ranks would be that of the first alone, times their number."""
    right = given(Tensor("c1", "x"), Tensor("s", "x"), (X, Y), OTHER, 3)
    assert stage(Hyp((0, 1), (B0, X, Y), ("a",), "add"), facts=(ALIKE, right)) == [
        "(= (t0 b x y) (* 6.0 (t1 x y)))"
    ]
    with refuses(4, "the lifted facts disagree"):
        stage(Hyp((0, 1), (B0, X, Y), ("a",), "add"), facts=(ALIKE, second))


@pytest.mark.parametrize(
    "fact,lift",
    [
        (given(c0("x"), Tensor("s", "x"), (X, Y), (RANGES[0], ("b", 0, 2), *RANGES[2:4])), ("b",)),
        (given(c0("x"), Tensor("s", "x"), (X, Y), left=(A0, ZERO, X, Y)), ("b",)),
        (
            given(
                c0("x"), Tensor("s", "x"), (X, Y), (*RANGES[:2], ("x", 0, 1), RANGES[3]), left=(A0, B0, B0, Y)
            ),
            ("b",),
        ),
        (
            given(
                c0("x"),
                Tensor("s", "x"),
                (X, Y),
                (RANGES[0], ("b", 0, 2), *RANGES[2:4]),
                left=(A0, B0.shift(1), X, Y),
            ),
            ("b",),
        ),
        (given(c0("x"), Tensor("s", "m"), (X, B0)), ("b",)),
        (given(c0("x"), Tensor("s", "x"), (X, Y), left=(A0, Affine(2, (("b", -1),)), X, Y)), ("b",)),
        (given(c0("x"), Tensor("s", "x"), (X, B0)), ("b",)),
        (given(c0("x"), c0("%0"), (A0, B0, X, B0)), ("b",)),
        (given(c0("x"), c0("%0"), (A0, ZERO, X, B0)), ("b",)),
        (given(Tensor("s", "x"), c0("x"), RESHAPE, left=(X, Y)), ("b",)),
        (
            given(
                Reduced("max", ("a",), (c0("x"), Tensor("c1", "x"))),
                c0("x"),
                RESHAPE,  # type: ignore[arg-type]
                left=(B0, X, Y),
            ),
            ("b",),
        ),
        (
            Fact(
                c0("x"),
                Reduced("add", ("a",), (c0("x"), Tensor("c1", "x"))),
                Fraction(1),
                RANGES[:4],
                RESHAPE,
                (B0, X, Y),
            ),
            ("b",),
        ),
    ],
)
def test_a_lifted_axis_runs_over_the_whole_class_as_its_coordinate(fact: Fact, lift: tuple[str, ...]) -> None:
    """Else one rank's fact would be taken for that of all ranks."""
    at = tuple(Affine.symbol(s) for s, _, _ in fact.symbols if s not in lift)
    with refuses(4, "b does not run over the whole class"):
        stage(Hyp((0,), at, lift, "add"), facts=(fact,))


def test_a_sum_over_one_axis_is_summed_over_another() -> None:
    """Its members are ranks, whose sums over `a` stand still over `b`, or move."""
    over_a = Reduced("add", ("a",), (c0("x"), Tensor("c1", "x")))
    still = Fact(over_a, Tensor("s", "x"), Fraction(3), RANGES[1:4], (B0, X, Y), (X, Y))
    assert stage(Hyp((0,), (X, Y), ("b",), "add"), facts=(still,)) == ["(= (t0 x y) (* 9.0 (t1 x y)))"]
    with refuses(4, "b does not run over the whole class"):
        stage(Hyp((0,), (X, Y), ("b",), "max"), facts=(still,))
    part = Fact(over_a, Tensor("s", "x"), Fraction(3), (("b", 0, 2), *RANGES[2:4]), (B0, X, Y), (X, Y))
    with refuses(4, "b does not run over the whole class"):
        stage(Hyp((0,), (X, Y), ("b",), "add"), facts=(part,))
    with refuses(4, "a does not run over the whole class"):
        stage(Hyp((0,), (X, Y), ("a",), "add"), facts=(still,))
    with pytest.raises(Rejected, match=r"^obligation 14 .*members must stand in plan order"):
        stage(Hyp((0, 0), (X, Y), ("b",), "add"), facts=(still,))
    over_b = Reduced("add", ("b",), (c0("x"),))
    one = Fact(over_b, Tensor("s", "x"), Fraction(3), (RANGES[0], *RANGES[2:4]), (A0, X, Y), (X, Y))
    other = given(Tensor("c1", "x"), Tensor("s", "x"), (X, Y), OTHER, 3)
    with refuses(4, "the lifted facts disagree"):
        stage(Hyp((0, 1), (B0, X, Y), ("a",), "add"), facts=(one, other))
    with refuses(4, "max of a fact whose coefficient is not positive"):
        nothing = given(c0("x"), Tensor("s", "x"), (X, Y), coef=0)
        stage(Hyp((0,), (A0, X, Y), ("b",), "max"), facts=(nothing,))


def test_lifted_axes_move_together() -> None:
    """The right side moves over `b` and stands still over `a`: its sum over both is no reduced tensor."""
    over_b = given(c0("x"), c0("%0"), (ZERO, B0, X, Y))
    second = given(Tensor("c1", "x"), c0("%0"), (ZERO, B0, X, Y), OTHER)
    with refuses(4, "some lifted axes occur on the right, others do not"):
        stage(Hyp((0, 1), (X, Y), ("a", "b"), "add"), facts=(over_b, second))


# Fresh symbols ----------------------------------------------------------------------------------------------


def test_a_goal_symbol_is_not_fresh() -> None:
    """Its value is given; an equation that it need not solve would make the file's premises false."""
    local_plan = program([["u", "f32[1,4]"]], [op("%0", "reshape", ["u"], "f32[2,2]")], [])
    plan = read_plan(
        dump(plan_of([], local_plan | {"inputs": [["g", "f32[]"], ["u", "f32[1,4]"]]}, [
            {"name": "c0", "box": {}, "program": program([], [], [])}], [], []))
    )  # fmt: skip
    goal = Fact(G, G, Fraction(1), (("queue", 0, 4), ("x", 0, 2), ("y", 0, 2)), (), ())

    def at(arg: Affine) -> Layout:
        premise = Def(Tensor("s", "%0"), (X, Y), (ZERO, arg))
        return Layout(Model(plan), [goal], LayoutStage(0, "", "0001", (("q0", (0, 4)),), (premise,)), "here")

    assert at(Q[0]).assertions
    with refuses(6, "queue is no fresh q symbol"):
        at(Affine.symbol("queue"))


def test_a_resolved_part_stays_in_range() -> None:
    """u[1, j - 4] has the row-major number of u[0, j], and does not exist."""
    at = (A0, B0, Q[0], Q[1])
    j = Affine.total([(2, Q[0]), (1, Q[1])])
    assert stage(Def(c0("%4"), at, (A0, B0, ZERO, j)))
    with refuses(6, "coordinate 2 of size 1 must be 0"):
        stage(Def(c0("%4"), at, (A0, B0, Affine(1), j.shift(-4))))


def test_how_tensors_are_called_in_comments() -> None:
    model = Model(PLAN)
    both = Reduced("add", ("a", "b"), (c0("x"), Tensor("c1", "x")))
    assert model.describe(both) == (
        "add over a b of (c0:x input f32[4,6] ranks a 0..0 b 0..2; c1:x input f32[4,6] ranks a 1..1 b 0..2)"
    )
    assert model.describe(Tensor("s", "%0")) == "s:%0 negate f32[4,6]"
    empty = program([["x", "f32[2]"]], [["%0", "negate", ["x"], "f32[2]", {}, [0, 12, "forward"]]], [])
    alone = Model(read_plan(dump(plan_of([], empty, [{"name": "c0", "box": {}, "program": empty}], [], []))))
    assert alone.describe(c0("x")) == "c0:x input f32[2]", "no ranks without a mesh"
    assert alone.describe(Element(c0("%0"), ((0, 1, 2),))) == (
        "c0:%0 negate f32[2] model.py:12 forward at [p0:1.2]"
    )


def test_a_part_has_symbols_of_its_own() -> None:
    """The same symbol for two coordinates of one part would leave only the diagonal."""

    def cut(*arg: Affine) -> list[str]:
        spec = program(
            [["y", "f32[4]"], ["g", "f32[]"], ["u", "f32[2,2]"]], [op("%0", "reshape", ["u"], "f32[4]")], []
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
        goal = Fact(G, G, Fraction(1), (("x", 0, 4),), (), ())
        layout = Layout(
            Model(plan),
            [goal],
            LayoutStage(
                0, "", "0001", (("q0", (0, 2)), ("q1", (0, 2))), (Def(Tensor("s", "%0"), (X,), arg),)
            ),
            "here",
        )
        return [name for name, _ in layout.assertions]

    assert cut(Q[0], Q[1]) == ["def.1", "goal"]
    for wrong in ((Q[0], Q[0]), (Q[1], Q[1])):
        with refuses(6, "introduced twice|neither resolved nor fresh"):
            cut(*wrong)
