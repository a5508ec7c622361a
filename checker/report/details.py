"""A verdict as data, for `--json`: whoever signs it says what was claimed, assumed and trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..kernel import Examined, Verified
from ..language.proof import Proof
from ..rules.laws import LAWS
from ..rules.roles import states
from .claims import claim
from .domains import Domains
from .verdict import (
    CONDITIONS,
    assumed,
    laws_used,
    outside,
    schedule_line,
    trusted_base,
    unclaimed,
)

PACKAGES = {"z3": "z3-solver", "cvc5": "cvc5"}


def details(
    examined: Examined,
    verified: Verified,
    answers: Mapping[str, Mapping[str, str]],
    proof: Proof,
    refuted: bool,
) -> dict[str, Any]:
    """Members of the verdict's JSON object."""
    plan, laws = examined.plan, laws_used(proof)
    base = trusted_base(plan, proof, examined.files.values(), list(answers), refuted)
    return {
        "outputs": [vars(o) for o in verified.outputs],
        "claims": [claim(plan, r) for r in plan.outputs],
        "plan": plan.name,
        "digest": plan.digest,
        "mesh": [list(axis) for axis in plan.mesh],
        "invariant": not verified.invariant,
        "conditions": [] if verified.invariant else list(CONDITIONS),
        "states": states(plan),
        "given": list(plan.given),
        "constants": list(plan.constants),
        "assumptions": assumed(examined),
        "not_claimed": unclaimed(examined),
        "domains_not_shown": Domains(plan).unshown(),
        "outside": outside(examined),
        "schedule": schedule_line(examined),
        "obligations": len(examined.files),
        "algebra": len(examined.algebra),
        "normalised": len(examined.normalised),
        "stages": examined.steps,
        "cases": examined.cases,
        "laws": {law: laws[law] for law in LAWS if laws[law]},
        "solvers": solvers(answers),
        "trusted_base": [line.removeprefix("trusted: ") for line in base],
    }


def solvers(answers: Mapping[str, Mapping[str, str]]) -> Sequence[Mapping[str, Any]]:
    """Who answered, in which version as far as a package says it, and how often `unsat`."""
    return [
        {"name": name, "version": installed(name), "unsat": sum(a == "unsat" for a in given.values())}
        for name, given in answers.items()
    ]


def installed(solver: str) -> str:
    try:
        return version(PACKAGES[solver])
    except (KeyError, PackageNotFoundError):
        return "unknown"
