"""The op table: every way an op can be ill-typed, with its reason; JSON of ops; rationals and types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.ops import ATTRS, COLLECTIVES, ROWS
from certificates.plan.program import Attr, Loc, Op, Program, op_from_json, op_to_json
from certificates.plan.type_rules import check_program
from certificates.plan.types import TensorType, format_rational, rational

T = TensorType.parse
INPUTS = {
    "f": T("f32[2,3]"),
    "g": T("f32[2,3]"),
    "h": T("bf16[2,3]"),
    "i": T("i64[2,3]"),
    "j": T("i64[2]"),
    "p": T("i1[2,3]"),
    "s": T("f32[]"),
    "c": T("f32[3,4]"),
    "k": T("f32[2,1,3]"),
}
DP = Affine.symbol("dp")
DOT: dict[str, Attr] = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}

#: name, operands, result type, attributes, part of the reason
ILL_TYPED: list[tuple[str, str, str, Mapping[str, Attr], str]] = [
    ("constant", "", "i1[2]", {"value": Affine(1)}, "rank-dependent value 1 does not fit"),
    ("constant", "", "i64[2]", {"value": Affine.symbol("pp")}, "rank-dependent value pp does not fit"),
    ("constant", "", "f32[2]", {"value": "true"}, "a boolean literal needs type i1"),
    ("constant", "", "i64[2]", {"value": "-inf"}, "an infinite literal needs a float type"),
    ("constant", "", "i1[2]", {"value": "1"}, "a Bool literal is true or false"),
    ("constant", "", "i64[2]", {"value": "1/2"}, "an integer literal cannot be a fraction"),
    ("constant", "f", "f32[2,3]", {"value": "1"}, "takes 0 operands"),
    ("iota", "", "i64[2]", {"dim": 1}, "needs a number type and an existing dimension"),
    ("iota", "", "i1[2]", {"dim": 0}, "needs a number type and an existing dimension"),
    ("tanh", "f", "f32[3,2]", {}, "operand and result must be of one float type"),
    ("exponential", "i", "i64[2,3]", {}, "operand and result must be of one float type"),
    ("negate", "p", "i1[2,3]", {}, "operand and result must be of one float type"),
    ("sqrt", "f g", "f32[2,3]", {}, "takes 1 operands"),
    ("not", "f", "f32[2,3]", {}, "must be i1 of one shape"),
    ("and", "p f", "i1[2,3]", {}, "must be i1 of one shape"),
    ("or", "i i", "i64[2,3]", {}, "must be i1 of one shape"),
    ("convert", "f", "i64[2,3]", {}, "a float converts to a float only"),
    ("convert", "f", "f64[3,2]", {}, "shapes must agree"),
    ("add", "f c", "f32[2,3]", {}, "must be of one number type"),
    ("subtract", "f h", "f32[2,3]", {}, "must be of one number type"),
    ("multiply", "p p", "i1[2,3]", {}, "must be of one number type"),
    ("maximum", "f s", "f32[2,3]", {}, "must be of one number type"),
    ("minimum", "f", "f32[2,3]", {}, "takes 2 operands"),
    ("divide", "i i", "i64[2,3]", {}, "is defined on floats only"),
    ("power", "i i", "i64[2,3]", {}, "is defined on floats only"),
    ("compare", "f i", "i1[2,3]", {"direction": "EQ"}, "operands must be of one type"),
    ("compare", "f g", "f32[2,3]", {"direction": "LT"}, "the result i1 of that shape"),
    ("compare", "p p", "i1[2,3]", {"direction": "LT"}, "compared with EQ or NE only"),
    ("select", "f f g", "f32[2,3]", {}, "needs an i1 predicate"),
    ("select", "p f h", "f32[2,3]", {}, "two operands of the result type"),
    ("broadcast_in_dim", "f", "f32[2,3]", {"dims": (0,)}, "one per operand dimension"),
    ("broadcast_in_dim", "f", "f32[3,2]", {"dims": (1, 0)}, "dims must be strictly increasing"),
    ("broadcast_in_dim", "f", "f32[2,3]", {"dims": (0, 2)}, "dims must name result dimensions"),
    ("broadcast_in_dim", "f", "f32[2,4]", {"dims": (0, 1)}, "must be 1 or the result's"),
    ("broadcast_in_dim", "f", "bf16[2,3]", {"dims": (0, 1)}, "dims must be strictly increasing"),
    ("reshape", "f", "f32[5]", {}, "must keep the number of elements"),
    ("reshape", "f", "bf16[6]", {}, "and the dtype"),
    ("transpose", "f", "f32[3,2]", {"perm": (0, 0)}, "perm is not a permutation"),
    ("transpose", "f", "f32[2,3]", {"perm": (1, 0)}, "result type does not follow from perm"),
    ("slice", "f", "f32[1,3]", {"start": (Affine(0),), "stride": (1,)}, "one start and stride per dimension"),
    ("slice", "f", "f32[2,3]", {"start": (Affine(1), Affine(0)), "stride": (1, 1)}, "leaves the operand"),
    ("slice", "f", "f32[1,2]", {"start": (DP, DP.scale(2)), "stride": (1, 1)}, "operand along dimension 1"),
    ("slice", "f", "f32[2,3]", {"start": (Affine(0), Affine(0)), "stride": (0, 1)}, "strides are positive"),
    ("slice", "f", "f32[1,3]", {"start": (Affine.symbol("q"), Affine(0)), "stride": (1, 1)}, "axes only"),
    ("pad", "f s", "f32[2,3]", {"low": (1, 0), "high": (0, 0)}, "does not follow from low and high"),
    ("pad", "f f", "f32[2,3]", {"low": (0, 0), "high": (0, 0)}, "needs a scalar of the same dtype"),
    ("pad", "f s", "f32[2,3]", {"low": (0,), "high": (0,)}, "one low and high per dimension"),
    ("concatenate", "f c", "f32[5,3]", {"dim": 0}, "operands may differ along dim only"),
    ("concatenate", "f g", "f32[5,3]", {"dim": 0}, "sizes along dim must add up"),
    ("concatenate", "f h", "f32[4,3]", {"dim": 0}, "must have the result's dtype"),
    ("concatenate", "f g", "f32[4,3]", {"dim": 2}, "must have the result's dtype"),
    ("concatenate", "", "f32[4,3]", {"dim": 0}, "takes 1 operands"),
    ("dot_general", "f c", "f32[2,5]", DOT, r"result shape must be \[2, 4\]"),
    ("dot_general", "f g", "f32[2,3]", DOT, "paired dimensions must be of equal size"),
    ("dot_general", "f c", "f32[2,4]", {**DOT, "lhs_contract": (2,)}, "must be distinct and exist"),
    ("dot_general", "f c", "f32[2,4]", {**DOT, "lhs_batch": (1,)}, "must be distinct and exist"),
    ("dot_general", "f c", "f32[2,4]", {**DOT, "lhs_batch": (0,)}, "must pair up"),
    ("dot_general", "f c", "bf16[2,4]", DOT, "must be of one number type"),
    ("dot_general", "p p", "i1[2,3]", DOT, "must be of one number type"),
    ("reduce", "f", "f32[2]", {"dims": (), "kind": "add"}, "dims must be increasing"),
    ("reduce", "f", "f32[2]", {"dims": (2,), "kind": "add"}, "dimensions of the operand"),
    ("reduce", "f", "f32[3]", {"dims": (1,), "kind": "max"}, "result type does not follow from dims"),
    ("reduce", "f", "f32[2]", {"dims": (1,), "kind": "and"}, "and/or reduce booleans"),
    ("reduce", "p", "i1[2]", {"dims": (1,), "kind": "add"}, "and/or reduce booleans"),
    ("gather", "f f", "f32[2,3,3]", {"axis": 0, "batch_dims": 0}, "needs integer indices"),
    ("gather", "f j", "f32[2,2]", {"axis": 2, "batch_dims": 0}, "an existing axis"),
    ("gather", "f j", "f32[2]", {"axis": 0, "batch_dims": 1}, "batch_dims <= axis"),
    ("gather", "c j", "f32[3]", {"axis": 1, "batch_dims": 1}, "batch dimensions must agree"),
    ("gather", "f j", "f32[3,2]", {"axis": 0, "batch_dims": 0}, "does not follow from axis and batch_dims"),
    ("all_reduce", "p", "i1[2,3]", {"group": "g", "kind": "add", "seq": 0}, "collectives carry numbers"),
    ("all_gather", "f", "f32[6]", {"group": "g", "dim": 0, "seq": 0}, "number of dimensions"),
    ("reduce_scatter", "f", "bf16[2,3]", {"group": "g", "kind": "add", "dim": 0, "seq": 0}, "keep dtype"),
    ("all_to_all", "f", "i64[2,3]", {"group": "g", "split_dim": 0, "concat_dim": 1, "seq": 0}, "keep dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ins", "type_", "attrs", "reason"), ILL_TYPED)
def test_ill_typed_ops_are_refused_with_their_reason(
    name: str, ins: str, type_: str, attrs: Mapping[str, Attr], reason: str
) -> None:
    program = Program(INPUTS, (Op("%7", name, tuple(ins.split()), T(type_), attrs),), {})
    with pytest.raises(FormatError, match=reason) as caught:
        check_program(program, {"dp": (0, 2)})
    assert str(caught.value).startswith(f"{name} %7 : (")


def test_every_op_of_the_table_has_an_ill_typed_case() -> None:
    # The other unary float ops share one rule with those listed.
    alike = {"exponential": {row.name for row in ROWS if row.operands == 1 and "Real" in row.sorts}}
    covered = {case[0] for case in ILL_TYPED}
    for name, same in alike.items():
        covered |= same if name in covered else set()
    assert covered == set(ATTRS)


def program_with(op: Op, outputs: Mapping[str, str] | None = None) -> Program:
    return Program({"x": T("f32[2]")}, (op,), dict(outputs or {}))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (Program({"1x": T("f32[]")}, (), {}), "'1x' is not an input name"),
        (Program({"a b": T("f32[]")}, (), {}), "'a b' is not an input name"),
        (program_with(Op("y", "negate", ("x",), T("f32[2]"))), "'y' is not a result name"),
        (program_with(Op("%0", "negate", ("%1",), T("f32[2]"))), "negate %0 reads %1 before it is defined"),
        (program_with(Op("%0", "negate", ("%0",), T("f32[2]"))), "negate %0 reads %0 before it is defined"),
        (program_with(Op("%0", "negate", ("x",), T("f32[2]")), {"o": "%9"}), "output o names the unknown"),
        (program_with(Op("%0", "negate", ("x",), T("f32[2]")), {"%o": "%0"}), "'%o' is not an output name"),
        (
            program_with(Op("%0", "reshape", ("x",), T("f32[1,2]")), {"x": "%0"}),
            r"state x comes in as f32\[2\] and leaves as f32\[1,2\]",
        ),
        (
            Program({"x": T("f32[2]")}, (Op("%0", "negate", ("x",), T("f32[2]")),) * 2, {}),
            "%0 is defined twice",
        ),
        (
            program_with(
                Op("%0", "all_reduce", ("x",), T("f32[2]"), {"group": "g", "kind": "add", "seq": 0})
            ),
            "specification has the collective all_reduce %0",
        ),
    ],
)
def test_ill_formed_programs_are_refused(program: Program, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        check_program(program)


GOOD = ["%1", "reduce", ["%0"], "f32[2]", {"dims": [1], "kind": "add"}, [0, 12, "forward"]]


SCATTER = {"group": "g", "kind": "add", "dim": 0, "seq": 0}


def broken(position: int, value: object) -> list[object]:
    return [*GOOD[:position], value, *GOOD[position + 1 :]]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOOD[:5], "an op is a list of six"),
        ({"op": "add"}, "an op is a list of six"),
        (broken(0, "x"), "'x' is not a result name such as %17"),
        (broken(0, 17), "17 is not a result name"),
        (broken(1, "einsum"), "op 'einsum' of %1 is not in the op table"),
        (broken(1, ["add"]), "is not in the op table"),
        (broken(1, "x" * 10**6), "is not in the op table"),
        (broken(2, "%0"), "operands of %1 must be a list of names"),
        (broken(2, [0]), "operands of %1 must be a list of names"),
        (broken(3, "f32[0]"), r"'f32\[0\]' is not a tensor type"),
        (broken(3, "f31[2]"), r"'f31\[2\]' is not a tensor type"),
        (broken(3, "f32[02]"), "is not a tensor type"),
        (broken(3, "f32[2,]"), "is not a tensor type"),
        (broken(3, "f32[2]\n"), "is not a tensor type"),
        (broken(3, 2), "2 is not a tensor type"),
        (broken(3, "f32[" + "9" * 5000 + "]"), "is not a tensor type"),
        (broken(3, "f32[" + ",".join("1" * 13) + "]"), "at most 12 dimensions, not 13"),
        (broken(4, {"dims": [1]}), r"reduce %1 must have exactly the attributes \['dims', 'kind'\]"),
        (broken(4, {"dims": [1], "kind": "add", "x": 1}), "must have exactly the attributes"),
        (broken(4, []), "must have exactly the attributes"),
        (broken(4, {"dims": 1, "kind": "add"}), "'dims' of reduce %1 must be a list of at most 12"),
        (broken(4, {"dims": [-1], "kind": "add"}), "must hold non-negative integers"),
        (broken(4, {"dims": [True], "kind": "add"}), "must hold non-negative integers"),
        (broken(4, {"dims": [1 << 62], "kind": "add"}), "must hold non-negative integers"),
        (broken(4, {"dims": [1], "kind": "mul"}), "'kind' of reduce %1 must be one of add, max, min"),
        (broken(5, [0, 1]), r"location of %1 must be \[source, line, function\] or null"),
        (broken(5, [0, -1, "f"]), "location of %1 must be"),
        (broken(5, [0, 1, None]), "location of %1 must be"),
        (["%0", "constant", [], "f32[]", {"value": "2/4"}, None], "rational '2/4' is not in lowest terms"),
        (["%0", "constant", [], "f32[]", {"value": "1.5"}, None], "'1.5' is not a rational number"),
        (["%0", "constant", [], "f32[]", {"value": "1" * 2001}, None], "is not a rational number"),
        (["%0", "constant", [], "f32[]", {"value": "nan"}, None], "'nan' is not a rational number"),
        (["%0", "constant", [], "f32[]", {"value": None}, None], "an affine form is an integer"),
        (["%0", "iota", [], "i64[2]", {"dim": -1}, None], "'dim' of iota %0 must be a non-negative integer"),
        (
            ["%0", "all_reduce", ["x"], "f32[2]", {"group": 3, "kind": "add", "seq": 0}, None],
            "'group' of all_reduce %0 must be a string",
        ),
        (
            ["%0", "reduce_scatter", ["x"], "f32[2]", {**SCATTER, "kind": "max"}, None],
            "'kind' of reduce_scatter %0 must be one of add",
        ),
    ],
)
def test_malformed_ops_are_refused_in_one_short_line(data: object, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        op_from_json(data)
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


def test_ops_round_trip() -> None:
    op = Op(
        "%3",
        "slice",
        ("%2",),
        T("f32[1,2]"),
        {"start": (DP.scale(2) + 1, Affine(0)), "stride": (1, 2)},
        Loc(0, 7, "step"),
    )
    assert op_from_json(op_to_json(op)) == op
    assert op_from_json(GOOD) == op_from_json(op_to_json(op_from_json(GOOD)))


@given(st.fractions())
def test_rationals_round_trip(value: Fraction) -> None:
    assert rational(format_rational(value)) == value


@pytest.mark.parametrize("text", ["1/0", "-0/1", "2/1", "+1", "1/-2", " 1", "1_0", "01", "-", "1/", "1e3"])
def test_other_spellings_of_rationals_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match=re.escape(repr(text))):
        rational(text)


def test_collectives_are_ops() -> None:
    assert set(ATTRS) >= COLLECTIVES
