"""What the tool says of a plan of the corpus, against what a dense evaluation says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

import trainverify as tv
from certificates.plan import Plan
from orchestrator import interpreter, scatter

from .kit import Part

SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """The checker's verdict; ``surprises`` say what should be otherwise."""

    verdict: str
    refuted: str
    look: str
    proved: int
    total: int
    surprises: tuple[str, ...]
    captured: float


def wrong_outputs(plan: Plan) -> set[str]:
    """Outputs whose claimed relation fails on dense random inputs, by the interpreter."""
    rng = np.random.default_rng(1)
    inputs = scatter.random_inputs(plan, rng)
    spec = interpreter.run_specification(plan, inputs)
    ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
    return {m.plan for m in scatter.compare_outputs(plan, spec, ranks, 1e-7)}


def judged(part: Part, plan_name: str, mistake: str = "") -> Outcome:
    """Capture, emit, check. A right plan is PROVED; a wrong one is REFUTED at an output that is wrong, by a
    witness that the checker replayed, and all outputs that the mistake leaves alone are PROVED."""
    start = time.monotonic()
    plan = part.wrong(mistake) if mistake else part.right(plan_name)
    captured = time.monotonic() - start
    verdict = tv.verify(plan, witness_seconds=SECONDS)
    wrong = wrong_outputs(plan)
    said = {o.plan: o.verdict for o in verdict.outputs}
    refuted = [o for o in verdict.outputs if o.verdict == "REFUTED"]
    proved = {n for n, word in said.items() if word == "PROVED"}
    surprises = []
    if not mistake and verdict.kind is not tv.Kind.PROVED:
        surprises.append(f"a right plan is {verdict.kind.value}: {sorted(set(said) - proved)}")
    if mistake and verdict.kind is not tv.Kind.REFUTED:
        surprises.append(f"a wrong plan is {verdict.kind.value}")
    if mistake and not wrong:
        surprises.append("the mistake changes nothing")
    if not mistake and wrong:
        surprises.append(f"a right plan computes something else: {sorted(wrong)}")
    for output in refuted:
        if output.plan not in wrong:
            surprises.append(f"{output.plan} is refuted and right")
        elif mistake and not fnmatchcase(output.plan, part.mistakes[mistake].refuted):
            surprises.append(f"{output.plan} is refuted, not {part.mistakes[mistake].refuted}")
    if proved & wrong:
        surprises.append(f"PROVED AND WRONG: {sorted(proved & wrong)}")
    if refuted and set(said) - proved - wrong:
        surprises.append(f"right and not proved: {sorted(set(said) - proved - wrong)}")
    look = refuted[0].reason.partition("look at ")[2] if refuted else ""
    first = refuted[0].plan if refuted else ""
    return Outcome(verdict.kind.value, first, look, len(proved), len(said), tuple(surprises), captured)
