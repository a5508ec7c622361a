"""One check each: the smallest stage, fact or plan that this check alone refuses (by mutation tests)."""

from __future__ import annotations

import itertools
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker import kernel
from checker.errors import Malformed, Rejected, Undecided
from checker.language.affine import Affine
from checker.language.proof import BoundPart, Def, Fact, LayoutStage, Reduced, Tensor
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof
from checker.rules.algebra import MAX_PIECES, Algebra, tiled
from checker.rules.layout import MAX_SUMMANDS, Layout
from checker.rules.model import Model

sys.path.insert(0, str(Path(__file__).parent))
from samples import dump, one_case, op, piece, plan_of, program, refuses, relation, row_parallel, shards, z

ALL = {"0001": "unsat", "0002": "unsat"}


def fact(lhs: Any, rhs: Any, symbols: list[Any], left: list[Any], right: list[Any]) -> dict[str, Any]:
    return {
        "lhs": lhs,
        "rhs": rhs,
        "coef": "1",
        "symbols": symbols,
        "lhs_index": left,
        "rhs_index": right,
        "by": None,
    }


def hyp(at: list[Any], defines: str = "lhs") -> dict[str, Any]:
    return {"k": "hyp", "fact": 0, "at": at, "defines": defines}


# Hypotheses of algebra stages -------------------------------------------------------------------------------


def overlapping(at: list[Any]) -> Algebra:
    """x[z0 + z1] = y[z0], z0 < 2: every x[1 + i] is y[0] (where z0 = 0) and y[1] (where z0 = 1)."""
    return one_case(
        [hyp(at)],
        spec=program([["g", "f32[]"], ["x", "f32[6]"], ["y", "f32[2]"]], [], []),
        facts=(fact("s:x", "s:y", [["z0", 0, 2], ["z1", 0, 5]], [{"z0": 1, "z1": 1}], [z(0)]),),
        trees={"s:x": [[[0, []], [1, ["i"]], [5, []]]], "s:y": [[[0, []], [1, []]]]},
    )


def test_the_other_side_of_a_hypothesis_follows_from_the_element() -> None:
    """Where a fact relates one element to two, the piece stands for one of them: widths count with it."""
    assert overlapping([0, {"i.0": 1, "": 1}]).cases
    with refuses(4, "the other side does not follow from the element of s:x"):
        overlapping([1, {"i.0": 1}])


@pytest.mark.parametrize("at", [[], [{"i.0": 1}, 0]])
def test_one_form_per_symbol_of_a_hypothesis(at: list[Any]) -> None:
    with refuses(4, f"1 symbols, {len(at)} forms"):
        one_case(
            [hyp(at)],
            spec=program([["g", "f32[]"], ["x", "f32[4]"], ["y", "f32[4]"]], [], []),
            facts=(fact("s:x", "s:y", [["z0", 0, 4]], [z(0)], [z(0)]),),
            trees={"s:x": [[[0, ["i"]]]], "s:y": [[[0, ["i"]]]]},
        )


def test_a_constant_is_not_defined() -> None:
    """Read as its literal, it would leave an equation that substitutes nothing: 2 = x[i]."""
    spec = program([["g", "f32[]"], ["x", "f32[4]"]], [op("%0", "constant", [], "f32[4]", value="2")], [])
    trees = {"s:x": [[[0, ["i"]]]], "s:%0": [[[0, ["i"]]]]}
    given = (fact("s:x", "s:%0", [["z0", 0, 4]], [z(0)], [z(0)]),)
    assert one_case([hyp([{"i.0": 1}])], spec=spec, facts=given, trees=trees).cases
    with refuses(4, "s:%0 is a constant and cannot be defined"):
        one_case([hyp([{"i.0": 1}], "rhs")], spec=spec, facts=given, trees=trees)


