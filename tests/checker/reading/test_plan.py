"""The strict readers: hostile values give one line and nothing else; every type rule refuses something."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed, Rejected
from checker.kernel import examine
from checker.reading.plan import read_plan
from checker.reading.proof import read_manifest, read_proof
from checker.reading.strict import read_json

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import Bundle, dump, op, piece, plan_of, program, relation, row_parallel, z


def with_op(*ops: Any, inputs: Any = None) -> bytes:
    """A plan of one rank whose specification has these ops and whose class does nothing."""
    given = inputs or [
        ["x", "f32[4,6]"],
        ["w", "f32[6,8]"],
        ["i", "i64[4]"],
        ["p", "i1[4,6]"],
        ["v", "f32[]"],
    ]
    spec = program(given, list(ops), [])
    return dump(
        plan_of(
            [["r", 1]], spec, [{"name": "c0", "box": {"r": [0, 1]}, "program": program([], [], [])}], [], []
        )
    )


DOT = {"lhs_batch": [], "rhs_batch": [], "lhs_contract": [1], "rhs_contract": [0]}
GOOD: list[tuple[Any, ...]] = [
    ("constant", [], "f32[2]", {"value": "1/2"}),
    ("constant", [], "i1[]", {"value": "true"}),
    ("constant", [], "f32[]", {"value": "-inf"}),
    ("constant", [], "i64[]", {"value": 3}),
    ("iota", [], "i64[4,2]", {"dim": 1}),
    ("add", ["x", "x"], "f32[4,6]", {}),
    ("not", ["p"], "i1[4,6]", {}),
    ("convert", ["i"], "f32[4]", {}),
    ("convert", ["p"], "i64[4,6]", {}),
    ("convert", ["i"], "i1[4]", {}),
    ("compare", ["x", "x"], "i1[4,6]", {"direction": "LT"}),
    ("select", ["p", "x", "x"], "f32[4,6]", {}),
    ("broadcast_in_dim", ["i"], "i64[4,2]", {"dims": [0]}),
    ("reshape", ["x"], "f32[24]", {}),
    ("transpose", ["x"], "f32[6,4]", {"perm": [1, 0]}),
    ("slice", ["x"], "f32[2,3]", {"start": [1, 0], "stride": [2, 2]}),
    ("pad", ["x", "v"], "f32[5,8]", {"low": [1, 0], "high": [0, 2]}),
    ("concatenate", ["x", "x"], "f32[8,6]", {"dim": 0}),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT),
    ("reduce", ["x"], "f32[6]", {"dims": [0], "kind": "max"}),
    ("reduce", ["p"], "i1[4]", {"dims": [1], "kind": "and"}),
    ("gather", ["x", "i"], "f32[4,6]", {"axis": 0, "batch_dims": 0}),
]
WRONG: list[tuple[Any, ...]] = [
    ("constant", [], "i1[2]", {"value": "1"}),
    ("constant", [], "i64[]", {"value": "inf"}),
    ("constant", [], "i64[]", {"value": "1/2"}),
    ("constant", [], "f32[]", {"value": "2/4"}),
    ("constant", [], "f32[]", {"value": {"r": 1}}),
    ("constant", [], "f32[]", {"value": []}),
    ("iota", [], "i1[4,2]", {"dim": 1}),
    ("iota", [], "i64[4,2]", {"dim": 2}),
    ("add", ["x", "w"], "f32[4,6]", {}),
    ("add", ["x", "x"], "f64[4,6]", {}),
    ("add", ["p", "p"], "i1[4,6]", {}),
    ("add", ["x"], "f32[4,6]", {}),
    ("add", ["x", "x", "x"], "f32[4,6]", {}),
    ("add", ["x", "x"], "f32[4,6]", {"k": 1}),
    ("exponential", ["i"], "i64[4]", {}),
    ("not", ["x"], "f32[4,6]", {}),
    ("power", ["i", "i"], "i64[4]", {}),
    ("convert", ["x"], "i64[4,6]", {}),
    ("convert", ["x"], "f64[4]", {}),
    ("convert", ["x"], "i1[4,6]", {}),
    ("compare", ["p", "p"], "i1[4,6]", {"direction": "LT"}),
    ("compare", ["x", "x"], "f32[4,6]", {"direction": "LT"}),
    ("compare", ["x", "p"], "i1[4,6]", {"direction": "EQ"}),
    ("compare", ["x", "x"], "i1[4,6]", {"direction": "lt"}),
    ("compare", ["x", "w"], "i1[4,6]", {"direction": "EQ"}),
    ("select", ["x", "x", "x"], "f32[4,6]", {}),
    ("select", ["p", "x", "w"], "f32[4,6]", {}),
    ("broadcast_in_dim", ["i"], "i64[2,4]", {"dims": [0]}),
    ("broadcast_in_dim", ["i"], "f32[4,2]", {"dims": [0]}),
    ("broadcast_in_dim", ["x"], "f32[6,4]", {"dims": [1, 0]}),
    ("broadcast_in_dim", ["i"], "i64[4]", {"dims": [1]}),
    ("broadcast_in_dim", ["i"], "i64[4,2]", {"dims": []}),
    ("broadcast_in_dim", ["x"], "f32[4,6]", {"dims": [0, 0]}),
    ("reshape", ["x"], "f32[25]", {}),
    ("reshape", ["x"], "f64[24]", {}),
    ("transpose", ["x"], "f32[4,6]", {"perm": [1, 0]}),
    ("transpose", ["x"], "f32[4,4]", {"perm": [0, 0]}),
    ("transpose", ["x"], "f32[4]", {"perm": [0]}),
    ("slice", ["x"], "f32[2,3]", {"start": [2, 0], "stride": [2, 2]}),
    ("slice", ["x"], "f32[2,3]", {"start": [-1, 0], "stride": [1, 1]}),
    ("slice", ["x"], "f32[2,3]", {"start": [0, 0], "stride": [0, 1]}),
    ("slice", ["x"], "f32[2]", {"start": [0], "stride": [1]}),
    ("slice", ["x"], "f32[2,3]", {"start": [{"r": 1}, 0], "stride": [1, 1]}),
    ("pad", ["x", "x"], "f32[5,8]", {"low": [1, 0], "high": [0, 2]}),
    ("pad", ["x", "v"], "f32[5,9]", {"low": [1, 0], "high": [0, 2]}),
    ("pad", ["x", "v"], "f32[5]", {"low": [1], "high": [0]}),
    ("pad", ["x", "v"], "f32[3,6]", {"low": [-1, 0], "high": [0, 0]}),
    ("concatenate", [], "f32[4,6]", {"dim": 0}),
    ("concatenate", ["x", "w"], "f32[10,6]", {"dim": 0}),
    ("concatenate", ["x", "x"], "f32[8,6]", {"dim": 2}),
    ("concatenate", ["x", "x"], "f32[7,6]", {"dim": 0}),
    ("concatenate", ["v", "v"], "f32[2]", {"dim": 0}),
    ("concatenate", ["p", "x"], "i1[8,6]", {"dim": 0}),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"rhs_contract": [1]}),
    ("dot_general", ["x", "w"], "f32[8,4]", DOT),
    ("dot_general", ["x", "w"], "f32[4,8]", DOT | {"lhs_contract": [2]}),
    ("dot_general", ["x", "x"], "f32[4]", DOT | {"lhs_batch": [1], "rhs_batch": [1], "rhs_contract": [1]}),
    ("dot_general", ["x", "x"], "f32[]", DOT | {"lhs_contract": [0, 0], "rhs_contract": [0, 0]}),
    ("dot_general", ["x", "w"], "i64[4,8]", DOT),
    (
        "dot_general",
        ["x", "x"],
        "f32[4,4,6]",
        DOT | {"lhs_batch": [0], "rhs_batch": [1], "lhs_contract": [], "rhs_contract": []},
    ),
    ("reduce", ["x"], "f32[6]", {"dims": [0], "kind": "and"}),
    ("reduce", ["p"], "i1[4]", {"dims": [1], "kind": "add"}),
    ("reduce", ["x"], "f32[4]", {"dims": [0], "kind": "max"}),
    ("reduce", ["x"], "f32[]", {"dims": [1, 0], "kind": "add"}),
    ("reduce", ["x"], "f32[4,6]", {"dims": [2], "kind": "add"}),
    ("reduce", ["x"], "f32[6]", {"dims": [0], "kind": "or"}),
    ("gather", ["x", "x"], "f32[4,6,6]", {"axis": 0, "batch_dims": 0}),
    ("gather", ["x", "i"], "f32[4,6]", {"axis": 2, "batch_dims": 0}),
    ("gather", ["x", "i"], "f32[4]", {"axis": 0, "batch_dims": 1}),
    ("gather", ["w", "i"], "f32[6]", {"axis": 1, "batch_dims": 1}),
    ("all_reduce", ["x"], "f32[4,6]", {"group": "g", "kind": "add", "seq": 0}),
    ("sort", ["x"], "f32[4,6]", {}),
    (["add"], ["x", "x"], "f32[4,6]", {}),
    ({"a": 1}, ["x"], "f32[4,6]", {}),
    (None, ["x"], "f32[4,6]", {}),
    ("add", [["x"], "x"], "f32[4,6]", {}),
    ("add", ["x", "y"], "f32[4,6]", {}),
    ("add", "xx", "f32[4,6]", {}),
    ("add", ["x", "x"], "f8[4,6]", {}),
    ("add", ["x", "x"], ["f32"], {}),
    ("add", ["x", "x"], "f32[4,06]", {}),
    ("add", ["x", "x"], "f32[4,6]", []),
    ("add", ["x", "x"], "f32[4,6]", None),
]


@pytest.mark.parametrize("case", GOOD, ids=str)
def test_good_ops(case: tuple[Any, ...]) -> None:
    name, operands, kind, attrs = case
    assert read_plan(with_op(op("%0", name, operands, kind, **attrs))).spec.ops[0].name == name


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_wrong_ops(case: tuple[Any, ...]) -> None:
    with pytest.raises(Malformed) as caught:
        read_plan(with_op(["%0", *case, None]))
    assert len(str(caught.value)) < 250


def collective(name: str, type_: str, ranks: Any = ((0, 1),), **attrs: Any) -> bytes:
    plan = copy.deepcopy(row_parallel().plan)
    plan["groups"] = {"g": {"axes": ["tp"], "ranks": ranks}}
    ops = plan["classes"][0]["program"]["ops"]
    ops.append(op("%2", name, ["%1"], type_, group="g", seq=1, **attrs))
    return dump(plan)


@pytest.mark.parametrize(
    "name,kind,attrs",
    [
        ("all_gather", "f32[8,8]", {"dim": 0}),
        ("reduce_scatter", "f32[4,4]", {"dim": 1, "kind": "add"}),
        ("all_to_all", "f32[8,4]", {"split_dim": 1, "concat_dim": 0}),
        ("all_reduce", "f32[4,8]", {"kind": "max"}),
    ],
)
def test_collectives(name: str, kind: str, attrs: dict[str, Any]) -> None:
    assert read_plan(collective(name, kind, **attrs)).rendezvous[1]
    for wrong in ("f32[4,9]", "f64[4,8]"):
        with pytest.raises(Malformed, match="result type does not fit"):
            read_plan(collective(name, wrong, **attrs))
    for key in attrs:
        for value in (7, "mean", "or", None):
            with pytest.raises(Malformed):
                read_plan(collective(name, kind, **attrs | {key: value}))


@pytest.mark.parametrize(
    "ranks", [[[0]], [[0, 0]], [[0, 1], []], [[0, 2]], [0, 1], [[0, 1], [0, 1]], [[1], [0, 1]]]
)
def test_groups_are_partitions(ranks: Any) -> None:
    with pytest.raises(Malformed):
        read_plan(collective("all_reduce", "f32[4,8]", ranks, kind="add"))


def test_a_reduce_scatter_divides() -> None:
    plan = copy.deepcopy(row_parallel().plan) | {"outputs": []}
    plan["classes"][0]["program"]["ops"][1] = op(
        "%1", "reduce_scatter", ["%0"], "f32[4,8]", group="g", kind="max", dim=0, seq=0
    )
    with pytest.raises(Malformed, match="unknown kind"):
        read_plan(dump(plan))
    plan["classes"][0]["program"]["ops"][1] = op(
        "%1", "all_gather", ["x"], "f32[4,6]", group="g", dim=1, seq=0
    )
    assert read_plan(dump(plan))
    plan["classes"][0]["program"]["ops"][1] = op(
        "%1", "reduce_scatter", ["x"], "f32[4,1]", group="g", kind="add", dim=1, seq=0
    )
    with pytest.raises(Malformed, match="does not divide"):
        read_plan(dump(plan))


@pytest.mark.parametrize(
    "pieces,reason",
    [
        ([piece("c0", [4, 2], [{"z0": 1, "z1": 1}], [z(0)])], "may give an element twice"),
        (
            [piece("c0", [2], [z(0)], [{"z0": 1}]), piece("c0", [2], [{"z0": 1, "": 1}], [{"z0": 1, "": 3}])],
            "two pieces",
        ),
        ([piece("c0", [3], [0], [z(0)])], "may give an element twice"),
    ],
)
def test_no_input_element_is_given_twice(pieces: Any, reason: str) -> None:
    with pytest.raises(Rejected, match=f"obligation 15 .*{reason}"):
        placed(pieces)


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("c0", [2, 3], [{"z0": 3, "z1": 1}], [{"z0": 3, "z1": 1}])],
        [piece("c0", [3], [{"z0": 2}], [z(0)]), piece("c0", [3], [{"z0": 2, "": 1}], [{"z0": 1, "": 3}])],
        [
            piece("c0", [2, 2], [{"z0": 3, "z1": 1}], [{"z0": 2, "z1": 1}]),
            piece("c0", [2], [{"z0": 3, "": 2}], [{"z0": 1, "": 4}]),
        ],
        [piece("c0", [5, 6], [z(1)], [z(1)])],
    ],
)
def test_what_is_evidently_placed_once(pieces: Any) -> None:
    """Mixed radix, residues, single positions, a digit that nothing mentions."""
    placed(pieces)


def placed(pieces: Any) -> None:
    given = program([["x", "f32[6]"]], [], [])
    plan = dump(
        plan_of(
            [["r", 1]],
            given,
            [{"name": "c0", "box": {"r": [0, 1]}, "program": given}],
            [relation("x", "x", *pieces)],
            [],
        )
    )
    proof = dump({"format": "trainverify-proof", "version": 1, "facts": [], "stages": []})
    data = {**Bundle(json.loads(plan), json.loads(proof), {}, []).members()}
    examine(
        read_manifest(data),
        read_plan(data["plan.json"]),
        read_proof(data["proof.json"]),
        data,
    )


def test_infinite_literals_in_laws() -> None:
    bundle = row_parallel()
    law = bundle.proof["stages"][0]["cases"][0]["premises"][5]
    law["lhs"] = ["+", ["neg_inf"], ["pos_inf"]]
    law["rhs"] = ["+", ["pos_inf"], ["neg_inf"]]
    with pytest.raises(Rejected, match=r"obligation 12 .*expected '\(declare-fun neg_inf \(\) Real\)'"):
        bundle.examine()
    law["lhs"] = ["neg_inf", ["lit", "1"]]
    with pytest.raises(Malformed, match="a list of 1"):
        bundle.examine()


@pytest.mark.parametrize(
    "term",
    [
        [],
        "lit",
        ["lit"],
        ["lit", 1],
        ["lit", "1", "1"],
        ["*", ["lit", "1"], ["lit", "1"]],
        ["mul", ["lit", "1"]],
        ["recip", ["lit", "1"], ["lit", "1"]],
        ["+", ["lit", "1"]],
        ["+"],
        ["sin", ["lit", "1"]],
        [["lit"], "1"],
        ["e", "s:x"],
        ["e", "s:x", [[-1]]],
        ["neg"],
    ],
)
def test_wrong_terms(term: Any) -> None:
    bundle = row_parallel()
    bundle.proof["stages"][0]["cases"][0]["premises"][5]["lhs"] = term
    with pytest.raises(Malformed):
        bundle.examine()


def test_terms_have_a_depth() -> None:
    bundle = row_parallel()
    term: Any = ["lit", "1"]
    for _ in range(199):
        term = ["neg", term]
    law = bundle.proof["stages"][0]["cases"][0]["premises"][5]
    law["lhs"] = term
    with pytest.raises(Rejected, match="obligation 7"):
        bundle.examine()
    law["lhs"] = ["neg", term]
    with pytest.raises(Malformed, match="nested too deeply"):
        bundle.examine()


@pytest.mark.parametrize(
    "data",
    [
        b"9" * 19,
        b"-" + b"9" * 19,
        b"[" * 251 + b"]" * 251,
        b"1.5",
        b"1e3",
        b"Infinity",
        b'{"a":1,"a":1}',
        b'"\xff"',
        b"[1,]",
        b"",
        b" " * ((1 << 26) + 1),
    ],
)
def test_json_is_strict(data: bytes) -> None:
    with pytest.raises(Malformed, match=r"^thing: [^\n]{1,200}$"):
        read_json(data, "thing")


def test_json_up_to_the_caps() -> None:
    assert read_json(b"9" * 18, "thing") == 10**18 - 1
    assert read_json(b"[" * 250 + b"]" * 250, "thing")
