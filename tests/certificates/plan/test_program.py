"""Programs and ops: what is malformed is refused with its reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from certificates.errors import FormatError
from certificates.plan.affine import Affine
from certificates.plan.program import Loc, Op, Program, op_from_json, op_to_json
from certificates.plan.type_rules import check_program
from tests.certificates.plan.test_type_rules import DP, T


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