def test_a_literal_is_not_defined() -> None:
    spec = program([["g", "f32[]"], ["x", "f32[4]"]], [], [])
    given = (fact("s:x", "#f:2", [["z0", 0, 1]], [z(0)], []),)
    with refuses(4, "#f:2 is a constant and cannot be defined"):
        one_case(
            [hyp([0], "rhs")],
            spec=spec,
            facts=given,
            trees={"s:x": [[[0, []], [1, ["j"]]]]},
            classes=(("j", 3, 1),),
        )


# Trees ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [[[0, []], [0, []]], [[1, []], [0, []]], [[0, []], [2, []]]])
def test_pieces_follow_one_another(tree: list[Any]) -> None:
    """As many positions as the coordinate has, but some twice or none at all."""
    spec = program([["g", "f32[]"], ["x", "f32[2]"]], [], [])
    assert one_case([], spec=spec, trees={"s:x": [[[0, []], [1, []]]]}).cases
    with refuses(8, "the pieces of s:x do not tile its range"):
        one_case([], spec=spec, trees={"s:x": [tree]})


#: 128 rows, of which rank r of 2 holds row 64 r + d for d below 63 (class a) and row 64 r + 63.
INTERLEAVED = [[0, ["r", "a"], [64, 1]], [63, ["r"], [64]]]


def interleaved(tree: list[Any]) -> Algebra:
    spec = program([["g", "f32[]"], ["x", "f32[128]"]], [], [])
    classes = ("r", 2, 2), ("a", 63, 1), ("q", 3, 3), ("o", 1, 1)
    return one_case([], spec=spec, trees={"s:x": [tree]}, classes=classes)


def test_pieces_may_interleave() -> None:
    assert interleaved(INTERLEAVED).cases
    assert interleaved([[0, ["a", "r"]], [126, ["r"]]]).cases, "the order of rows in which pieces are ranges"
    assert interleaved([[0, [*["o"] * 62, "a", "r"]], [126, ["r"]]]).cases, "as many classes as may be"


@pytest.mark.parametrize("tree", [
    pytest.param([[0, ["r", "a"]], [63, ["r"], [64]]], id="read row-major, the pieces overlap"),
    pytest.param([[0, ["r", "a"]]], id="rows 126 and 127 are in no piece"),
    pytest.param(INTERLEAVED[:1], id="the rows of d = 63 are in no piece"),
    pytest.param([*INTERLEAVED, INTERLEAVED[1]], id="the rows of d = 63 are in two pieces"),
    pytest.param([[0, ["r", "a"], [64, 1]], [62, ["r"], [64]]], id="row 62 is in two pieces"),
    pytest.param([[0, ["r", "a"], [62, 1]], [63, ["r"], [64]]], id="a piece overlaps itself"),
    pytest.param([[0, ["a", "r"], [1, 64]], [63, ["r"], [64]]], id="minor before major"),
    pytest.param([[0, ["r", "a"], [64, 1]], [63, ["q"], [64]]], id="other pieces repeat more often"),
    pytest.param([INTERLEAVED[1], INTERLEAVED[0]], id="not in order"),
    pytest.param([[0, ["r", "a"], [128, 1]], [63, ["r"], [128]]], id="beyond the range"),
])  # fmt: skip
def test_interleaved_pieces_hold_each_position_once(tree: list[Any]) -> None:
    with refuses(8, "the pieces of s:x do not tile its range"):
        interleaved(tree)


@pytest.mark.parametrize(("piece", "reason"), [
    ([0, ["r", "a"], [64]], "strides out of place"),
    ([0, ["r", "a"], [63, 1]], "strides out of place"),
    ([0, ["r", "a"], [64, 0]], "0 is no integer"),
    ([0, ["r", "a"], [64, -1]], "-1 is no integer"),
    ([0, ["r", "a"], [64, 1], []], "a list of 3 is expected"),
    ([0], "a list of 2 is expected"),
    ([0, ["r"] * 65], "more than 64 classes"),
])  # fmt: skip
def test_malformed_pieces(piece: list[Any], reason: str) -> None:
    """Strides are written only where they are not row-major: a tree has one spelling."""
    with pytest.raises(Malformed, match=reason):
        interleaved([piece])


