"""What the reader of plans refuses, type rules included: every check by a case of its own."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.reading import plan as reader
from checker.reading.plan import read_plan, read_type

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import at, dump, op, piece, plan_of, plus, program, relation, row_parallel, shards, z

# Plans ------------------------------------------------------------------------------------------------------

INTEGER = ["n", "i64[4]"]
PLANS: list[tuple[str, Any, str]] = [
    ("version", 5, "unknown version, or provenance"),
    ("provenance", [], "unknown version, or provenance"),
    ("mesh", [["tp", 2], ["tp", 1]], "mesh: bad axes"),
    ("mesh", [["tp", 0]], "mesh: bad axes"),
    ("mesh", [["tp", (1 << 20) + 1]], "mesh: bad axes"),
    ("mesh.0.0", "t0", "is reserved"),
    ("classes.0.box", {"tp": [0, 2], "dp": [0, 1]}, "box: unknown member"),
    ("classes.0.box", {"tp": [-1, 2]}, "bad box"),
    ("classes.0.box", {"tp": [0, 3]}, "bad box"),
    ("classes.0.box", {"tp": [1, 1]}, r"no integer in \[2, "),
    ("classes.0.box", {}, "tp is missing"),
    ("classes", lambda c: [*c, c[0]], "class c0 occurs twice"),
    ("classes", lambda c: [*c, c[0] | {"name": "c1"}], "two rank classes share a rank"),
    ("classes.0.box", {"tp": [0, 1]}, "do not cover the mesh"),
    ("ranges", {"x": [0, 2]}, "unknown member 'x'"),
    ("ranges", {"q": [0, 2]}, "unknown member 'q'"),
    ("groups.g.axes", ["tp", "tp"], "bad axes"),
    ("groups.g.axes", ["pp"], "bad axes"),
    ("groups.g.ranks", [[0], [0, 1]], "no partition"),
    ("groups.g.ranks", [[0, 2]], "no integer in"),
    ("groups.g.ranks", [[0, 1], []], "lists of different lengths"),
    ("groups", [], "an object is expected"),
    ("specification.inputs", plus(["x", "f32[4,6]"]), "an input occurs twice"),
    ("specification.outputs", plus(["y", "x"]), "an output occurs twice"),
    ("specification.outputs", plus(["z", "%9"]), "an output has no value"),
    ("specification.ops", lambda o: o * 2, "assigned twice"),
    ("specification.ops.0.0", "x", "no valid text"),
    ("specification.ops.0.0", "%00", "no valid text"),
    ("specification.ops.0", lambda o: o[:5], "a list of 6"),
    ("specification.ops.0.5", [1, 1, "f"], r"no integer in \[0, 1\)"),
    ("specification.ops.0.5", [0, -1, "f"], "no integer in"),
    ("specification.ops.0.5", [0, 1], "a list of 3"),
    ("classes.0.program.ops.1.4.group", "h", "unknown process group"),
    ("inputs.0.spec", "v", "the specification has no such input v"),
    ("inputs.0.plan", "v", "class c0 has no such input v"),
    ("outputs.0.spec", "x", "the specification has no such output x"),
    ("outputs.0.plan", "x", "class c0 has no such output x"),
    ("inputs.0.coef", "0", "^input relation 0: bad coefficient"),
    ("inputs.0.pieces", [], "no pieces"),
    ("inputs.0.reduce", ["add", []], "reduced axes must be mesh axes"),
    ("inputs.0.reduce", ["add", ["dp"]], "reduced axes must be mesh axes"),
    ("inputs.0.reduce", ["add", ["tp", "tp"]], "reduced axes must be mesh axes"),
    ("inputs.0.reduce", ["mean", ["tp"]], "unknown reduction"),
    ("inputs.0.pieces.0.class", "c9", "unknown class"),
    ("inputs.0.pieces.0.sizes", [4, 3] + [1] * 31, "too many digits"),
    ("inputs.0.pieces.0.sizes", [0, 3], r"no integer in \[1, "),
    ("inputs.0.pieces.0.plan", [{"z0": 1}], "wrong rank"),
    ("inputs.0.pieces.0.spec", [{"z0": 1}], "wrong rank"),
    ("inputs.0.pieces.0.plan", [{"tp": 1}, {"z1": 1}], "unknown symbol"),
    ("inputs.0.pieces.0.sizes", [5, 3], "leaves its tensor"),
    ("inputs.0.pieces.0.plan.1", {"z1": 1, "": 1}, "leaves its tensor"),
    ("inputs.0.pieces.0.spec.0", {"z0": 1, "": -1}, "leaves its tensor"),
    ("inputs.0.pieces.0.spec.1", {"tp": 3, "z1": 1, "": 1}, "leaves its tensor"),
]


@pytest.mark.parametrize("path,value,reason", PLANS, ids=[f"{n} {p}" for n, (p, _, _) in enumerate(PLANS)])
def test_plans(path: str, value: Any, reason: str) -> None:
    plan = copy.deepcopy(row_parallel().plan)
    assert read_plan(dump(plan))
    at(path, value)(plan)
    with pytest.raises(Malformed, match=reason):
        read_plan(dump(plan))


def test_what_plans_may_say() -> None:
    for path, value in (
        ("inputs.0.pieces.0.sizes", [4, 3] + [1] * 30),
        ("groups", {}),
        ("sources", []),
        ("specification.ops.0.5", [0, 0, "f"]),
        ("provenance", {"any": [1, {"k": None}]}),
    ):
        plan = copy.deepcopy(row_parallel().plan)
        if path == "groups":
            del plan["classes"][0]["program"]["ops"][1]
            plan["classes"][0]["program"]["outputs"] = []
            plan["outputs"] = []
        at(path, value)(plan)
        assert read_plan(dump(plan)), path


def one_rank(inputs: list[list[str]], *ops: Any, mesh: Any = (("r", 1),)) -> dict[str, Any]:
    given = program(inputs, list(ops), [])
    box = {a: [0, n] for a, n in mesh}
    return plan_of([list(m) for m in mesh], given, [{"name": "c0", "box": box, "program": given}], [], [])


def test_which_groups_are_factorised() -> None:
    """Their rank lists are the fibres of the axes they name, in the order of these; no axes, no fibres."""
    mesh = (("a", 2), ("b", 2))
    for axes, ranks, good in (
        (["a"], [[0, 2], [1, 3]], True), (["b"], [[0, 1], [2, 3]], True), (["a"], [[0, 1], [2, 3]], False),
        (["a", "b"], [[0, 1, 2, 3]], True), (["b", "a"], [[0, 2, 1, 3]], True),
        (["b", "a"], [[0, 1, 2, 3]], False), (["a"], [[2, 0], [1, 3]], False),
        (["a"], [[1, 3], [0, 2]], True), ([], [[0], [1], [2], [3]], False), ([], [[0, 1, 2, 3]], False),
    ):  # fmt: skip
        plan = one_rank([], mesh=mesh) | {"groups": {"g": {"axes": axes, "ranks": ranks}}}
        assert read_plan(dump(plan)).groups["g"].factorised == good, (axes, ranks)


def test_sorts_of_a_relation_agree() -> None:
    plan = one_rank([["x", "f32[4]"], ["n", "i64[4]"], ["p", "i1[4]"]])
    whole = piece("c0", [4], [z(0)], [z(0)])
    for spec, local, coef, good in (
        ("x", "x", "2", True),
        ("n", "n", "1", True),
        ("n", "n", "2", False),
        ("p", "p", "1", True),
        ("p", "p", "2", False),
        ("x", "n", "1", False),
        ("n", "x", "1", False),
        ("p", "x", "1", False),
    ):
        plan["inputs"] = [relation(spec, local, whole, coef=coef)]
        if good:
            assert read_plan(dump(plan))
        else:
            with pytest.raises(Malformed, match="bad coefficient" if spec == local else "the sorts of"):
                read_plan(dump(plan))


def test_ranges_are_of_integers() -> None:
    plan = one_rank([["x", "f32[4]"], ["n", "i64[4]"]])
    for name, bounds, good in (
        ("n", [0, 1], True),
        ("n", [-5, 3], True),
        ("n", [0, 0], False),
        ("x", [0, 1], False),
        ("n", [0], False),
    ):
        plan["ranges"] = {name: bounds}
        if good:
            assert read_plan(dump(plan)).ranges == {"n": tuple(bounds)}
        else:
            with pytest.raises(Malformed):
                read_plan(dump(plan))


def test_classes_and_ranks_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = program([], [], [])

    def parts(n: int) -> bytes:
        plan = one_rank([], mesh=(("r", n),))
        plan["classes"] = [{"name": f"k{i}", "box": {"r": [i, i + 1]}, "program": empty} for i in range(n)]
        return dump(plan)

    assert read_plan(dump(one_rank([], mesh=(("r", 1 << 20),)))), "a million ranks in one class"
    monkeypatch.setattr(reader, "MAX_CLASSES", 3)
    assert read_plan(parts(3))
    with pytest.raises(Malformed, match="more than 3 classes"):
        read_plan(parts(4))


@pytest.mark.parametrize(
    "change", [("1", "all_gather", {"dim": 1, "seq": 3}), ("4.dim", 1, None), ("4.group", "h", None)]
)
def test_classes_meet_in_one_op(change: tuple[Any, ...]) -> None:
    """The same number in two classes is one collective: op, group, attributes and operand type agree."""
    bundle = shards()
    plan = copy.deepcopy(bundle.plan) | {"outputs": []}
    plan["groups"]["h"] = copy.deepcopy(plan["groups"]["g"])
    programs = [copy.deepcopy(plan["classes"][0]["program"]) for _ in range(2)]
    for own in programs:
        own["ops"], own["outputs"] = own["ops"][:1], []
    plan["classes"] = [plan["classes"][i] | {"program": programs[i]} for i in range(2)]
    assert read_plan(dump(plan))
    if change[0] == "4.dim":
        programs[1]["ops"][0][4]["dim"], programs[1]["ops"][0][3] = 1, "f32[3,4]"
    elif change[0] == "4.group":
        programs[1]["ops"][0][4]["group"] = "h"
    else:
        programs[1]["ops"][0] = op("%0", "all_reduce", ["x"], "f32[3,2]", group="g", kind="add", seq=3)
    with pytest.raises(Malformed, match="rendezvous 3: classes disagree"):
        read_plan(dump(plan))


def test_absent_members_of_a_group() -> None:
    """Three classes of two ranks each; a collective of pairs may leave out a whole class, not half a pair."""
    own = program(
        [["x", "f32[2]"]], [op("%0", "all_reduce", ["x"], "f32[2]", group="g", kind="add", seq=0)], []
    )
    idle = program([["x", "f32[2]"]], [], [])
    for pairs, good in (
        ([[0, 1], [2, 3], [4, 5]], True),
        ([[0, 2], [1, 3], [4, 5]], True),
        ([[0, 4], [1, 5], [2, 3]], False),
        ([[1, 2], [3, 4], [0, 5]], False),
    ):
        plan = plan_of(
            [["a", 3], ["b", 2]],
            program([], [], []),
            [
                {"name": f"c{i}", "box": {"a": [i, i + 1], "b": [0, 2]}, "program": own if i < 2 else idle}
                for i in range(3)
            ],
            [],
            [],
            {"g": {"axes": [], "ranks": pairs}},
        )
        if good:
            assert not read_plan(dump(plan)).groups["g"].factorised
        else:
            with pytest.raises(Malformed, match="a member of a group is absent"):
                read_plan(dump(plan))


@pytest.mark.parametrize(
    "text,good",
    [
        ("f32[]", True),
        ("f32[1]", True),
        ("bf16[2,3]", True),
        ("f32[" + ",".join(["1"] * 16) + "]", True),
        ("f32[" + ",".join(["1"] * 17) + "]", False),
        ("f32[0]", False),
        ("f32[01]", False),
        ("f32[1,]", False),
        ("f32[,1]", False),
        ("f32[-1]", False),
        ("f32[999999999999]", True),
        ("f32[1000000000000]", False),
        ("f32", False),
        ("f33[1]", False),
        ("F32[1]", False),
        ("f32[1] ", False),
        (None, False),
        (7, False),
    ],
)
def test_types(text: Any, good: bool) -> None:
    if good:
        assert str(read_type(text, "x")) == text
    else:
        with pytest.raises(Malformed):
            read_type(text, "x")


# Type rules -------------------------------------------------------------------------------------------------

DOT = {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [1], "rhs_contract": [0]}
X, N = "f32[4,6]", "i64[4]"
TYPES: list[tuple[str, list[str], str, dict[str, Any], str | None]] = [
    ("constant", [], "i1[2]", {"value": "True"}, "the literal does not fit"),
    ("constant", [], "i1[2]", {"value": 1}, "the literal does not fit"),
    ("constant", [], "i64[]", {"value": "1/2"}, "the literal does not fit"),
    ("constant", [], "i64[]", {"value": "-inf"}, "the literal does not fit"),
    ("constant", [], "f32[]", {"value": 7}, None),
    ("iota", [], "i64[4]", {"dim": 1}, "a bad dimension"),
    ("iota", [], "i1[4]", {"dim": 0}, "a bad dimension"),
    ("iota", [], "i64[]", {"dim": 0}, "a bad dimension"),
    ("compare", ["x", "w"], "i1[4,6]", {"direction": "EQ"}, "types do not fit"),
    ("compare", ["i", "y"], "i1[4]", {"direction": "EQ"}, "types do not fit"),
    ("compare", ["y", "h"], "i1[4]", {"direction": "EQ"}, None),
    ("compare", ["p", "p"], "i1[4]", {"direction": "GE"}, "booleans have no order"),
    ("compare", ["p", "p"], "i1[4]", {"direction": "NE"}, None),
    ("convert", ["y"], N, {}, "no such conversion"),
    ("convert", ["y"], "i1[4]", {}, "no such conversion"),
    ("convert", ["y"], "f64[4]", {}, None),
    ("select", ["i", "y", "y"], "f32[4]", {}, "operands do not fit"),
    ("select", ["p", "y", "i"], "f32[4]", {}, "operands do not fit"),
    ("select", ["p", "x", "x"], X, {}, "operands do not fit"),
    ("select", ["p", "y", "y"], "i64[4]", {}, "result type does not fit"),
    ("broadcast_in_dim", ["y"], "f32[4,2]", {"dims": [0, 1]}, "dims does not fit the operand"),
    ("broadcast_in_dim", ["y"], "f32[4,2]", {"dims": [2]}, "dims names no dimensions"),
    ("broadcast_in_dim", ["x"], "f32[4,6]", {"dims": [0, 0]}, "dims names no dimensions"),
    ("broadcast_in_dim", ["x"], "f32[6,4]", {"dims": [1, 0]}, "dims must increase"),
    ("broadcast_in_dim", ["y"], "f32[4,2]", {"dims": [1]}, "sizes do not fit"),
    ("broadcast_in_dim", ["o"], "f32[4,6]", {"dims": [0, 1]}, None),
    ("reshape", ["x"], "f32[25]", {}, "the size changes"),
    ("transpose", ["x"], "f32[4]", {"perm": [0]}, "no permutation"),
    ("transpose", ["x"], "f32[4,4]", {"perm": [0, 0]}, "perm names no dimensions"),
    ("slice", ["x"], "f32[4]", {"start": [0, 0], "stride": [1, 1]}, "ranks differ"),
    ("slice", ["x"], X, {"start": [0], "stride": [1, 1]}, "ranks differ"),
    ("slice", ["x"], X, {"start": [0, 0], "stride": [1]}, "ranks differ"),
    ("slice", ["y"], "f32[2]", {"start": [-1], "stride": [1]}, "the slice leaves its operand"),
    ("slice", ["y"], "f32[2]", {"start": [1], "stride": [3]}, "the slice leaves its operand"),
    ("slice", ["y"], "f32[2]", {"start": [3], "stride": [1]}, "the slice leaves its operand"),
    ("slice", ["y"], "f32[2]", {"start": [0], "stride": [3]}, None),
    ("slice", ["y"], "f32[1]", {"start": [3], "stride": [9]}, None),
    ("pad", ["y", "v"], "f32[6]", {"low": [1, 0], "high": [1]}, "ranks differ"),
    ("pad", ["y", "v"], "f32[6]", {"low": [1], "high": [1, 0]}, "ranks differ"),
    ("pad", ["y", "y"], "f32[6]", {"low": [1], "high": [1]}, "the padding value must be a scalar"),
    ("pad", ["i", "v"], "i64[6]", {"low": [1], "high": [1]}, "the padding value must be a scalar"),
    ("pad", ["y", "v"], "f32[6]", {"low": [1], "high": [1]}, None),
    ("concatenate", ["y", "y"], "f32[8]", {"dim": 1}, "a bad dimension"),
    ("concatenate", ["y", "i"], "f32[8]", {"dim": 0}, "types do not fit"),
    ("concatenate", ["x", "w"], "f32[4,14]", {"dim": 1}, "types do not fit"),
    ("concatenate", ["x", "w"], "f32[10,6]", {"dim": 0}, "types do not fit"),
    ("concatenate", ["x", "y"], "f32[8,6]", {"dim": 0}, "types do not fit"),
    ("concatenate", ["x", "o"], "f32[5,6]", {"dim": 0}, None),
    ("concatenate", ["y", "v"], "f32[5]", {"dim": 0}, "types do not fit"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_batch": [1]}, "a dimension is named twice"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"rhs_batch": [0]}, "a dimension is named twice"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_batch": [0], "rhs_batch": [1]}, "batch sizes differ"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_batch": [0]}, "batch sizes differ"),
    ("dot_general", ["x", "w"], "f32[6,6]", DOT | {"lhs_contract": [0]}, "contracting sizes differ"),
    ("dot_general", ["x", "w"], "f32[4,6,8]", DOT | {"lhs_contract": []}, "contracting sizes differ"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_contract": [2]}, "lhs_contract names no dimensions"),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"rhs_contract": [2]}, "rhs_contract names no dimensions"),
    ("dot_general", ["x", "w"], "i64[4,8]", DOT, "sorts do not fit"),
    ("dot_general", ["x", "n"], "f32[4,8]", DOT, "sorts do not fit"),
    ("dot_general", ["k", "w"], "f32[4,8]", DOT, "sorts do not fit"),
    ("dot_general", ["b", "b"], "i1[4,4]", DOT | {"rhs_contract": [1]}, "sorts do not fit"),
    ("dot_general", ["x", "w"], "f64[4,8]", DOT, None),
    ("reduce", ["x"], "f32[4]", {"dims": [2], "kind": "add"}, "dims names no dimensions"),
    ("reduce", ["x"], "f32[]", {"dims": [1, 0], "kind": "add"}, "dims must increase"),
    ("reduce", ["x"], "f32[4]", {"dims": [1], "kind": "and"}, "unknown kind"),
    ("reduce", ["p"], "i1[]", {"dims": [0], "kind": "max"}, "unknown kind"),
    ("reduce", ["p"], "i1[]", {"dims": [0], "kind": "or"}, None),
    ("reduce", ["x"], "f32[]", {"dims": [0, 1], "kind": "min"}, None),
    ("gather", ["x", "i"], "f32[4,4]", {"axis": 2, "batch_dims": 0}, "a bad axis"),
    ("gather", ["x", "i"], "f32[4]", {"axis": 0, "batch_dims": 1}, "a bad axis"),
    ("gather", ["x", "j"], "f32[4]", {"axis": 1, "batch_dims": 1}, "a bad axis"),
    ("gather", ["x", "y"], "f32[4,6]", {"axis": 0, "batch_dims": 0}, "the index tensor does not fit"),
    ("gather", ["w", "i"], "f32[6]", {"axis": 1, "batch_dims": 1}, "the index tensor does not fit"),
    ("gather", ["x", "i"], "f32[4]", {"axis": 1, "batch_dims": 1}, None),
    ("gather", ["x", "j"], "f32[6]", {"axis": 0, "batch_dims": 0}, None),
    ("add", ["y", "h"], "f32[4]", {}, "operands and result must have one suitable type"),
    ("add", ["p", "p"], "i1[4]", {}, "operands and result must have one suitable type"),
    ("power", ["i", "i"], N, {}, "operands and result must have one suitable type"),
    ("abs", ["i"], N, {}, None),
]


@pytest.mark.parametrize("name,operands,kind,attrs,reason", TYPES, ids=str)
def test_type_rules(
    name: str, operands: list[str], kind: str, attrs: dict[str, Any], reason: str | None
) -> None:
    """StableHLO's: who breaks one is told which."""
    given = [["x", X], ["w", "f32[6,8]"], ["n", "i64[6,8]"], ["y", "f32[4]"], ["h", "f64[4]"], ["i", N],
             ["p", "i1[4]"], ["b", "i1[4,6]"], ["v", "f32[]"], ["o", "f32[1,6]"], ["j", "i64[]"],
             ["k", "i64[4,6]"]]  # fmt: skip
    plan = dump(one_rank(given, op("%0", name, operands, kind, **attrs)))
    if reason is None:
        assert str(read_plan(plan).spec.types["%0"]) == kind
    else:
        with pytest.raises(Malformed, match=f"specification: op %0 {name}: {reason}"):
            read_plan(plan)


