"""Algebra stages: each check of algebra.py, laws.py and roots.py by what it alone refuses."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Undecided
from checker.language.affine import Affine
from checker.language.proof import Element, Fact, Tensor
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof
from checker.rules import algebra, roots, widths
from checker.rules.algebra import Algebra, Solved, divided
from checker.rules.laws import LAWS
from checker.rules.model import Model
from checker.rules.terms import _Printer
from checker.rules.widths import check_widths

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import NO_PLAN, definition, dump, fact, one_case, op, plan_of, program, refuses, z

SCALAR = ["g", "f32[]"]


def hyp(at: list[Any], defines: str = "lhs", number: int = 0) -> dict[str, Any]:
    return {"k": "hyp", "fact": number, "at": at, "defines": defines}


def printed(case: Solved) -> list[str]:
    show = _Printer("e", [])
    return [f"{name} {show(term)}" for name, term in case.assertions]


def vectors(*names: str, n: int = 4) -> dict[str, Any]:
    return program([SCALAR, *([v, f"f32[{n}]"] for v in names)], [], [])


WHOLE: list[Any] = [[[0, ["i"]]]]


# Hypotheses -------------------------------------------------------------------------------------------------


def test_the_ranges_of_a_hypothesis() -> None:
    """The fact holds for z0 < 4 only: at i - 1 it would say what nobody proved of the element before x[1]."""
    given = fact("s:x", "s:y", [["z0", 0, 4]], [{"z0": 1, "": 1}], [{"z0": 1, "": 1}])
    trees = {f"s:{v}": [[[0, ["j"]]]] for v in "xy"}

    def at(form: Any, trees: Any = trees) -> Algebra:
        return one_case(
            [hyp([form])],
            spec=vectors("x", "y", n=5),
            facts=(given,),
            trees=trees,
            classes=(("j", 5, 1), ("i", 4, 1)),
        )

    with refuses(4, "z0 leaves the range of fact 0"):
        at({"j.0": 1, "": -1})
    with refuses(4, "z0 leaves the range of fact 0"):
        at({"j.0": 1})
    pieces = {f"s:{v}": [[[0, []], [1, ["i"]]]] for v in "xy"}
    assert at({"i.0": 1}, pieces).cases


@pytest.mark.parametrize(
    "left,right,symbols,form,reason",
    [
        ([z(0), z(0)], [z(0)], [["z0", 0, 4]], [{"i.0": 1}], "does not define this piece of s:w"),
        ([z(0), z(1)], [z(1)], [["z0", 0, 4], ["z1", 0, 4]], [{"i.0": 1}, {"i.0": 1}], None),
        ([z(0), 0], [z(0)], [["z0", 0, 4]], [{"i.0": 1}], "no position of a piece"),
        ([z(0), z(0)], [z(1)], [["z0", 0, 4], ["z1", 0, 4]], [{"i.0": 1}, {"i.0": 1}], "does not define"),
    ],
)
def test_a_hypothesis_defines_a_whole_piece(
    left: Any, right: Any, symbols: Any, form: Any, reason: str | None
) -> None:
    """w[i, i] = y[i] says nothing of the rest of w, for which the element of one representative stands."""
    spec = program([SCALAR, ["w", "f32[4,4]"], ["y", "f32[4]"]], [], [])
    given = fact("s:w", "s:y", symbols, left, right)

    def stage() -> Algebra:
        return one_case([hyp(form)], spec=spec, facts=(given,), trees={"s:w": WHOLE * 2, "s:y": WHOLE})

    if reason is None:
        assert printed(stage().cases[0])[0] == "hyp.1 (= e0 e1)"
    else:
        with refuses(4, reason):
            stage()


def test_symbols_stay_in_range_over_the_whole_piece() -> None:
    """x[z0 + z1] = y[0] with z1 < 2: the piece of three positions is not within the reach of z1 alone."""
    given = fact("s:x", "s:y", [["z0", 0, 3], ["z1", 0, 2]], [{"z0": 1, "z1": 1}], [0])
    spec = program([SCALAR, ["x", "f32[3]"], ["y", "f32[1]"]], [], [])
    trees = {"s:x": [[[0, ["i", "j"]]]], "s:y": [[[0, []]]]}
    with refuses(4, "fact 0 does not define this piece of s:x"):
        one_case(
            [hyp([{"i.0": 1}, {"j.0": 1}])],
            spec=spec,
            facts=(given,),
            trees=trees,
            classes=(("i", 3, 1), ("j", 1, 1)),
        )


def test_the_other_side_of_a_whole_piece_has_a_place() -> None:
    """w[i, j] = y[2 i - j] is y[i] where both are one, and no element of y for the rest of the piece."""
    spec = program([SCALAR, ["w", "f32[4,4]"], ["y", "f32[4]"]], [], [])
    given = fact("s:w", "s:y", [["z0", 0, 4], ["z1", 0, 4]], [z(0), z(1)], [{"z0": 2, "z1": -1}])
    with refuses(4, "an index of s:y is no position of a piece"):
        one_case(
            [hyp([{"i.0": 1}, {"i.0": 1}])], spec=spec, facts=(given,), trees={"s:w": WHOLE * 2, "s:y": WHOLE}
        )


@pytest.mark.parametrize(
    "defines,text", [("lhs", "hyp.1 (= e0 (* (/ 1.0 2.0) e1))"), ("rhs", "hyp.1 (= e0 (* (/ 1.0 2.0) e1))")]
)
def test_the_coefficient_of_a_hypothesis(defines: str, text: str) -> None:
    """x = y/2 defines y as 2 x."""
    given = fact("s:x", "s:y", [["z0", 0, 4]], [z(0)], [z(0)], coef="1/2")
    case = one_case(
        [hyp([{"i.0": 1}], defines)],
        spec=vectors("x", "y"),
        facts=(given,),
        trees={"s:x": WHOLE, "s:y": WHOLE},
    ).cases[0]
    assert printed(case)[0] == text
    x, y = (Element(Tensor("s", v), ((0, 0),)) for v in "xy")
    assert case.defs == ({x: ("*", Fraction(1, 2), y)} if defines == "lhs" else {y: ("*", Fraction(2), x)})


def test_one_source_of_definitions() -> None:
    """Two facts may not define one piece, nor a def and a fact; two pieces may have their own."""
    spec = program([SCALAR, *([v, "f32[5]"] for v in "xyu")], [op("%0", "negate", ["x"], "f32[5]")], [])
    tree: list[Any] = [[[0, ["i"]], [4, []]]]
    given = (
        fact("s:%0", "s:y", [["z0", 0, 5]], [z(0)], [z(0)]),
        fact("s:%0", "s:u", [["z0", 0, 5]], [z(0)], [z(0)]),
    )
    trees = {f"s:{v}": tree for v in ("x", "y", "u", "%0")}

    def stage(*premises: Any) -> Algebra:
        return one_case(list(premises), spec=spec, facts=given, trees=trees)

    first, second = hyp([{"i.0": 1}]), hyp([4], number=1)
    assert stage(first, second).cases and stage(first, definition("s:%0", [1])).cases
    assert stage(first, first).cases, "the same twice is one"
    for again in (hyp([{"i.0": 1}], number=1), definition("s:%0", [0, 0])):
        for order in ((first, again), (again, first)):
            with refuses(4, "s:%0 is defined twice"):
                stage(*order)


def test_a_reduced_tensor_is_defined_in_one_way() -> None:
    """By its members at all pieces or by facts at all pieces: two readings of one sum could disagree."""
    red = {"kind": "add", "axes": ["r"], "of": ["c0:x"]}
    tree: list[Any] = [[[0, ["i"]], [4, []]]]
    other = {"kind": "add", "axes": ["r"], "of": ["c0:u"]}
    given = (
        fact(red, "s:y", [["z0", 0, 5]], [z(0)], [z(0)]),
        fact(other, "s:y", [["z0", 0, 5]], [z(0)], [z(0)]),
        fact("c0:x", "s:y", [["r", 0, 2], ["z0", 0, 5]], [{"r": 1}, z(0)], [z(0)]),
    )

    def stage(*premises: Any) -> Algebra:
        return one_case(
            list(premises),
            spec=vectors("y", n=5),
            local=program([["x", "f32[5]"], ["u", "f32[5]"]], [], []),
            mesh=2,
            facts=given,
            trees={"s:y": tree, "c0:x": [[[0, ["r"]]], *tree], "c0:u": [[[0, ["r"]]], *tree]},
            classes=(("i", 4, 1), ("r", 2, 1)),
            reduced=((red, tree), (other, tree)),
        )

    listed, said = definition(red, [1]), hyp([{"i.0": 1}])
    for good in (
        (said, hyp([4])),
        (definition(red, [0, 0]), listed),
        (hyp([{"i.0": 1}], number=1), listed),
        (hyp([{"r.0": 1}, {"i.0": 1}], number=2), definition(red, [0, 0])),
    ):
        assert stage(*good).cases
    for order in ((listed, said), (said, listed)):
        with refuses(4, r"add over r of \(c0:x\) is defined twice"):
            stage(*order)


def test_definitions_are_not_circular() -> None:
    given = (
        fact("s:x", "s:y", [["z0", 0, 4]], [z(0)], [z(0)]),
        fact("s:y", "s:x", [["z0", 0, 4]], [z(0)], [z(0)]),
    )
    with refuses(4, "the definitions are circular"):
        one_case(
            [hyp([{"i.0": 1}]), hyp([{"i.0": 1}], number=1)],
            spec=vectors("x", "y"),
            facts=given,
            trees={"s:x": WHOLE, "s:y": WHOLE},
        )


# Trees and elements -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trees,reason",
    [
        ([], "s:x has 1 coordinates and one list of trees"),
        (WHOLE * 2, "s:x has 1 coordinates and one list"),
        ([[]], "do not tile"),
        ([[[0, ["i", "i"]]]], "do not tile"),
        ([[[1, ["k"]]]], "do not tile"),
        ([[[0, ["k"]]]], "do not tile"),
    ],
)
def test_trees(trees: Any, reason: str) -> None:
    with refuses(8, reason):
        one_case([], spec=vectors("x"), trees={"s:x": trees}, classes=(("i", 4, 1), ("k", 3, 1)))


@pytest.mark.parametrize(
    "coords", [[], [[0, 0], [0, 0]], [[]], [[1, 0]], [[2]], [[0]], [[0, 0, 0]], [[0, 1]], [[1]]]
)
def test_elements_that_do_not_exist(coords: list[Any]) -> None:
    spec = program([SCALAR, ["x", "f32[4]"]], [op("%0", "negate", ["x"], "f32[4]")], [])
    trees = {"s:x": WHOLE, "s:%0": WHOLE}
    assert one_case([definition("s:%0", [0, 0])], spec=spec, trees=trees).cases
    with refuses(8, "s:%0 has no element"):
        one_case([definition("s:%0", *coords)], spec=spec, trees=trees)


def test_reduced_tensors_need_trees() -> None:
    red = {"kind": "add", "axes": ["r"], "of": ["c0:x"]}
    spec, local = program([SCALAR], [], []), program([["x", "f32[4]"]], [], [])
    classes = (("i", 4, 1), ("r", 2, 1))
    for trees in ({}, {"c0:x": [[[0, ["r"]]], *WHOLE]}):
        with refuses(8, r"add over r of \(c0:x\) has no trees"):
            one_case([definition(red, [0, 0])], spec=spec, local=local, mesh=2, trees=trees, classes=classes)


def test_literals_need_no_trees() -> None:
    spec = vectors("x")
    given = fact("s:x", "#f:-1/3", [["z0", 0, 4]], [z(0)], [])
    case = one_case([hyp([{"i.0": 1}])], spec=spec, facts=(given,), trees={"s:x": WHOLE}).cases[0]
    assert printed(case)[0] == "hyp.1 (= e0 (- (/ 1.0 3.0)))"
    with refuses(8, "s:y has no trees"):
        one_case(
            [hyp([{"i.0": 1}])],
            spec=vectors("x", "y"),
            trees={"s:x": WHOLE},
            facts=(fact("s:x", "s:y", [["z0", 0, 4]], [z(0)], [z(0)]),),
        )


@pytest.mark.parametrize(
    "value,text", [("inf", "pos_inf"), ("-inf", "neg_inf"), ("5/3", "(/ 5.0 3.0)"), ("-2", "(- 2.0)")]
)
def test_constants_are_read(value: str, text: str) -> None:
    spec = program(
        [SCALAR, ["x", "f32[4]"]],
        [op("%0", "constant", [], "f32[4]", value=value), op("%1", "maximum", ["x", "%0"], "f32[4]")],
        [],
    )
    case = one_case(
        [definition("s:%1", [0, 0])], spec=spec, trees={f"s:{v}": WHOLE for v in ("x", "%0", "%1")}
    )
    assert printed(case.cases[0])[0] == f"def.1 (= e0 (max2 e1 {text}))"


def test_pieces_are_found_by_their_positions() -> None:
    """Among three pieces, by offset and by the order of the classes."""
    spec = vectors("x", "y", n=20)
    tree: list[Any] = [[[0, ["i", "j"]], [6, ["j", "i"]], [12, ["j", "j"]], [16, []], [17, ["i"]]]]
    given = fact("s:x", "s:y", [["z0", 0, 20]], [z(0)], [z(0)])

    def at(form: Any) -> str:
        case = one_case(
            [hyp([form])],
            spec=spec,
            facts=(given,),
            trees={"s:x": tree, "s:y": tree},
            classes=(("i", 3, 3), ("j", 2, 2)),
        ).cases[0]
        return str(case.assertions[0][1][1].coords)

    assert at({"i.1": 2, "j.0": 1}) == "((0, 1, 0),)" and at({"j.1": 3, "i.2": 1, "": 6}) == "((1, 1, 2),)"
    assert at({"j.0": 2, "j.1": 1, "": 12}) == "((2, 0, 1),)" and at({"j.1": 3, "": 12}) == "((2, 1, 1),)"
    assert at(16) == "((3,),)" and at({"i.1": 1, "": 17}) == "((4, 1),)"
    for wrong in ({"i.1": 1, "j.0": 2}, {"j.0": 2, "i.1": 1, "": 6}, {"j.0": 2, "": 12}, 15, {"i.0": 2}):
        with refuses(4, "an index of s:x is no position of a piece"):
            at(wrong)


def test_a_coordinate_of_size_one_is_spread() -> None:
    """Its only position is read, cut as a point; cut as a class of one it would have another name."""
    spec = program([SCALAR, ["x", "f32[1]"]], [op("%0", "broadcast_in_dim", ["x"], "f32[4]", dims=[0])], [])

    def stage(tree: Any) -> Algebra:
        return one_case(
            [definition("s:%0", [0, 0])],
            spec=spec,
            trees={"s:x": [tree], "s:%0": WHOLE},
            classes=(("i", 4, 1), ("k", 1, 1)),
        )

    (case,) = stage([[0, []]]).cases
    assert case.defs == {Element(Tensor("s", "%0"), ((0, 0),)): Element(Tensor("s", "x"), ((0,),))}
    with refuses(8, "s:x and s:%0 are cut differently"):
        stage([[0, ["k"]]])


def test_many_places_of_one_class_are_divided() -> None:
    """Two variables in sixteen places: as many ways as a search could try, 2 ** 16, and one division."""
    tree: list[Any] = [[[0, ["j"] * 16]]]
    given = fact("s:x", "s:y", [["z0", 0, 1 << 16]], [z(0)], [z(0)])

    def at(form: Any) -> Any:
        case = one_case(
            [hyp([form])],
            spec=vectors("x", "y", n=1 << 16),
            facts=(given,),
            trees={"s:x": tree, "s:y": tree},
            classes=(("j", 2, 2),),
        ).cases[0]
        return case.assertions[0][1][1].coords

    assert at({"j.0": 0xA001, "j.1": 0x5FFE}) == ((0, 0, 1, 0, *[1] * 12, 0),)
    for wrong in ({"j.0": 0xA001, "j.1": 0x5FFF}, {"j.0": 0xA001}, {"j.1": 0xFFFF, "": 1}):
        with refuses(4, "an index of s:x is no position of a piece|j0 leaves|z0 leaves the range"):
            at(wrong)


# Goals ------------------------------------------------------------------------------------------------------


def goal(given: Any, classes: Any, trees: Any, goal_at: Any, reps: Any) -> Algebra:
    spec = program([["x", "f32[4,4]"], ["y", "f32[4]"]], [], [])
    plan = plan_of(
        [["r", 1]], spec, [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}], [], []
    )
    proof = read_proof(
        dump(
            {
                "format": "trainverify-proof",
                "version": 1,
                "facts": [given],
                "stages": [
                    {
                        "kind": "algebra",
                        "goal": 0,
                        "title": "t",
                        "classes": classes,
                        "trees": trees,
                        "goal_at": goal_at,
                        "cases": [{"reps": r, "premises": [], "file": "0001"} for r in reps],
                    }
                ],
            }
        )
    )
    made = Algebra(Model(read_plan(dump(plan))), proof.facts, proof.stages[0], "here")  # type: ignore[arg-type]
    check_widths(made, "here")
    return made


LINE = fact("s:y", "s:y", [["z0", 0, 4]], [z(0)], [z(0)], coef="3")


def test_goals() -> None:
    trees: list[Any] = [["s:y", WHOLE]]
    good = goal(LINE, [["i", 4, 1]], trees, [["i"]], [[[0]]])
    assert printed(good.cases[0]) == ["goal (not (= e0 (* 3.0 e0)))"]
    for goal_at in ([], [["i"], ["i"]]):
        with refuses(10, "goal_at must name the classes of every symbol"):
            goal(LINE, [["i", 4, 1]], trees, goal_at, [[[0]] * len(goal_at)])
    with refuses(10, "the classes of z0 do not make up its range"):
        goal(LINE, [["i", 4, 1], ["k", 3, 1]], trees, [["k"]], [[[0]]])
    with refuses(10, "an index of s:y is no position of a piece"):
        goal(LINE, [["i", 4, 1], ["k", 4, 1]], trees, [["k"]], [[[0]]])
    for left, right in (([{"z0": 1, "": 1}], [z(0)]), ([z(0)], [{"z0": 1, "": 1}])):
        moved = fact("s:y", "s:y", [["z0", 0, 3]], left, right)
        with refuses(10, "an index of s:y is no position of a piece"):
            goal(moved, [["i", 4, 1], ["k", 3, 1]], trees, [["k"]], [[[0]]])


def test_both_sides_of_a_goal_have_a_place() -> None:
    trees = [["s:y", [[[0, ["k"]], [3, []]]]]]
    for left, right in (([{"z0": 1, "": 1}], [z(0)]), ([z(0)], [{"z0": 1, "": 1}])):
        moved = fact("s:y", "s:y", [["z0", 0, 3]], left, right)
        with refuses(10, "an index of s:y is no position of a piece"):
            goal(moved, [["k", 3, 1]], trees, [["k"]], [[[0]]])


def test_goals_about_parts() -> None:
    """A symbol over [1, 4) stands at 1 plus the representative."""
    part = fact("s:y", "s:y", [["z0", 1, 4]], [z(0)], [z(0)])
    case = goal(part, [["k", 3, 1]], [["s:y", [[[0, []], [1, ["k"]]]]]], [["k"]], [[[0]]]).cases[0]
    assert case.left == Element(Tensor("s", "y"), ((1, 0),))
    single = fact("s:y", "s:y", [["z0", 3, 4]], [z(0)], [z(0)])
    case = goal(single, [["k", 3, 1]], [["s:y", [[[0, ["k"]], [3, []]]]]], [[]], [[[]]]).cases[0]
    assert case.left == Element(Tensor("s", "y"), ((1,),))


@pytest.mark.parametrize(
    "m,n,reps,good",
    [
        (2, 9, [[0, 1]], True),
        (3, 9, [[0, 1]], True),
        (2, 9, [[1, 0]], False),
        (2, 9, [[0, 0]], False),
        (2, 9, [[0, 1], [0, 0]], False),
        (2, 2, [[0, 0], [0, 1]], True),
        (2, 2, [[0, 1], [0, 0]], True),
        (2, 2, [[0, 1]], False),
        (2, 2, [[0, 0]], False),
        (2, 2, [[0, 0], [0, 1], [0, 0]], False),
        (2, 2, [[0, 0], [1, 0]], False),
        (1, 1, [[0, 0]], True),
        (3, 3, [[0, 0], [0, 1]], True),
        (3, 3, [[0, 0], [0, 2]], False),
        (2, 9, [], False),
    ],
)
def test_patterns(m: int, n: int, reps: Any, good: bool) -> None:
    """One case with distinct representatives of a reduced class, every coincidence of an exact one."""
    spec = program([["x", f"f32[{n},{n}]"]], [], [])
    plan = plan_of(
        [["r", 1]], spec, [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}], [], []
    )
    index = [z(0), z(1)]
    given = fact("s:x", "s:x", [["z0", 0, n], ["z1", 0, n]], index, index)

    def made() -> Algebra:
        proof = read_proof(
            dump(
                {
                    "format": "trainverify-proof",
                    "version": 1,
                    "facts": [given],
                    "stages": [
                        {
                            "kind": "algebra",
                            "goal": 0,
                            "title": "t",
                            "classes": [["i", n, m]],
                            "trees": [["s:x", WHOLE * 2]],
                            "goal_at": [["i"], ["i"]],
                            "cases": [{"reps": [[a], [b]], "premises": [], "file": "0001"} for a, b in reps],
                        }
                    ],
                }
            )
        )
        return Algebra(Model(read_plan(dump(plan))), proof.facts, proof.stages[0], "here")  # type: ignore[arg-type]

    if good:
        assert len(made().cases) == len(reps)
    else:
        with refuses(10, r"\d coincidence patterns are needed, each exactly once"):
            made()


def test_caps_of_patterns_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def stage() -> Algebra:
        return goal(
            fact("s:x", "s:x", [["z0", 0, 4], ["z1", 0, 4]], [z(0), z(1)], [z(0), z(1)]),
            [["i", 4, 4]],
            [["s:x", WHOLE * 2]],
            [["i"], ["i"]],
            [[[0], [0]], [[0], [1]]],
        )

    def total() -> Algebra:
        spec = program(
            [SCALAR, ["x", "f32[4]"]], [op("%0", "reduce", ["x"], "f32[]", dims=[0], kind="add")], []
        )
        return one_case(
            [definition("s:%0")],
            spec=spec,
            trees={"s:x": [[[0, ["j", "j"]]]], "s:%0": []},
            classes=(("j", 2, 2),),
        )

    for make, cap, reason in ((stage, 2, "too many coincidence patterns"), (total, 4, "a sum has too many")):
        monkeypatch.setattr(algebra, "MAX_TERMS", cap)
        assert make().cases
        monkeypatch.setattr(algebra, "MAX_TERMS", cap - 1)
        with pytest.raises(Undecided, match=reason):
            make()
    monkeypatch.undo()
    monkeypatch.setattr(widths, "MAX_STEPS", 1)
    with pytest.raises(Undecided, match="the expression is too large"):
        total()


# Laws -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
def test_the_root_law_beside_a_sum(before: bool) -> None:
    """Wherever it stands among the premises, and whatever law follows it."""
    spec = program(
        [SCALAR, ["x", "f32[4]"]],
        [op("%0", "exponential", ["x"], "f32[4]"), op("%1", "reduce", ["x"], "f32[]", dims=[0], kind="add")],
        [],
    )
    p = ["e", "s:%0", [[0, 0]]]
    root = {"k": "law", "schema": "root", "lhs": ["mul", ["fsqrt", p], ["fsqrt", p]], "rhs": p}
    ring = {"k": "law", "schema": "ring", "lhs": p, "rhs": p}
    trees = {"s:x": WHOLE, "s:%0": WHOLE, "s:%1": []}
    assert one_case([root, ring], spec=spec, trees=trees, classes=(("i", 4, 2),)).cases
    last = [root, ring] if before else [ring, root]
    with refuses(7, "the root law beside a sum"):
        one_case([*last, definition("s:%1")], spec=spec, trees=trees, classes=(("i", 4, 2),))


def lit(value: str) -> Any:
    return ("lit", Fraction(value))


A, B = (Element(Tensor("s", v), ()) for v in "ab")


@pytest.mark.parametrize(
    "left,right,good",
    [
        (("recip", lit("4")), lit("1/4"), True),
        (("recip", lit("4")), lit("1/5"), False),
        (lit("1/4"), ("recip", lit("4")), False),
        (("recip", A), lit("1"), False),
        (("recip", lit("0")), lit("0"), False),
    ],
)
def test_the_law_recip(left: Any, right: Any, good: bool) -> None:
    assert LAWS["recip"].holds(NO_PLAN, left, right) == good


@pytest.mark.parametrize(
    "left,right,good",
    [
        (("max2", A, ("max2", B, A)), ("max2", B, A), True),
        (("min2", A, B), ("min2", B, A), True),
        (("min2", A, B), ("max2", A, B), False),
        (A, A, False),
        (("max2", A, A), A, True),
        (A, ("max2", A, A), True),
        (("max2", A, ("min2", A, B)), ("max2", ("min2", A, B), A), True),
        (("max2", A, ("min2", A, B)), ("max2", A, B), False),
        (("mul", A, B), ("mul", B, A), False),
    ],
)
def test_the_law_lattice(left: Any, right: Any, good: bool) -> None:
    assert LAWS["lattice"].holds(NO_PLAN, left, right) == good


@pytest.mark.parametrize(
    "left,right,good",
    [
        (("*", Fraction(2), A), ("+", A, A), True),
        (("-", A, B), ("+", A, ("neg", B)), True),
        (("mul", ("+", A, B), ("-", A, B)), ("-", ("mul", A, A), ("mul", B, B)), True),
        (("-", A, B), ("-", B, A), False),
        (("neg", ("neg", A)), A, True),
        (("+", A, lit("0")), A, True),
        (("*", Fraction(0), A), lit("0"), True),
        (("mul", A, lit("1")), A, True),
        (("fexp", A), ("fexp", A), True),
        (("mul", ("recip", lit("2")), A), ("*", Fraction(1, 2), A), False),
        (("max2", A, A), A, False),
        (("fexp", ("+", A, B)), ("fexp", ("+", B, A)), False),
    ],
)
def test_the_law_ring(left: Any, right: Any, good: bool) -> None:
    assert LAWS["ring"].holds(NO_PLAN, left, right) == good


@pytest.mark.parametrize(
    "left,right,good",
    [
        (("mul", ("fsqrt", lit("2")), ("fsqrt", lit("2"))), lit("2"), True),
        (("mul", ("fsqrt", lit("2")), ("fsqrt", lit("2"))), lit("3"), False),
        (("mul", ("fsqrt", lit("2")), ("fsqrt", lit("3"))), lit("2"), False),
        (("mul", ("fsqrt", lit("2")), ("fsqrt", lit("3"))), lit("3"), False),
        (("mul", ("fsqrt", lit("0")), ("fsqrt", lit("0"))), lit("0"), False),
        (("mul", ("fsqrt", lit("-2")), ("fsqrt", lit("-2"))), lit("-2"), False),
        (("mul", ("fsqrt", lit("1/2")), ("recip", ("fsqrt", lit("1/2")))), lit("1"), True),
        (("mul", ("fsqrt", lit("2")), ("recip", ("fsqrt", lit("2")))), lit("2"), False),
        (("mul", ("fsqrt", lit("2")), ("recip", ("fsqrt", lit("3")))), lit("1"), False),
        (("mul", ("fsqrt", lit("0")), ("recip", ("fsqrt", lit("0")))), lit("1"), False),
        (("mul", ("fsqrt", lit("-1")), ("recip", ("fsqrt", lit("-1")))), lit("1"), False),
        (("mul", ("fsqrt", ("neg", lit("2"))), ("fsqrt", ("neg", lit("2")))), ("neg", lit("2")), False),
    ],
)
def test_the_law_root_of_literals(left: Any, right: Any, good: bool) -> None:
    assert roots.holds(None, left, right) == good  # type: ignore[arg-type]


def test_the_cone_of_a_root_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = program(
        [["x", "f32[4]"]],
        [
            op("%0", "exponential", ["x"], "f32[4]"),
            *(op(f"%{k}", "add", [f"%{k - 1}", f"%{k - 1}"], "f32[4]") for k in range(1, 5)),
        ],
        [],
    )
    model = Model(
        read_plan(
            dump(plan_of([], spec, [{"name": "c0", "box": {}, "program": program([], [], [])}], [], []))
        )
    )
    assert roots.nonnegative(model, Tensor("s", "%4"))
    for cap, good in ((5, True), (4, False)):
        monkeypatch.setattr(roots, "MAX_CONE", cap)
        assert roots.nonnegative(model, Tensor("s", "%4")) == good


# Solving for symbols ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index,forms,symbols,want",
    [
        (
            ["6 a + 2 b + c"],
            {"v": 2, "": 12},
            {"a": (0, 9), "b": (0, 3), "c": (0, 2)},
            {"a": "2", "b": "v", "c": "0"},
        ),
        (["3 a + b"], {"v": 3, "u": 1}, {"a": (0, 9), "b": (0, 3)}, {"a": "v", "b": "u"}),
        (["3 a + b"], {"v": 3, "": 7}, {"a": (0, 9), "b": (0, 3)}, {"a": "v + 2", "b": "1"}),
        (["3 a + b"], {"v": 3, "": 7}, {"a": (0, 9), "b": (4, 7)}, {"a": "v + 1", "b": "4"}),
        (["3 a + b + 5"], {"v": 3, "": 12}, {"a": (0, 9), "b": (0, 3)}, {"a": "v + 2", "b": "1"}),
        (["3 a + b"], {"v": 3, "": 7}, {"a": (0, 9), "b": (4, 5)}, {"a": "v + 1", "b": "4"}),
        (["3 a - b"], {"v": 3, "": 7}, {"a": (0, 9), "b": (0, 3)}, {"a": "v + 2", "b": None}),
    ],
)
def test_symbols_are_divided_by_mixed_radix(
    index: list[str], forms: dict[str, int], symbols: Any, want: dict[str, str | None]
) -> None:
    def form(text: str) -> Affine:
        total = Affine(0)
        for part in text.replace("- ", "+ -1 ").split(" + "):
            *head, last = part.split()
            factor = 1
            for h in head:
                factor *= int(h)
            unit = Affine(int(last)) if last.lstrip("-").isdigit() else Affine.symbol(last)
            total = Affine.total([(1, total), (factor, unit)])
        return total

    ref = Tensor("s", "x")
    given = Fact(ref, ref, Fraction(1), tuple((s, lo, hi) for s, (lo, hi) in symbols.items()), (), ())
    target = Affine(forms.get("", 0), tuple(sorted((s, c) for s, c in forms.items() if s)))
    found = divided([form(i) for i in index], [target], given)
    assert {s: found.get(s) for s in want} == {s: None if w is None else form(w) for s, w in want.items()}