Strided = list[tuple[int, list[tuple[int, int]]]]


def positions(pieces: Strided) -> list[int]:
    return sorted(
        o + sum(i * s for i, (_, s) in zip(at, digits, strict=True))
        for o, digits in pieces
        for at in itertools.product(*(range(n) for n, _ in digits))
    )


def axis(data: st.DataObject, depth: int) -> Strided:
    """A class, a product of axes or axes one after the other."""
    n = data.draw(st.integers(1, 3))
    if not depth:
        return [(0, [(n, 1)] if data.draw(st.booleans()) else [])]
    if data.draw(st.booleans()):
        inner = axis(data, depth - 1)
        return [(o, [(n, len(positions(inner))), *digits]) for o, digits in inner]
    out: Strided = []
    for _ in range(n):
        low = len(positions(out))
        out += [(low + o, digits) for o, digits in axis(data, depth - 1)]
    return out


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_what_tiles_holds_each_position_once(data: st.DataObject) -> None:
    """Against enumeration: axes of products and ranges tile; with a number changed, only if still true."""
    pieces = axis(data, 3)
    assert tiled(pieces, 0) == len(positions(pieces))
    assert positions(pieces) == list(range(len(positions(pieces))))
    k = data.draw(st.integers(0, len(pieces) - 1))
    offset, digits = pieces[k]
    flat = [offset, *itertools.chain.from_iterable(digits)]
    changed = data.draw(st.integers(0, len(flat) - 1))
    flat[changed] = max(1 if changed else 0, flat[changed] + data.draw(st.sampled_from([-2, -1, 1, 2])))
    pieces[k] = flat[0], list(zip(flat[1::2], flat[2::2], strict=True))
    if data.draw(st.booleans()):
        pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
    end = tiled(pieces, 0)
    assert end is None or positions(pieces) == list(range(end))


def test_the_number_of_pieces_is_capped() -> None:
    for n in (MAX_PIECES, MAX_PIECES + 1):
        spec, trees = (
            program([["g", "f32[]"], ["x", f"f32[{n}]"]], [], []),
            {"s:x": [[[i, []] for i in range(n)]]},
        )
        if n == MAX_PIECES:
            assert one_case([], spec=spec, trees=trees).cases
        else:
            with refuses(8, "the pieces of s:x do not tile its range"):
                one_case([], spec=spec, trees=trees)


def test_a_reduced_tensor_is_cut_like_its_members() -> None:
    """Were it not, a representative of one class would be read as one of another, at another position."""
    red = {"kind": "add", "axes": ["r"], "of": ["c0:x"]}

    def sum_of(cls: str) -> Algebra:
        return one_case(
            [{"k": "def", "e": [red, [[0, 0]]]}],
            spec=program([["g", "f32[]"]], [], []),
            mesh=2,
            local=program([["x", "f32[4]"]], [], []),
            trees={"c0:x": [[[0, ["r"]]], [[0, ["i"]]]]},
            classes=(("i", 4, 1), ("j", 4, 1), ("r", 2, 1)),
            reduced=((red, [[[0, [cls]]]]),),
        )

    assert sum_of("i").cases
    with refuses(8, r"add over r of \(c0:x\) and its member c0:x are cut differently"):
        sum_of("j")


# Goals and caps ---------------------------------------------------------------------------------------------


