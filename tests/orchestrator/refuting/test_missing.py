"""What is said of an output without a verdict: the user's line, what was looked for there, what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan
from certificates.plan.writing import dump
from orchestrator.cli import verify_main
from orchestrator.emission import Emission
from orchestrator.emit import emit

from ..plans import pair

ROWS = {"dp": Shard(0)}


def step(other: str = "", factor: int = 1) -> Plan:
    """``tanh`` of rows, summed; the ranks do another op, or have a multiple."""

    def write(b: ProgramBuilder, rows: int, mine: bool) -> None:
        h: Value = b.input("x", f"f32[{rows},3]") * 2
        h = getattr(b, other)(h) if mine and other else b.tanh(h)
        b.output("y", h * factor if mine and factor > 1 else h)
        b.output("z", (h * factor if mine and factor > 1 else h) - 1)

    return pair({"dp": 2}, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
                {"x": ROWS}, {"y": ROWS, "z": ROWS})  # fmt: skip


def emitted(plan: Plan, folder: Path, seconds: float = 0) -> Emission:
    return emit(plan, folder / "b", witness_seconds=seconds)


def test_the_line_the_operand_and_what_the_specification_makes_of_it(tmp_path: Path) -> None:
    reason = emitted(step("exponential"), tmp_path).verdicts[0].reason
    assert "test_missing.py:" in reason.partition(": ")[0]
    assert "no relation of `exponential %2` of class c0 to the specification was found" in reason
    assert "`%1` is 2 x `x`, of which the specification makes " in reason
    assert "its `tanh %2` (" in reason and ", and no exponential" in reason
    assert "if this line is right, the prover lacks a stage for it (docs/extending.md)" in reason
    assert "tv-show --op c0:%2 shows it" in reason


def test_an_output_that_is_a_multiple_is_told_so_beside_what_is_claimed(tmp_path: Path) -> None:
    """In the words of a diagnosis: a reader sees the factor without a witness."""
    reason = emitted(step(factor=2), tmp_path).verdicts[0].reason
    assert "is 2 x the specification's `tanh %2`" in reason
    assert "; claimed is the specification's `tanh %2`" in reason
    assert "; if the claim is right, divide by 2; " in reason


def test_a_partial_sum_that_is_claimed_whole_or_read_as_whole_is_told_to_lack_a_reduction(
    tmp_path: Path,
) -> None:
    """In the words of a diagnosis, though no witness was looked for."""

    def write(b: ProgramBuilder, rows: int, inner: bool) -> None:
        g = b.dot(b.input("x", f"f32[{rows},3]"), b.input("e", f"f32[{rows},2]"), ([0], [0]))
        b.output("y", b.tanh(g) if inner else g)

    for inner, said in (
        (False, "if the claim is right, a reduction over dp is missing: all_reduce it;"),
        (True, "if `%0` should be whole here, a reduction over dp is missing: all_reduce it before;"),
    ):
        plan = pair({"dp": 2}, lambda b, i=inner: write(b, 8, i), lambda b, i=inner: write(b, 4, i),
                    {"x": ROWS, "e": ROWS}, {"y": {}})  # fmt: skip
        assert said in emitted(plan, tmp_path / str(inner)).verdicts[0].reason


@pytest.mark.parametrize("bounds", [{}, {"ids": (0, 9)}])
def test_a_look_up_without_bounds_is_told_to_need_them(
    tmp_path: Path, bounds: dict[str, tuple[int, int]]
) -> None:
    """Who forgets the bounds of a batch of tokens read that the prover lacks a stage."""

    def write(b: ProgramBuilder, rows: int) -> None:
        b.output("y", b.gather(b.input("table", "f32[9,3]"), b.input("ids", f"i64[{rows}]") + 0))

    plan = pair(
        {"dp": 2},
        lambda b: write(b, 8),
        lambda b: write(b, 4),
        {"table": {}, "ids": ROWS},
        {"y": ROWS},
        bounds,
    )
    verdict = emitted(plan, tmp_path).verdicts[0]
    said = "`ids` may name a row outside of the table: declare bounds (Batch), or clamp it"
    assert (said in verdict.reason) == (not bounds)
    assert verdict.verdict == ("PROVED" if bounds else "UNKNOWN")


def test_one_message_and_references_to_it(tmp_path: Path) -> None:
    done = emitted(step("exponential"), tmp_path)
    assert done.verdicts[1].reason.startswith("the stage is missing that is told at y")
    (missing,) = done.missing
    assert missing["outputs"] == ["y", "z"] and missing["name"] == "exponential"
    assert [v.plan for v in done.explained] == ["y"]


@pytest.mark.parametrize(("seconds", "words"), [(0, "no witness was looked for"), (1, "")])
def test_what_was_tried_is_said(tmp_path: Path, seconds: float, words: str) -> None:
    done = emitted(step("exponential"), tmp_path, seconds)
    assert words in done.verdicts[0].reason
    assert done.missing or done.exit_code == 1


def test_a_refuted_plan_names_its_cause_and_no_missing_stage_for_what_follows(tmp_path: Path) -> None:
    done = emitted(step("exponential"), tmp_path, 10)
    assert done.exit_code == 1 and done.cause is not None and done.missing == ()


def test_tv_verify_says_it_to_people_and_to_programs(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    dump(step("exponential"), path)
    said = CliRunner().invoke(verify_main, [str(path), "--witness-seconds", "0"])
    assert said.exit_code == 3
    assert sum("diagnosis: " in line for line in said.stdout.splitlines()) == 1
    assert "no relation of `exponential %2`" in " ".join(said.stdout.split())
    told = CliRunner().invoke(verify_main, [str(path), "--witness-seconds", "0", "--json"])
    (missing,) = json.loads(told.stdout)["emit"]["missing"]
    assert missing["op"] == "%2" and missing["class"] == "c0" and missing["line"] > 0
    assert missing["looked_for"] and missing["advice"]
