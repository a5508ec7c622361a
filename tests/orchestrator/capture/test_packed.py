"""Captured programs with packed rows, read as plain ops; what rests on their order is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates.plan.plan import Mesh, Plan
from certificates.plan.program import Loc, Op, Program
from certificates.plan.types import TensorType
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.packed import read_as_plain
from orchestrator.capture.sources import Sources

KEYS, ROWS = TensorType("i64", (4,)), TensorType("f32", (4, 3))


def plan(*after: Op, output: str = "%2") -> Plan:
    """Rows of ``x`` sorted by ``keys``, then ``after``."""
    ops = (
        Op("%0", "sort_rows", ("keys",), KEYS, {"count": 2}, None),
        Op("%1", "pack", ("x", "%0"), ROWS, {}, None),
        *after,
    )
    return Plan("rows", Mesh({}), {}, (), Program({"x": ROWS, "keys": KEYS}, ops, {"y": output}), (), (), ())


def test_packed_ops_become_plain_ones_that_know_what_was_written() -> None:
    found = read_as_plain(plan(Op("%2", "unpack", ("%1", "%0"), ROWS, {}, None)), Sources(Path()))
    assert [op.name for op in found.specification.ops] == ["transpose", "transpose", "transpose"]
    assert [op.name for op in found.specification.written] == ["sort_rows", "pack", "unpack"]


def test_a_plan_without_packed_rows_stays() -> None:
    plain = Plan("plain", Mesh({}), {}, (), Program({"x": ROWS}, (), {"y": "x"}), (), (), ())
    assert read_as_plain(plain, Sources(Path())) is plain


def test_what_rests_on_the_order_is_refused_at_its_line() -> None:
    sources = Sources(Path())
    sources._paths.append("model.py")
    added = Op(
        "%2", "reduce", ("%1",), TensorType("f32", (3,)), {"dims": (0,), "kind": "add"}, Loc(0, 7, "f")
    )
    with pytest.raises(LoweringError, match="does not act on each row by itself") as caught:
        read_as_plain(plan(added), sources)
    assert caught.value.frame == ("model.py", 7, "f") and caught.value.op == "reduce"


def test_packed_rows_are_no_output() -> None:
    with pytest.raises(LoweringError, match="an output is %1, which rests on an order of rows"):
        read_as_plain(plan(output="%1"), Sources(Path()))
