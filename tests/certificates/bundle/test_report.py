"""report.txt says what is claimed, assumed and traced."""

from __future__ import annotations

from dataclasses import replace

from certificates.bundle.bundle import (
    OutputVerdict,
)
from certificates.bundle.report import report
from certificates.plan.plan import Plan


def test_report_says_what_is_claimed_assumed_and_traced(mlp: Plan) -> None:
    plan = replace(
        mlp, provenance={"traced_ranks": ["0", "3"], "interpolated_ranks": "2"}, ranges={"batch.x": (0, 7)}
    )
    verdicts = [OutputVerdict(r.spec, r.plan, "PROVED") for r in plan.outputs]
    text = report(plan, "abc", verdicts, "unsat", 24)
    assert text.isascii() and text.endswith("\n")
    assert text.splitlines()[0].startswith("PROVED: 5 of 5 outputs")
    for part in (
        "traced ranks: 0, 3 (2 of 4)",
        "ranks not traced, interpolated from those of their class: 2",
        "batch.x lies in [0, 7)",
        "floating-point rounding",
        "24 obligations, each refuted by z3 and by cvc5",
        "the step is an invariant",
    ):
        assert part.lower() in text.lower(), part


def test_report_says_why_a_step_is_no_invariant(mlp: Plan) -> None:
    verdicts = [OutputVerdict(r.spec, r.plan, "PROVED") for r in mlp.outputs]
    verdicts[0] = replace(verdicts[0], verdict="UNKNOWN", reason="cvc5 says unknown")
    text = report(mlp, "abc", verdicts, "unsat", 1)
    assert "One step only" in text and "loss is UNKNOWN" in text and "cvc5 says unknown" in text
    verdicts = [replace(v, verdict="PROVED") for v in verdicts]
    moved = replace(mlp, outputs=tuple(r for r in mlp.outputs if r.spec != "params.w1"))
    fewer = [v for v in verdicts if v.spec != "params.w1"]
    assert "state params.w1 leaves the step under another relation" in report(moved, "", fewer, "unsat", 1)
    silent = replace(mlp, given=("batch.x",))
    text = report(silent, "", verdicts, "unsat", 1)
    assert "hyper.lr is read but leaves no value; it is neither declared given nor constant" in text
    assert "batch.x is read" not in text and "params.w1 is read" not in text
    ranged = replace(mlp, ranges={"params.w1": (0, 2)})
    assert "range of the state params.w1 is not re-established" in report(ranged, "", verdicts, "unsat", 1)


def test_report_says_which_inputs_are_states_and_what_is_declared(mlp: Plan) -> None:
    lines = report(replace(mlp, given=("batch.t", "batch.x"), constants=("hyper.lr",)), "", [], "unsat", 1)
    at = lines.splitlines().index("State, covered by the claim")
    assert lines.splitlines()[at : at + 9] == [
        *("State, covered by the claim", "  params.w1", "  params.w2", ""),
        *("Given anew at each step (declared)", "  batch.t", "  batch.x", ""),
        "Constant over all steps (declared)",
    ]
