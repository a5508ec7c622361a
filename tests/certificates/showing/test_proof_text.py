"""Stages and facts as text: everything that a stage rests on is shown."""

from __future__ import annotations

import pytest

from certificates.plan.plan import Plan
from certificates.proof.stages import CallStage, Lemma, Proof
from certificates.showing.proof_text import bundle_text, fact_text, stage_line, stage_text, term_text


def test_a_layout_stage(mlp: Plan, proof: Proof) -> None:
    lines = [line.split(" #")[0].rstrip() for line in stage_text(mlp, proof, 0)]
    hyp = (
        "    hyp    fact 0: c0:batch.x[dp, tp, z0, z1] = s:batch.x[3*dp + z0, z1] for dp in [0,2), "
        "tp in [0,2), z0 in [0,3), z1 in [0,4) (input relation 0) at (dp, z0, q0), add over dp"
    )
    assert lines == [
        "stage 0 layout: sum of the loss (7 premises)",
        "  proves fact 1: add[dp](c0:%6)[tp] = 1/2 * s:%5[] for tp in [0,2) (stage 0)",
        "  with q0 in [0,64), v0 (a value)",
        "  obligations/0001.smt2, from",
        "    bound  range of q0",
        "    bound  index of c0:%5[dp, z0] regrouped as [dp, 4*q0]",
        "    bound  v0 is s:batch.x[z0]",
        "    def    c0:%1[dp, z0]",
        "           %1 : f32[3,4] = tanh %0",
        "    def    s:%3[z0] from [q0]",
        "           %3 : f32[6,3] = subtract %2, batch.t",
        hyp,
        "    range  s:batch.x[v0]",
    ]


def test_an_algebra_stage(mlp: Plan, proof: Proof) -> None:
    lines = [line.split(" #")[0].rstrip() for line in stage_text(mlp, proof, 1)]
    element = "c0:%1[0:1, 0, 1:0.2]"
    assert lines[0] == "stage 1 algebra: tanh (2 cases, 3 premises)"
    assert lines[1].endswith("(stage 1; output relation 0)")
    assert lines[2:6] == [
        "  index classes: i has 251, 1 stand for them; k has 4096, 2 stand for them",
        "  case at (0, )",
        "    obligations/0002.smt2, from",
        f"      def    {element}",
    ]
    assert lines[7].startswith("      hyp    fact 0: ") and lines[7].endswith("at (z0), read as its rhs")
    assert lines[8] == (
        f"      law    ring: ({element} + 1/3) = (2 * {element} - mul({element}, neg({element})))"
    )
    with pytest.raises(TypeError, match="not a term"):
        term_text(3)


def test_facts_without_a_proof_say_so(proof: Proof) -> None:
    assert fact_text(Proof(proof.facts, []), 1).endswith("(not proved)")
    assert fact_text(Proof(proof.facts, []), 2).endswith("(not proved; output relation 0)")
    assert fact_text(proof, 12) == "fact 12, which does not exist"


def test_what_rests_on_calls_says_so(proof: Proof) -> None:
    """A lemma stands before the stages that use it; a call names its function and instance."""
    assumed, lemma, claimed = proof.facts
    inside = Lemma("f0", [assumed, lemma], proof.stages[:1], [1])  # type: ignore[arg-type]
    whole = Proof([assumed, lemma, claimed], [CallStage(0, 7)], [inside])
    assert stage_line(whole, 0) == "stage 0 call: f0 7, by lemma 0"
    assert fact_text(whole, 1).endswith("(by a call)")
    _, shown, stages = bundle_text(whole, [])
    assert shown == [
        "lemma 0 about function f0 (1 assumption, 1 conclusion):",
        "  stage 0 layout: sum of the loss (7 premises)",
    ]
    assert stages == ["1 stage, each proves one fact:", "  stage 0 call: f0 7, by lemma 0"]


def test_names_from_a_stranger_cannot_write_to_the_terminal(proof: Proof) -> None:
    verdicts = [("loss", "loss\x1b[2J", "PROVED", "")]
    assert bundle_text(proof, verdicts)[0][1] == "  PROVED   loss\\x1b[2J ~ loss"
