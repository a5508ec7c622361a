"""Refutations that hold: a witness is searched in floating point and replayed by the checker as a child."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from certificates.bundle.bundle import Bundle, OutputVerdict, write
from certificates.endings import scratch
from certificates.plan.plan import Plan
from certificates.proof.stages import Proof
from certificates.proof.writing import proof_bytes

from ..children import run_checker
from ..errors import OrchestratorError
from ..evaluating.network import SPEED, Work
from .diagnose import Cause, Prove, diagnose
from .search import Witness, search

#: Choices of inputs that are tried at least.
_CHOICES = 8


def choices(seconds: float) -> int:
    """How many inputs are tried in a search of so many seconds, if it is not over before: one for each."""
    return max(_CHOICES, round(seconds))


def _nothing(_plan: Plan, _outputs: Sequence[int]) -> bool:
    """A prover that proves nothing: no edit is suggested."""
    return False


@dataclass(frozen=True)
class Refutation:
    """A replayed witness against one output relation, and the cause as far as it was found."""

    output: int
    witness: Mapping[str, object]
    reason: str
    cause: Cause | None = None


def refute(
    plan: Plan, facts: Sequence[tuple[int, int]], seconds: float, prove: Prove = _nothing
) -> Refutation | None:
    """The first witness against one of ``facts`` (output relation, claimed fact) that the checker replays.

    Its cause is looked for in the seconds that are left, at least in half of them. A second is ``SPEED``
    steps: what is found does not depend on the machine.
    """
    work = Work()
    for seed in range(choices(seconds)):
        left = seconds - work.steps / SPEED
        if left <= 0 or not facts:
            return None
        witness = search(plan, facts, seeds=(seed,), budget=left, work=work)
        seen = None if witness is None else replayed(plan, witness)
        if witness is not None and seen is not None and not _shown_by_padding(plan, witness):
            cause = _cause(plan, witness, max(seconds - work.steps / SPEED, seconds / 2), prove)
            where = f"cause: {cause.describe(plan)}" if cause else "no op stands out"
            return Refutation(witness.output, witness.to_json(), f"{seen}; {where}", cause)
    return None


def _shown_by_padding(plan: Plan, witness: Witness) -> bool:
    """Is there no difference where elements, of inputs of which the single device has the others, are zero?

    A flat shard is padded with zeros, and stays so where its gradient is: whether it does, no witness says.
    """
    return _padded(plan) and replayed(plan, replace(witness, junk=Fraction(0))) is None


def _padded(plan: Plan) -> bool:
    """Is an input of a rank known in part?"""
    known = Counter[tuple[str, str]]()
    for relation in plan.inputs:
        for piece in relation.pieces:
            known[piece.cls, relation.plan] += math.prod(piece.sizes)
    return any(count < plan.by_class[cls].program.inputs[name].size for (cls, name), count in known.items())


def replayed(plan: Plan, witness: Witness) -> str | None:
    """What the checker's interval arithmetic says of a witness, or ``None`` if it shows nothing.

    The checker gets a bundle without obligations and reports: no solver is run, and nobody reads it.
    """
    verdicts = tuple(
        OutputVerdict(r.spec, r.plan, "REFUTED" if i == witness.output else "UNKNOWN")
        for i, r in enumerate(plan.outputs)
    )
    bundle = Bundle(plan, proof_bytes(Proof([], [])), {}, verdicts, "unknown", witness.to_json())
    with scratch("trainverify-") as folder:
        policy = folder / "policy.json"
        policy.write_text('{"reports":false}', encoding="ascii")
        write(bundle, folder / "bundle")
        checked = run_checker(folder / "bundle", "--policy", str(policy))
    if checked.exit_code != 1 or not checked.outputs:
        return None
    said = checked.outputs[witness.output]
    return said.reason if said.verdict == "REFUTED" else None


def _cause(plan: Plan, witness: Witness, seconds: float, prove: Prove) -> Cause | None:
    try:
        return diagnose(plan, witness, seconds, prove)
    except (OrchestratorError, RecursionError):
        return None