COLLECTIVES: list[tuple[str, str, dict[str, Any], str | None]] = [
    ("all_reduce", "f32[4,6]", {"kind": "and"}, "unknown kind"),
    ("all_reduce", "f32[4,6]", {"kind": "min"}, None),
    ("reduce_scatter", "f32[2,6]", {"kind": "max", "dim": 0}, "unknown kind"),
    ("reduce_scatter", "f32[4,3]", {"kind": "add", "dim": 1}, None),
    ("reduce_scatter", "f32[4,6]", {"kind": "add", "dim": 2}, "a bad dimension"),
    ("all_gather", "f32[8,6]", {"dim": 2}, "a bad dimension"),
    ("all_gather", "f32[4,12]", {"dim": 1}, None),
    ("all_to_all", "f32[8,3]", {"split_dim": 2, "concat_dim": 0}, "a bad dimension"),
    ("all_to_all", "f32[8,3]", {"split_dim": 1, "concat_dim": 2}, "a bad dimension"),
    ("all_to_all", "f32[8,3]", {"split_dim": 1, "concat_dim": 0}, None),
    ("all_to_all", "f32[2,12]", {"split_dim": 0, "concat_dim": 1}, None),
    ("all_to_all", "f32[4,6]", {"split_dim": 1, "concat_dim": 1}, None),
    ("all_gather", "f32[8,6]", {"dim": 1}, "result type does not fit"),
]


