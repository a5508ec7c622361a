"""Partial ops that nothing shows to stay in their domain are named; those that something shows are not.

Both programs say so in the same words, each by code of its own.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from certificates.plan.ops import OPS
from certificates.plan.reading import loads
from checker.language.ops import ROWS
from checker.reading.plan import read_plan
from checker.report.domains import Domains
from tests.oracles.domains import unshown as told

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, piece, plan_of, program, relation, z

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.json.gz"))
SMALL = [p for p in EXAMPLES if p.stat().st_size < 50_000]


def both(data: bytes) -> list[str]:
    """The checker's lines for a plan file; report.txt says the same."""
    found = Domains(read_plan(data)).unshown()
    assert found == told(loads(data))
    return found


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_shipped_plans_leave_the_same_domains_open(path: Path) -> None:
    both(gzip.decompress(path.read_bytes()))


def test_both_tables_have_the_same_domains() -> None:
    """An op that is partial in one table only would be silent in the other's report."""
    domains = {name.split()[0]: row.defined.strip(".") for name, row in ROWS.items()}
    assert domains == {name: row.defined for name, row in OPS.items()}


def unshown(*ops: Any, ranges: Any = None) -> list[str]:
    """Of `y`, computed alike on both sides from `x`, `w` (f32[4]) and `i` (i64[4])."""
    inputs = [["x", "f32[4]"], ["w", "f32[4]"], ["i", "i64[4]"]]
    whole = program(inputs, list(ops), [["y", ops[-1][0]]])
    same = [piece("c0", [4], [z(0)], [z(0)])]
    given = [relation(n, n, *same) for n in ("x", "w", "i")]
    classes = [{"name": "c0", "box": {}, "program": whole}]
    plan = plan_of([], whole, classes, given, [relation("y", "y", *same)], ranges=ranges)
    return both(dump(plan))


def unary(name: str, operand: str, result: str = "%9") -> Any:
    return op(result, name, [operand], "f32[4]")


def constant(value: str) -> Any:
    return op("%0", "constant", [], "f32[4]", value=value)


SQUARE = op("%1", "multiply", ["x", "x"], "f32[4]")
ABOVE = op("%2", "add", ["%1", "%0"], "f32[4]")


@pytest.mark.parametrize(
    ("ops", "shown"),
    [
        ([unary("log", "x")], False),
        ([unary("exponential", "x", "%1"), unary("log", "%1")], True),
        ([SQUARE, unary("sqrt", "%1")], True),
        ([SQUARE, unary("rsqrt", "%1")], False),
        ([op("%1", "multiply", ["x", "w"], "f32[4]"), unary("sqrt", "%1")], False),
        ([op("%1", "add", ["x", "x"], "f32[4]"), unary("sqrt", "%1")], False),
        ([constant("1/8"), SQUARE, ABOVE, unary("rsqrt", "%2")], True),
        ([constant("-1/8"), SQUARE, ABOVE, unary("rsqrt", "%2")], False),
        ([constant("0"), SQUARE, ABOVE, unary("rsqrt", "%2")], False),
        ([op("%9", "divide", ["x", "w"], "f32[4]")], False),
        ([constant("-3"), op("%9", "divide", ["x", "%0"], "f32[4]")], True),
        ([constant("0"), op("%9", "divide", ["x", "%0"], "f32[4]")], False),
        ([constant("2"), op("%9", "power", ["x", "%0"], "f32[4]")], True),
        ([constant("1/2"), op("%9", "power", ["x", "%0"], "f32[4]")], False),
        ([constant("-1"), op("%9", "power", ["x", "%0"], "f32[4]")], False),
        ([op("%1", "subtract", ["x", "w"], "f32[4]"), unary("sqrt", "%1")], False),
        ([unary("tanh", "x")], True),
    ],
)
def test_constants_and_signs_show_a_domain(ops: list[Any], shown: bool) -> None:
    assert (unshown(*ops) == []) == shown


def test_a_line_names_the_op_its_domain_and_both_sides() -> None:
    lines = unshown(unary("log", "x"))
    assert lines == ["log where a > 0 (1 in the specification, 1 in the plan), first s:%9"]


@pytest.mark.parametrize(
    ("bounds", "shown"), [(None, False), ([0, 4], True), ([0, 5], False), ([-1, 4], False)]
)
def test_a_declared_range_shows_an_index(bounds: Any, shown: bool) -> None:
    taken = op("%9", "gather", ["x", "i"], "f32[4]", axis=0, batch_dims=0)
    assert (unshown(taken, ranges={"i": bounds} if bounds else None) == []) == shown


@pytest.mark.parametrize("deep", [59, 60])
def test_a_sign_is_looked_for_so_far_only(deep: int) -> None:
    """The walk is recursive: a chain without end would end it in a traceback, not in a line."""
    moves = [op(f"%{k + 1}", "transpose", [f"%{k}"], "f32[4]", perm=[0]) for k in range(deep)]
    ops = [unary("exponential", "x", "%0"), *moves, unary("log", f"%{deep}", "%99")]
    whole = program([["x", "f32[4]"]], ops, [["y", "%99"]])
    plan = plan_of([], whole, [{"name": "c0", "box": {}, "program": whole}], [], [])
    assert bool(Domains(read_plan(dump(plan))).unshown()) == (deep == 60)
    assert told(loads(dump(plan))) == [], "passes over the programs have no such limit"