def pairs(rank: int, n: int, reps: list[list[int]]) -> Algebra:
    """x = x at `rank` free indices of one class with all n representatives."""
    plan = plan_of(
        [["r", 1]],
        program([["x", f"f32[{','.join([str(n)] * rank)}]"]], [], []),
        [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}],
        [],
        [],
    )
    index = [z(i) for i in range(rank)]
    proof = read_proof(
        dump(
            {
                "format": "trainverify-proof",
                "version": 1,
                "facts": [fact("s:x", "s:x", [[f"z{i}", 0, n] for i in range(rank)], index, index)],
                "stages": [
                    {
                        "kind": "algebra",
                        "goal": 0,
                        "title": "t",
                        "classes": [["i", n, n]],
                        "trees": [["s:x", [[[0, ["i"]]]] * rank]],
                        "goal_at": [["i"]] * rank,
                        "cases": [{"reps": reps, "premises": [], "file": "0001"}],
                    }
                ],
            }
        )
    )
    return Algebra(Model(read_plan(dump(plan))), proof.facts, proof.stages[0], "stage 0")  # type: ignore[arg-type]


def test_representatives_are_given_per_symbol() -> None:
    assert pairs(2, 1, [[0], [0]]).cases
    for reps in ([[0, 0], []], [[], [0, 0]], [[0], [0], []], [[0, 0]]):
        with refuses(10, "a case must give one representative per class of each symbol"):
            pairs(2, 1, reps)


def test_coincidence_patterns_are_capped() -> None:
    with refuses(10, "4140 coincidence patterns are needed"):
        pairs(8, 8, [[0]] * 8)
    with pytest.raises(Undecided, match="too many coincidence patterns"):
        pairs(10, 10, [[0]] * 10)


@pytest.mark.parametrize("sizes", [(20_001,), (142, 142)])
@pytest.mark.parametrize("joined", [False, True])
def test_the_terms_of_a_sum_are_capped(sizes: tuple[int, ...], joined: bool) -> None:
    """One coordinate of many classes, or one class each."""
    names = [f"k{i}" for i in range(len(sizes))]
    trees = [[[0, names]]] if joined else [[[0, [k]]] for k in names]
    total = 1
    for n in sizes:
        total *= n
    shape = str(total) if joined else ",".join(map(str, sizes))
    spec = program(
        [["g", "f32[]"], ["x", f"f32[{shape}]"]],
        [op("%0", "reduce", ["x"], "f32[]", dims=list(range(len(trees))), kind="add")],
        [],
    )
    with pytest.raises(Undecided, match="a sum has too many terms"):
        one_case(
            [{"k": "def", "e": ["s:%0", []]}],
            spec=spec,
            trees={"s:x": trees, "s:%0": []},
            classes=tuple((k, n, n) for k, n in zip(names, sizes, strict=True)),
        )


# Facts ------------------------------------------------------------------------------------------------------

REAL, INT, BOOL = (Tensor("s", v) for v in "xip")
MODEL = Model(
    read_plan(
        dump(
            plan_of(
                [["r", 1]],
                program([["x", "f32[]"], ["i", "i64[]"], ["p", "i1[]"]], [], []),
                [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}],
                [],
                [],
            )
        )
    )
)


def about(lhs: Tensor, rhs: Tensor, coef: int = 1) -> None:
    kernel._fact(MODEL, Fact(lhs, rhs, Fraction(coef), (), (), ()), "here")


def test_a_literal_stands_on_the_right_without_coefficient() -> None:
    for ref, space, value in ((REAL, "#f", "1/2"), (INT, "#i", "3"), (BOOL, "#b", "true")):
        literal = Tensor(space, value)
        about(ref, literal)
        for lhs, rhs, coef in ((literal, ref, 1), (literal, literal, 1), (ref, literal, 2)):
            with refuses(3, "a literal stands on the left or under a coefficient"):
                about(lhs, rhs, coef)


@pytest.mark.parametrize(
    "lhs,rhs,coef",
    [
        (REAL, INT, 1),
        (INT, REAL, 1),
        (REAL, BOOL, 1),
        (INT, BOOL, 1),
        (INT, INT, 2),
        (BOOL, BOOL, 2),
        (REAL, Tensor("#i", "1"), 1),
        (INT, Tensor("#f", "1"), 1),
        (BOOL, Tensor("#i", "1"), 1),
    ],
)
def test_both_sides_of_a_fact_have_one_sort(lhs: Tensor, rhs: Tensor, coef: int) -> None:
    about(REAL, REAL, 2)
    with refuses(3, "sorts or coefficient do not fit"):
        about(lhs, rhs, coef)


