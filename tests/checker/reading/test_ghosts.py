"""Ghosts are read as ops of the plan's programs, by the plan's own rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.reading.ghosts import read_ghosts
from checker.reading.plan import read_plan
from checker.reading.proof import read_proof

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, plan_of, program, refused

V = "f32[4]"


def plan() -> bytes:
    spec = program([["x", V]], [op("%0", "exponential", ["x"], V)], [["y", "%0"]])
    local = program([["x", V]], [op("%0", "exponential", ["x"], V)], [["y", "%0"]])
    return dump(plan_of([["r", 1]], spec, [{"name": "c0", "box": {"r": [0, 1]}, "program": local}], [], []))


GHOST = op("%1", "multiply", ["%0", "%0"], V)


def test_a_plan_with_ghosts_has_them_behind_its_ops() -> None:
    found = read_ghosts({"main": {"c0": [GHOST]}}, plan())
    assert [o.result for o in found.classes["c0"].program.ops] == ["%0", "%1"]
    assert found.spec == read_plan(plan()).spec and read_ghosts({}, plan()).spec == found.spec


@pytest.mark.parametrize(
    ("ghosts", "reason"),
    [
        ({"main": {"c1": [GHOST]}}, "unknown member 'c1'"),
        ({"other": {}}, "unknown member 'other'"),
        ({"functions": {"f": {}}}, "unknown member 'f'"),
        ({"main": {"c0": []}}, "none in c0"),
        ({"main": {"c0": {}}}, "a list is expected"),
        ({"main": {"c0": [op("%0", "negate", ["x"], V)]}}, "assigned twice"),
        ({"main": {"c0": [op("%1", "negate", ["%2"], V)]}}, "not defined before it"),
        ({"main": {"c0": [op("%1", "negate", ["x"], "f32[5]")]}}, "op %1 negate"),
        ({"main": {"c0": [op("%1", "all_reduce", ["x"], V, group="g", kind="add", seq=0)]}}, "process group"),
    ],
)  # fmt: skip
def test_a_ghost_is_an_op_like_others(ghosts: Any, reason: str) -> None:
    with refused("malformed", reason):
        read_ghosts(ghosts, plan())


def test_ghosts_without_a_plan_are_refused() -> None:
    proof = {"format": "trainverify-proof", "version": 1, "facts": [], "stages": [], "ghosts": {"main": {}}}
    assert read_proof(dump(proof), plan()).extended == read_ghosts({}, plan())
    with refused("malformed", "plan: no JSON"):
        read_proof(dump(proof))
