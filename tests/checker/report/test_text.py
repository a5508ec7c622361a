"""report.txt has everything that tv-check prints of a bundle, without asking a solver."""

from __future__ import annotations

from dataclasses import replace

from checker.report.findings import Findings
from checker.report.text import plain, text
from checker.report.verdict import CONDITIONS, OUTSIDE


def test_a_proved_step(right: Findings) -> None:
    said = text(right)
    lines = said.splitlines()
    assert said.isascii() and lines[0].startswith("PROVED: All 5 outputs")
    assert lines[1] == "  plan mlp-tp2-dp2: dp 2 x tp 2, ranks: 4 in 1 rank class"
    assert f"  digest {right.plan.digest}" in lines
    for line in (*CONDITIONS, *OUTSIDE, "made by: the <b>team</b>", "source commit: 0123abc"):
        assert f"  {line}" in lines
    assert "  PROVED   params.w2 f32[4,3] = params.w2 f32[8,3]; dp Replicate, tp Shard(0)" in lines
    assert lines[lines.index("Laws used") + 1] == "  none" or "ring" in said
    assert "Over many steps" in lines and "Diagnosis by the maker, not checked" not in lines


def test_a_refuted_step_has_its_numbers_and_the_makers_diagnosis(wrong: Findings) -> None:
    said = text(wrong)
    assert said.startswith("REFUTED: 1 of 5 outputs")
    assert "ONE STEP only" in said and "is not proved" in said
    assert "on the plan's side and" in said and "Diagnosis by the maker, not checked\n  params." in said


def test_the_origin_is_told_as_not_checked(right: Findings) -> None:
    plan = replace(right.plan, provenance={"interpolated_ranks": "492", "tool": "\u202e"})
    said = text(replace(right, examined=replace(right.examined, plan=plan)))
    section = said[said.index("Origin as the plan says, not checked") :].splitlines()
    assert section[1:] == ['  interpolated_ranks: "492"', '  tool: "\\u202e"']


def test_ranges_that_are_assumed_are_told(right: Findings) -> None:
    plan = replace(right.plan, ranges={"batch.x": (0, 7)})
    said = text(replace(right, examined=replace(right.examined, plan=plan)))
    assert "Assumptions\n  batch.x lies in [0, 7)\n" in said


def test_nothing_can_steer_a_terminal() -> None:
    assert plain("a\x1b[1Ab\u202ec") == "a?[1Ab\\u202ec"