def test_facts_of_relations_are_checked_even_if_no_stage_cites_them() -> None:
    """The sum of `v` over the axis would be that of one rank alone, which is not what the relation says."""
    bundle = shards()
    bundle.plan["specification"]["inputs"].append(["v", "f32[2]"])
    bundle.plan["classes"][0]["program"]["inputs"].append(["v", "f32[2]"])  # which c1 shares
    pieces = [piece(f"c{r}", [2], [z(0)], [z(0)]) for r in range(2)]
    bundle.plan["inputs"].append(relation("v", "v", *pieces, reduce=["add", ["dp"]]))
    assert bundle.examine().stages
    bundle.plan["inputs"][-1] = relation("v", "v", pieces[0], reduce=["add", ["dp"]])
    with pytest.raises(Rejected, match=r"^obligation 14 .*the classes do not tile the axes"):
        bundle.examine()


def test_an_output_is_finite() -> None:
    bundle = row_parallel()
    own = bundle.plan["classes"][0]["program"]
    own["ops"].append(op("%2", "constant", [], "f32[4]", value="-inf"))
    assert bundle.examine().stages
    own["outputs"].append(["mask", "%2"])
    with refuses(2, "output mask may be infinite"):
        bundle.examine()


def test_no_output_is_proved_and_refuted() -> None:
    examined = row_parallel().examine()
    assert kernel.conclude(examined, {"a": ALL}, 1, {}).outputs[0].verdict == "PROVED"
    assert kernel.conclude(examined, {}, 1, {0: "seen"}).outputs[0].verdict == "REFUTED"
    with pytest.raises(Undecided, match="y is proved and refuted"):
        kernel.conclude(examined, {"a": ALL}, 1, {0: "seen"})


# Layout stages ----------------------------------------------------------------------------------------------


def layout(premise: Any, ranks: int = 2) -> Layout:
    local = program(
        [["x", "f32[4]"]], [op("%0", "negate", ["x"], "f32[4]"), op("%1", "reshape", ["x"], "f32[2,2]")], []
    )
    plan = read_plan(
        dump(
            plan_of(
                [["r", ranks]],
                program([["g", "f32[]"]], [], []),
                [{"name": "c0", "box": {"r": [0, ranks]}, "program": local}],
                [],
                [],
            )
        )
    )
    goal = Fact(Tensor("s", "g"), Tensor("s", "g"), Fraction(1), (), (), ())
    return Layout(Model(plan), [goal], LayoutStage(0, "", "0001", (), (premise,)), "here")


ZERO = Affine(0)


def test_only_an_op_that_regroups_has_an_index_equation() -> None:
    assert layout(BoundPart(Tensor("c0", "%1"), (ZERO, ZERO, ZERO), (ZERO, ZERO), 0)).assertions
    with refuses(6, "negate of c0:%0 does not regroup indices"):
        layout(BoundPart(Tensor("c0", "%0"), (ZERO, ZERO), (ZERO, ZERO), 0))


def test_which_reduced_tensors_list_their_ranks() -> None:
    def listed(kind: str, ranks: int, arg: Any = None) -> Layout:
        return layout(Def(Reduced(kind, ("r",), (Tensor("c0", "x"),)), (ZERO,), arg), ranks)

    assert listed("add", 2).assertions and listed("add", MAX_SUMMANDS).assertions
    for kind, ranks, arg in (
        ("max", 2, None),
        ("min", 2, None),
        ("add", MAX_SUMMANDS + 1, None),
        ("add", 2, (ZERO,)),
    ):
        with refuses(5, r"over r of \(c0:x\) has no layout def"):
            listed(kind, ranks, arg)
