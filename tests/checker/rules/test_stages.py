"""Outputs per class (obligation 16): a stage has its own outputs, and leaves no stale copy of a state."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checker.reading.plan import read_plan
from checker.rules.relations import check_outputs

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, piece, plan_of, program, refuses, relation, z


def plan(second: Any, held: Any, left: Any, version: int = 2) -> Any:
    return read_plan(dump(document(second, held, left, version)))


def document(second: Any, held: Any, left: Any, version: int = 2) -> Any:
    """Class c0 doubles the state w, and returns v as u; class c1 runs `second`, related by further pieces."""

    def doubled() -> Any:
        inputs = [["w", "f32[4]"], ["v", "f32[4]"]]
        return program(inputs, [op("%0", "add", ["w", "w"], "f32[4]")], [["w", "%0"], ["u", "v"]])

    own = piece("c0", [4], [z(0)], [z(0)])
    made = plan_of(
        [["pp", 2]],
        doubled(),
        [
            {"name": "c0", "box": {"pp": [0, 1]}, "program": doubled()},
            {"name": "c1", "box": {"pp": [1, 2]}, "program": second},
        ],
        [relation("w", "w", own), relation("v", "v", own), *held],
        [relation("w", "w", own), relation("u", "u", own), *left],
    )
    return made | {"version": version}


PART = piece("c1", [4], [z(0)], [z(0)])
DOUBLED = [op("%0", "add", ["head", "head"], "f32[4]")]
HEAD = ["head", "f32[4]"]


def test_a_stage_without_the_state_needs_no_output_of_it() -> None:
    assert check_outputs(plan(program([], [], []), [], [])) == []


def test_version_1_wants_every_output_of_every_class() -> None:
    with refuses(16, "elements of w in class c1 are not covered"):
        check_outputs(plan(program([], [], []), [], [], version=1))


@pytest.mark.parametrize("related", [True, False])
def test_a_stage_that_keeps_the_state(related: bool) -> None:
    """An input of the output's name, whatever relations say of it."""
    held = [relation("w", "w", PART)] if related else []
    with refuses(16, "elements of w in class c1"):
        check_outputs(plan(program([["w", "f32[4]"]], [], []), held, []))


def test_a_stale_copy_under_another_name() -> None:
    """The tied head of the last stage, read and never updated."""
    with refuses(16, "elements of w in class c1"):
        check_outputs(plan(program([HEAD], DOUBLED, []), [relation("w", "head", PART)], []))


def test_a_stale_copy_that_leaves_without_relation() -> None:
    with refuses(16, "elements of w in class c1"):
        second = program([HEAD], DOUBLED, [["head", "head"]])
        check_outputs(plan(second, [relation("w", "head", PART)], []))


def test_a_copy_under_another_name_that_is_claimed_too() -> None:
    second = program([HEAD], DOUBLED, [["head", "%0"]])
    tied = [relation("w", "head", PART)]
    assert check_outputs(plan(second, tied, tied)) == []


def test_half_of_a_copy_is_claimed() -> None:
    second = program([HEAD], DOUBLED, [["head", "%0"]])
    half = [relation("w", "head", piece("c1", [2], [z(0)], [z(0)]))]
    with refuses(16, "elements of head in class c1"):
        check_outputs(plan(second, [relation("w", "head", PART)], half))


def test_one_of_two_copies_is_claimed() -> None:
    second = program([HEAD, ["tail", "f32[4]"]], DOUBLED, [["head", "%0"]])
    tied = [relation("w", "head", PART)]
    with refuses(16, "elements of w in class c1"):
        check_outputs(plan(second, [*tied, relation("w", "tail", PART)], tied))


def test_a_stage_that_holds_something_else() -> None:
    """An input that is tied to no state of the output is no reason."""
    second = program([["bias", "f32[4]"]], [], [])
    assert check_outputs(plan(second, [relation("v", "bias", PART)], [])) == []


def test_a_copy_that_leaves_as_another_tensor() -> None:
    second = program([HEAD], DOUBLED, [["head", "head"]])
    with refuses(16, "elements of w in class c1"):
        check_outputs(plan(second, [relation("w", "head", PART)], [relation("u", "head", PART)]))


def test_a_copy_that_leaves_on_another_rank_only() -> None:
    """`head` is claimed of class c0, which has an output of that name; of c1 nothing is."""
    second = program([HEAD], DOUBLED, [["tail", "%0"]])
    claimed = [relation("w", "head", piece("c0", [4], [z(0)], [z(0)]))]
    made = document(second, [relation("w", "head", PART)], claimed)
    made["classes"][0]["program"]["outputs"].append(["head", "%0"])
    with refuses(16, "elements of w in class c1"):
        check_outputs(read_plan(dump(made)))
