"""What the tool says of a plan of the corpus, against what a dense evaluation says."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

import trainverify as tv
from certificates.plan.plan import Plan
from orchestrator.evaluating import interpreter, scatter
from tests.corpus.run import shown

from .kit import Part

SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """The checker's verdict; ``surprises`` say what should be otherwise; ``proved`` is None if not tried."""

    verdict: str
    refuted: str
    proved: int | None
    total: int
    surprises: tuple[str, ...]
    captured: float


def name(output: tv.OutputVerdict | scatter.Mismatch) -> str:
    """An output relation by name; a flat bucket of the plan holds several tensors of the specification."""
    return output.plan if output.plan == output.spec else f"{output.spec} in {output.plan}"


def wrong_outputs(plan: Plan) -> set[str]:
    """Outputs whose claimed relation fails on dense random inputs, large or small, by the interpreter."""
    rng = np.random.default_rng(1)
    wrong: set[str] = set()
    for size in (1.0, 0.1, 0.01):
        inputs = scatter.random_inputs(plan, rng)
        for tensor, value in inputs.items():
            if value.dtype.kind == "f" and not tensor.startswith(("opt.", "hyper.")):
                inputs[tensor] = value * size
        spec = interpreter.run_specification(plan, inputs)
        ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
        wrong |= {name(m) for m in scatter.compare_outputs(plan, spec, ranks, 1e-12)}
    return wrong


def refuted(part: Part, mistake: str) -> str:
    """The output that a witness shows to be wrong, the checker's replay of it included; nothing is proved."""
    plan = part.wrong(mistake)
    relation = shown(plan, SECONDS)
    found = name(tv.OutputVerdict(relation.spec, relation.plan, "REFUTED"))
    assert found in wrong_outputs(plan), f"{found} is right"
    return found


def judged(part: Part, plan_name: str, mistake: str = "") -> Outcome:
    """Capture, emit, check. A right plan is PROVED; a wrong one is REFUTED at an output that is wrong, by a
    witness that the checker replayed, and all outputs that the mistake leaves alone are PROVED."""
    start = time.monotonic()
    plan = part.wrong(mistake) if mistake else part.right(plan_name)
    captured = time.monotonic() - start
    with tempfile.TemporaryDirectory(prefix="tv-breakages-") as scratch:
        emission = tv.emit(plan, Path(scratch, "bundle"), witness_seconds=SECONDS)
        verdict = tv.check(emission.bundle)
    wrong = wrong_outputs(plan)
    said = {name(o): o.verdict for o in verdict.outputs}
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
        if name(output) not in wrong:
            surprises.append(f"{name(output)} is refuted and right")
        elif mistake and not fnmatchcase(name(output), part.mistakes[mistake].refuted):
            surprises.append(f"{name(output)} is refuted, not {part.mistakes[mistake].refuted}")
    if proved & wrong:
        surprises.append(f"PROVED AND WRONG: {sorted(proved & wrong)}")
    if refuted and set(said) - proved - wrong and not part.mistakes[mistake].hides:
        surprises.append(f"right and not proved: {sorted(set(said) - proved - wrong)}")
    first = name(refuted[0]) if refuted else ""
    return Outcome(verdict.kind.value, first, len(proved), len(said), tuple(surprises), captured)


def witnessed(part: Part, plan_name: str, mistake: str) -> Outcome:
    """A wrong plan is REFUTED at an output that is wrong; what is right of it is not looked at."""
    start = time.monotonic()
    plan = part.wrong(mistake)
    captured = time.monotonic() - start
    assert plan_name == part.mistakes[mistake].plan
    return Outcome("REFUTED", refuted(part, mistake), None, len(plan.outputs), (), captured)
