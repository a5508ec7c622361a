"""Packed rows (obligation 22): what the checker reads is what they mean, and forged orders are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.authoring.packing import Rows
from certificates.errors import FormatError
from certificates.plan.plan import Plan as Produced
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.errors import CheckerError, Malformed, Rejected
from checker.language.affine import Affine
from checker.language.plan import Plan
from checker.reading.plan import read_plan
from checker.rules.acyclic import check_acyclic
from checker.rules.relations import check_once
from checker.rules.rows import check_rows
from tests.expert_plans import Sizes, experts
from tests.packed_plans import FORGED, SHARDED, dispatch, document, two_classes


def read(data: bytes) -> Plan:
    plan = read_plan(data)
    check_rows(plan)
    return plan


def value(given: Any) -> Any:
    """An attribute in the same words on both sides."""
    if isinstance(given, tuple):
        return tuple(map(value, given))
    if isinstance(given, Affine) or hasattr(given, "const"):
        return given.const if not given.terms else (given.const, tuple(given.terms))
    return str(given).lower() if isinstance(given, bool) else str(given)


def lowered(produced: Produced) -> None:
    """Both sides lower to the same ops, written apart."""
    plan = read(dumps(produced))
    programs = {"s": produced.specification} | {c.name: c.program for c in produced.classes}
    for space, program in programs.items():
        theirs = plan.program(space).ops
        assert [(o.out, o.name, o.ins, str(o.type)) for o in program.ops] == [
            (o.result, o.name, o.operands, str(o.type)) for o in theirs
        ]
        for mine, other in zip(program.ops, theirs, strict=True):
            assert {k: value(v) for k, v in mine.attrs.items()} == {
                k: value(v) for k, v in other.attrs.items()
            }, mine


@pytest.mark.parametrize("sizes", [(1, 4, 2), (2, 4, 2), (4, 3, 1)])
def test_both_sides_read_the_same_plain_ops(sizes: tuple[int, int, int]) -> None:
    lowered(dispatch(*sizes))


@pytest.mark.parametrize("specification", ["plain", "packed"])
def test_both_sides_read_the_same_layer_of_experts(specification: str) -> None:
    lowered(experts(Sizes(), packed=True, alone=specification == "packed"))
    lowered(experts(Sizes(tokens=4, experts=16, groups=4), packed=True))


def row_by_row() -> Produced:
    """Columns, sums and plain weights of rows, products by key that are cut and joined."""
    s, b = ProgramBuilder(), ProgramBuilder({"ep": 2})
    s.input("keys", "i64[8]")
    s.output("y", s.input("x", "f32[8,3]"))
    x, keys = b.input("x", "f32[4,3]"), b.input("keys", "i64[4]")
    w, v = b.input("w", "f32[2,3,5]"), b.input("v", "f32[2,4]")
    order = Rows.sorted(b, keys, 4)
    arrived = order.shipped("ep")
    grouped = arrived.regrouped()
    rows = grouped.regroup(arrived.ship(order.pack(x)))
    cut = grouped.dot(rows, w)
    joined = b.concatenate([b.slice(cut, (0, 3), (8, 2)), b.slice(cut, (0, 0), (8, 3))], 1)
    plain = b.slice(rows, (0, 1), (8, 2)) @ v
    summed = b.broadcast(rows.sum(1), (8, 4), (0,))
    for name, given in (("cut", joined), ("plain", plain * summed)):
        b.output(name, order.unpack(arrived.ship_back(grouped.ungroup(given))))
    b.output("y", x)
    program = b.build()
    return build_plan(
        name="rows", mesh={"ep": 2}, specification=s.build(), classes=program,
        inputs=dict.fromkeys(("x", "keys"), SHARDED), outputs={"y": SHARDED},
        ranges={"keys": (0, 4)}, given=["x", "keys"],
    )  # fmt: skip


def test_both_sides_read_what_acts_on_each_row() -> None:
    produced = row_by_row()
    lowered(produced)
    names = [o.name for o in read(dumps(produced)).program(produced.classes[0].name).ops]
    assert names.count("select") == 1, "what is no product by key is made 0 where its key is another rank's"


def test_ops_that_are_added_have_numbers_of_their_own() -> None:
    """Also in a program whose own numbers have one digit."""
    s, b = ProgramBuilder(), ProgramBuilder({"ep": 2})
    s.input("keys", "i64[8]")
    s.output("y", s.input("x", "f32[8,3]"))
    x, keys, w = b.input("x", "f32[4,3]"), b.input("keys", "i64[4]"), b.input("w", "f32[2,3,5]")
    order = Rows.sorted(b, keys, 2)
    b.output("z", order.unpack(order.dot(order.pack(x), w)))
    b.output("y", x)
    produced = build_plan(
        name="few", mesh={"ep": 2}, specification=s.build(), classes=b.build(),
        inputs=dict.fromkeys(("x", "keys"), SHARDED), outputs={"y": SHARDED}, ranges={"keys": (0, 2)},
        given=["x", "keys"],
    )  # fmt: skip
    lowered(produced)
    ops = read(dumps(produced)).program(produced.classes[0].name).ops
    assert len(ops) > 8 and len({op.result for op in ops}) == len(ops)


def test_keys_are_a_vector_and_no_product_is_over_them() -> None:
    def edit(plan: dict[str, Any]) -> None:
        ops = plan["classes"][0]["program"]["ops"]
        ops += [["%90", "reshape", ["keys"], "i64[2,2]", {}, None]]
        ops += [["%91", "sort_rows", ["%90"], "i64[2,2]", {"count": 4}, None]]

    with pytest.raises(Malformed, match="bad keys"):
        read(document(edit))
    square = json.loads(dumps(dispatch(2, 4, 3)))
    spoil(square, "ragged_dot", 4, {"contract": 0})
    with pytest.raises(Malformed, match="operands do not fit"):
        read(json.dumps(square).encode())


@pytest.mark.parametrize("name", FORGED)
def test_what_depends_on_an_order_is_refused_by_number_and_reason(name: str) -> None:
    """Twice: by the checker, and before by whoever writes such a plan."""
    edit, words = FORGED[name]
    data = document(edit)
    with pytest.raises(Rejected) as refused:
        read(data)
    assert refused.value.number == 22
    assert words in str(refused.value)
    with pytest.raises(FormatError) as told:
        loads(data)
    assert words in str(told.value)


@pytest.mark.parametrize("version", [1, 2])
def test_older_versions_have_no_packed_rows(version: int) -> None:
    data = document(lambda plan: plan.update(version=version))
    with pytest.raises(Malformed, match=f"version {version} has no packed rows"):
        read_plan(data)
    with pytest.raises(FormatError, match="packed rows need version 3"):
        loads(data)


def spoil(plan: dict[str, Any], name: str, part: int, put: Any) -> None:
    ops = plan["classes"][0]["program"]["ops"]
    next(op for op in ops if op[1] == name)[part] = put


@pytest.mark.parametrize(
    ("name", "part", "put"),
    [
        ("sort_rows", 3, "i64[5]"),
        ("sort_rows", 3, "f32[4]"),
        ("sort_rows", 2, ["x"]),
        ("sort_rows", 4, {"count": 0}),
        ("sort_rows", 2, ["keys", "keys"]),
        ("ship_rows", 3, "i64[4]"),
        ("ship_rows", 4, {"group": "tp", "seq": 0}),
        ("regroup_rows", 3, "i64[4]"),
        ("pack", 3, "f32[8,3]"),
        ("ship", 3, "f32[4,3]"),
        ("ship_back", 3, "f32[8,5]"),
        ("regroup", 3, "f32[4,3]"),
        ("ungroup", 3, "f32[8,4]"),
        ("unpack", 3, "f32[5,5]"),
        ("ship", 4, {}),
        ("ragged_dot", 3, "f32[8,3]"),
        ("ragged_dot", 4, {"contract": 2}),
        ("ragged_dot", 4, {"contract": 0}),
        ("ragged_outer", 3, "f32[4,3,5]"),
        ("ragged_outer", 3, "f32[2,5,3]"),
    ],
)
def test_types_of_packed_rows_are_checked(name: str, part: int, put: Any) -> None:
    data = document(lambda plan: spoil(plan, name, part, put))
    with pytest.raises(Malformed):
        read(data)
    with pytest.raises(FormatError):
        loads(data)


def test_numbers_that_no_result_can_have_left_are_refused() -> None:
    """The plain ops of packed ones have the numbers after the last one of the program."""

    def edit(plan: dict[str, Any]) -> None:
        program = plan["classes"][0]["program"]
        program["ops"].append(["%9999999999", "negate", ["x"], "f32[4,3]", {}, None])

    plan = read(document(edit))
    assert "%10000000000" in plan.classes["c0"].program.producers


def test_a_result_waits_for_the_order_that_it_is_packed_in() -> None:
    """Keys made of what is sent in their order: both ranks would wait for ever."""

    def crossed(first: list[Any], second: list[Any]) -> None:
        gather = ["all_gather", "i64[8]", {"group": "ep", "dim": 0, "seq": 77}]
        first[0:0] = [
            ["%90", gather[0], ["keys"], *gather[1:], None],
            ["%91", "slice", ["%90"], "i64[4]", {"start": [0], "stride": [1]}, None],
        ]
        first[2][2] = ["%91"]
        back = next(i for i, op in enumerate(second) if op[1] == "unpack")
        made = second[back][0]
        second[back + 1 : back + 1] = [
            ["%92", "compare", [made, made], "i1[4,5]", {"direction": "EQ"}, None],
            ["%93", "convert", ["%92"], "i64[4,5]", {}, None],
            ["%94", "reduce", ["%93"], "i64[4]", {"dims": [1], "kind": "max"}, None],
            ["%90", gather[0], ["%94"], *gather[1:], None],
        ]

    data = document(two_classes(crossed))
    plan = read_plan(data)
    check_once(plan.inputs, 15)
    with pytest.raises(Rejected, match="a value rests on itself"):
        check_acyclic(plan)
    with pytest.raises(FormatError, match="a value rests on itself"):
        loads(data)


def test_a_function_has_no_packed_rows() -> None:
    def edit(plan: dict[str, Any]) -> None:
        program = {
            "inputs": [["k", "i64[4]"], ["x", "f32[4,3]"]],
            "ops": [
                ["%0", "sort_rows", ["k"], "i64[4]", {"count": 4}, None],
                ["%1", "pack", ["x", "%0"], "f32[4,3]", {}, None],
                ["%2", "unpack", ["%1", "%0"], "f32[4,3]", {}, None],
            ],
            "outputs": [["y", "%2"]],
        }
        wide = json.loads(json.dumps(program).replace("[4", "[8").replace("[84", "[4"))
        plan["functions"] = {"f0": {"specification": wide, "classes": {"c0": program}}}
        for owner in (plan["specification"], plan["classes"][0]["program"]):
            owner["ops"].append([["%95"], "call", ["keys", "x"], "f0", 0])

    data = document(edit)
    with pytest.raises(CheckerError, match="a function has no orders of rows"):
        read(data)
    with pytest.raises(FormatError, match="a function has no packed rows"):
        loads(data)