@pytest.mark.parametrize("name,kind,attrs,reason", COLLECTIVES, ids=str)
def test_type_rules_of_collectives(name: str, kind: str, attrs: dict[str, Any], reason: str | None) -> None:
    plan = one_rank([["x", X]], op("%0", name, ["x"], kind, group="g", seq=0, **attrs), mesh=(("r", 2),))
    plan |= {"groups": {"g": {"axes": ["r"], "ranks": [[0, 1]]}}, "specification": program([], [], [])}
    if reason is None:
        assert read_plan(dump(plan)).rendezvous[0]["c0"].name == name
    else:
        with pytest.raises(Malformed, match=f"class c0: op %0 {name}: {reason}"):
            read_plan(dump(plan))


def test_the_group_divides_the_dimension() -> None:
    for name, kind, attrs in (("reduce_scatter", "f32[1,6]", {"kind": "add", "dim": 0}),
                              ("all_to_all", "f32[1,18]", {"split_dim": 0, "concat_dim": 1})):  # fmt: skip
        plan = one_rank([["x", X]], op("%0", name, ["x"], kind, group="g", seq=0, **attrs), mesh=(("r", 3),))
        plan |= {"groups": {"g": {"axes": ["r"], "ranks": [[0, 1, 2]]}}, "specification": program([], [], [])}
        with pytest.raises(Malformed, match="the group does not divide the dimension"):
            read_plan(dump(plan))


def test_booleans_are_not_reduced_over_ranks() -> None:
    reduce = op("%0", "all_reduce", ["p"], "i1[4]", group="g", seq=0, kind="max")
    plan = one_rank([["p", "i1[4]"]], reduce, mesh=(("r", 2),))
    plan |= {"groups": {"g": {"axes": ["r"], "ranks": [[0, 1]]}}, "specification": program([], [], [])}
    with pytest.raises(Malformed, match="unknown kind"):
        read_plan(dump(plan))


def test_literals_with_rank_dependent_forms() -> None:
    """A form without a symbol is a number like one that is given as a text."""
    constant = op("%0", "constant", [], "i64[]", value={"r": 2, "": 1})
    plan = one_rank([], mesh=(("r", 2),))
    plan["classes"][0]["program"] = program([], [constant, op("%1", "constant", [], "i64[]", value=3)], [])
    ops = read_plan(dump(plan)).classes["c0"].program.ops
    assert str(ops[0].attrs["value"].terms) == "(('r', 2),)" and ops[1].attrs["value"] == 3
