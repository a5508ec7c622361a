"""report.txt says what is claimed, assumed and traced."""

from __future__ import annotations

from dataclasses import replace

from certificates.bundle.bundle import (
    OutputVerdict,
)
from certificates.bundle.report import laws_used, report
from certificates.plan.plan import Plan


def test_report_says_what_is_claimed_assumed_and_traced(mlp: Plan) -> None:
    plan = replace(
        mlp, provenance={"traced_ranks": ["0", "3"], "interpolated_ranks": "2"}, ranges={"batch.x": (0, 7)}
    )
    verdicts = [OutputVerdict(r.spec, r.plan, "PROVED") for r in plan.outputs]
    text = report(plan, "abc", verdicts, "unsat", 24, b"")
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
    text = report(mlp, "abc", verdicts, "unsat", 1, b"")
    assert "One step only" in text and "loss is UNKNOWN" in text and "cvc5 says unknown" in text
    verdicts = [replace(v, verdict="PROVED") for v in verdicts]
    moved = replace(mlp, outputs=tuple(r for r in mlp.outputs if r.spec != "params.w1"))
    fewer = [v for v in verdicts if v.spec != "params.w1"]
    assert "state params.w1 leaves the step under another relation" in report(
        moved, "", fewer, "unsat", 1, b""
    )
    silent = replace(mlp, given=("batch.x",))
    text = report(silent, "", verdicts, "unsat", 1, b"")
    assert "hyper.lr is read but leaves no value; it is neither declared given nor constant" in text
    assert "batch.x is read" not in text and "params.w1 is read" not in text
    ranged = replace(mlp, ranges={"params.w1": (0, 2)})
    assert "range of the state params.w1 is not re-established" in report(
        ranged, "", verdicts, "unsat", 1, b""
    )


def test_report_says_which_inputs_are_states_and_what_is_declared(mlp: Plan) -> None:
    lines = report(
        replace(mlp, given=("batch.t", "batch.x"), constants=("hyper.lr",)), "", [], "unsat", 1, b""
    )
    at = lines.splitlines().index("State, covered by the claim")
    assert lines.splitlines()[at : at + 9] == [
        *("State, covered by the claim", "  params.w1", "  params.w2", ""),
        *("Given anew at each step (declared)", "  batch.t", "  batch.x", ""),
        "Constant over all steps (declared)",
    ]


def test_report_names_the_laws_and_the_domains_that_are_not_shown(mlp: Plan) -> None:
    """A reader sees what a proof rests on beyond the solvers, and of which values it says nothing."""
    law = b'{"k":"law","lhs":["lit","1"],"rhs":["lit","1"],"schema":"%s"}'
    proof = (
        b"["
        + b",".join(law % s for s in (b"ring", b"recip", b"ring"))
        + b',{"title":"\\"schema\\":\\"root\\""}]'
    )
    assert laws_used(proof) == {"ring": 2, "recip": 1}
    lines = report(mlp, "", [], "unsat", 1, proof).splitlines()
    at = lines.index("Laws used")
    assert lines[at : at + 4] == ["Laws used", "  recip 1 time", "  ring 2 times", ""]
    assert not [line for line in lines if line.startswith("Not shown")], "quotients by literals are shown"
    lines = report(mlp, "", [], "unsat", 1, b"").splitlines()
    assert lines[lines.index("Laws used") + 1] == "  none"
    first, *ops = mlp.specification.ops
    assert first.name == "dot_general"
    rooted = replace(next(o for o in ops if o.name == "tanh"), name="log")
    open_ = replace(
        mlp.specification, ops=tuple(rooted if o.out == rooted.out else o for o in mlp.specification.ops)
    )
    lines = report(replace(mlp, specification=open_), "", [], "unsat", 1, b"").splitlines()
    at = lines.index("Not shown to stay in its domain, where the claim says nothing")
    assert lines[at + 1].startswith(
        f"  log where a > 0 (1 in the specification, 0 in the plan), first s:{rooted.out}"
    )
    assert lines[at + 2] == ""
