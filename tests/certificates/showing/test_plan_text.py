"""The textual form of ops, relations and plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Group, Plan
from certificates.plan.program import Attr, Loc, Op
from certificates.plan.types import TensorType
from certificates.showing.plan_text import (
    LOCATION_COLUMN,
    class_title,
    group_text,
    header_text,
    op_text,
    plan_text,
    program_text,
    relation_text,
    relations_text,
    schedule_text,
    value_text,
)
from certificates.words import clean
from tests.pipeline_plans import pipeline
from tests.schedule_plans import by_torch

T = TensorType.parse
DP = Affine.symbol("dp")


@pytest.mark.parametrize(
    ("name", "ins", "type_", "attrs", "text"),
    [
        ("add", ("%3", "%4"), "f32[4,8]", {}, "%17 : f32[4,8] = add %3, %4"),
        ("constant", (), "f32[]", {"value": "-1/2"}, "%17 : f32[] = constant -1/2"),
        ("constant", (), "i64[]", {"value": DP.scale(251) + 1}, "%17 : i64[] = constant 251*dp + 1"),
        ("compare", ("%1", "%2"), "i1[2]", {"direction": "LT"}, "%17 : i1[2] = compare LT %1, %2"),
        (
            "reduce",
            ("%1",),
            "f32[]",
            {"dims": (0, 1), "kind": "max"},
            "%17 : f32[] = reduce %1 {dims=[0,1], kind=max}",
        ),
        (
            "dot_general",
            ("%1", "w"),
            "f32[2,3,4]",
            {"lhs_batch": (0,), "rhs_batch": (1,), "lhs_contract": (2, 3), "rhs_contract": (0, 2)},
            "%17 : f32[2,3,4] = dot_general %1, w {batch=[0]x[1], contract=[2,3]x[0,2]}",
        ),
        (
            "dot_general",
            ("%1", "w"),
            "f32[2,3]",
            {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (), "rhs_contract": ()},
            "%17 : f32[2,3] = dot_general %1, w",
        ),
        (
            "slice",
            ("%1",),
            "f32[4,2,3]",
            {"start": (DP.scale(4), Affine(1), DP), "stride": (1, 3, 2)},
            "%17 : f32[4,2,3] = slice %1 [4*dp : 4*dp + 4, 1:5:3, dp : dp + 5 : 2]",
        ),
        (
            "all_reduce",
            ("%1",),
            "f32[2]",
            {"group": "tp", "kind": "add", "seq": 3},
            "%17 : f32[2] = all_reduce %1 {group=tp, kind=add, seq=3}",
        ),
    ],
)
def test_ops(name: str, ins: tuple[str, ...], type_: str, attrs: dict[str, Attr], text: str) -> None:
    assert op_text(Op("%17", name, ins, T(type_), attrs)) == text


def test_locations_stand_in_one_column() -> None:
    op = Op("%0", "negate", ("x",), T("f32[2]"), {}, Loc(0, 12, "forward"))
    line = op_text(op, ["model.py"])
    assert line.endswith("# model.py:12 forward") and line.index("#") == LOCATION_COLUMN - 2
    assert op_text(op, []).endswith("# source 0:12 forward")


def test_programs() -> None:
    b = ProgramBuilder()
    x = b.input("batch.x", "f32[2]")
    b.output("y", x)
    assert program_text("specification", b.build()) == [
        "specification {",
        "  input batch.x : f32[2]",
        "  output y = batch.x : f32[2]",
        "}",
    ]


def test_values_in_context(mlp: Plan) -> None:
    lines = value_text("class c0", mlp.classes[0].program, "%1", mlp.sources)
    shown = [line.split(" #")[0].rstrip() for line in lines]
    assert shown == [
        "class c0",
        "  reads  %0 : f32[3,4] = dot_general batch.x, params.w1 {contract=[1]x[0]}",
        "  value  %1 : f32[3,4] = tanh %0",
        "  used   %2 : f32[3,3] = dot_general %1, params.w2 {contract=[1]x[0]}",
        "  used   %16 : f32[3,4] = multiply %1, %1",
        "  used   %22 : f32[4,3] = transpose %1 {perm=[1,0]}",
    ]
    assert value_text("c", mlp.classes[0].program, "%9")[-1] == "  used   output loss"


def test_relations_in_short_form(mlp: Plan) -> None:
    lines = relations_text(mlp)
    assert "  hyper.lr : f32[] as f32[] = Replicate" in lines
    assert "  params.w1 : f32[4,8] as f32[4,4] = Shard(1) over tp" in lines
    wanted = "  grads.params.w2 : f32[8,3] as f32[4,3] = Shard(0) over tp, Partial(add) over dp"
    assert wanted in lines


def test_relations_of_several_local_types(uneven: Plan) -> None:
    assert relation_text(uneven, uneven.inputs[0], "input") == [
        "w : f32[10,2] as f32[4,2], f32[2,2] = Shard(0) over dp"
    ]


def test_relations_as_pieces(mlp: Plan) -> None:
    relation = mlp.inputs[0]
    (piece,) = relation.pieces
    cyclic = replace(piece, spec=(Affine.of(0, {"z0": 2, "dp": 1}), piece.spec[1]))
    assert relation_text(mlp, replace(relation, pieces=(cyclic,)), "input") == [
        "batch.x : f32[6,4] as f32[3,4] = pieces",
        "  c0: batch.x[z0, z1] = batch.x[dp + 2*z0, z1] for z0 < 3, z1 < 4",
    ]
    partial = next(r for r in mlp.outputs if r.reduce)
    (piece,) = partial.pieces
    odd = replace(
        partial, coef=Fraction(1, 2), pieces=(replace(piece, plan=(piece.plan[0], piece.plan[1] + 0)),)
    )
    assert relation_text(mlp, odd, "output")[0].endswith("Partial(add) over dp times 1/2")
    flipped = Affine.of(3, {"z0": -1})
    odd = replace(odd, pieces=(replace(piece, plan=(flipped, piece.plan[1])),))
    assert relation_text(mlp, odd, "output")[1] == (
        "  c0: add over dp of grads.params.w1[-z0 + 3, z1] = 1/2 * grads.params.w1[z0, 4*tp + z1]"
        " for z0 < 4, z1 < 4"
    )


def test_padded_and_unconstrained_inputs(mlp: Plan) -> None:
    relation = mlp.inputs[0]
    (piece,) = relation.pieces
    short = replace(relation, pieces=(replace(piece, sizes=(2, 4)),))
    assert "padded" not in relation_text(mlp, relation, "input")[0]
    assert relation_text(mlp, short, "input")[0] == "batch.x : f32[6,4] as f32[3,4] = pieces"
    assert "  c0:batch.x unconstrained" in relations_text(replace(mlp, inputs=mlp.inputs[1:]))


def test_groups(mlp: Plan) -> None:
    assert group_text(mlp, "tp", mlp.groups["tp"]) == "tp over tp: [0, 1] [2, 3]"
    odd = Group((), ((1, 0), (3, 2)))
    assert group_text(mlp, "odd", odd) == "odd rank by rank: [1, 0] [3, 2]"
    false = Group(("tp",), ((1, 0), (3, 2)))
    assert group_text(mlp, "g", false) == ("g claims tp, but its lists are not the fibres: [1, 0] [3, 2]")
    large = replace(mlp, mesh=type(mlp.mesh)({"dp": 64, "tp": 16}))
    text = group_text(large, "tp", Group(("tp",), large.mesh.fibres(("tp",))))
    assert text.startswith("tp over tp: [0, 1, 2, 3, 4, 5, ..., 15] [16,") and text.endswith("] ...")


def test_headers(uneven: Plan) -> None:
    plan = replace(uneven, ranges={"i": (0, 9)}, provenance={"tool": "hand", "ranks": ["0", "1"]})
    assert header_text(plan) == [
        "plan uneven-dp3",
        "mesh dp 3 (3 ranks, row-major)",
        "group dp over dp: [0, 1, 2]",
        "class full on dp 0..1 (2 ranks): 7 ops",
        "class last on dp 2 (1 rank): 7 ops",
        "specification: 2 ops",
        "range i in [0, 9)",
        "provenance tool: hand",
        'provenance ranks: ["0", "1"]',
    ]
    assert class_title(replace(plan.classes[0], box={})) == "class full on the only rank (1 rank)"


def test_a_whole_plan_names_every_value(any_plan: Plan) -> None:
    text = "\n".join(plan_text(any_plan))
    for program in (any_plan.specification, *(c.program for c in any_plan.classes)):
        assert all(op_text(op, any_plan.sources) in text for op in program.ops)


def test_a_hostile_name_cannot_steer_a_terminal(mlp: Plan) -> None:
    text = "\n".join(plan_text(replace(mlp, name="a\x1b[2J\nb\u202e", provenance={"k\n": ["\x07"]})))
    assert "plan a\\x1b[2J\\x0ab\\u202e" in text and "\x1b" not in text and "\x07" not in text
    assert clean("é") == "\\xe9"


def test_a_padded_input_says_so() -> None:
    """Local tensors of 4 rows of which 3 are related."""
    mesh = {"dp": 2}
    specification, b = ProgramBuilder(), ProgramBuilder(mesh)
    specification.output("y", specification.input("x", "f32[6]").sum())
    b.output("y", b.all_reduce(b.input("x", "f32[4]")[:3].sum(), "dp"))
    plan = build_plan(
        name="padded",
        mesh=mesh,
        specification=specification.build(),
        classes=b.build(),
        inputs={"x": {"dp": Shard(0)}},
        outputs={"y": {}},
    )
    assert relation_text(plan, plan.inputs[0], "input") == [
        "x : f32[6] as f32[4] = Shard(0) over dp (padded)"
    ]


def test_a_schedule_is_told_event_by_event() -> None:
    plan = by_torch("1F1B", 2, 2)
    lines = plan_text(plan)
    at = lines.index("schedule")
    assert "schedule: 29 events in 2 lanes" in lines[:at]
    assert "segment f0 of class c0: ops 0..3" in lines[at:] and "once in class c0: update, 2000" in lines[at:]
    assert "lane rank0 on pp 0, dp 0..1 {" in lines[at:]
    assert "     0 run f0 0" in lines[at:] and any("wait for" in line for line in lines[at:])
    assert any(line.endswith("post on pair_0_1: send 1 of run 0") for line in lines[at:])
    assert any("in slots" in line and line.endswith("in turn") for line in lines[at:])
    assert schedule_text(pipeline(2, 1, 2)) == []
