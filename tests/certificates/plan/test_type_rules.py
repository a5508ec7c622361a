"""The op table: every way an op can be ill-typed, with its reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.ops import ATTRS, COLLECTIVES, ROWS
from certificates.plan.program import Attr, Op, Program
from certificates.plan.type_rules import check_program
from certificates.plan.types import TensorType

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
    ("send", "f", "bf16[2,3]", {"seq": 0, "to": (Affine(0),)}, "must keep the type"),
    ("send", "f", "f32[2,3]", {"seq": 0, "to": ()}, "needs one form in mesh axes for each"),
    ("recv", "", "f32[2,3]", {"seq": 0, "from": (Affine.symbol("pp"),)}, "needs one form in mesh axes"),
    ("recv", "f", "f32[2,3]", {"seq": 0, "from": (Affine(0),)}, "takes 0 operands"),
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


def test_collectives_are_ops() -> None:
    assert set(ATTRS) >= COLLECTIVES
