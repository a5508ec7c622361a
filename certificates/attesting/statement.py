"""in-toto statements about a bundle, from the document of ``tv-check --json``.

A certificate is stated of a bundle that ``tv-check`` calls VALID only: an output without a proof means that
there is no such statement. A verification summary is stated of any, with its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..bundle.archive import read_files
from ..canonical import digest, read_bytes
from ..errors import FormatError

STATEMENT = "https://in-toto.io/Statement/v1"
CERTIFICATE = "urn:trainverify:certificate:v1"
SUMMARY = "https://slsa.dev/verification_summary/v1"
PAYLOAD = "application/vnd.in-toto+json"
#: The files whose digest stands for a bundle: a bag's seal of all seals, or the manifest of a plain folder.
SEALS = ("tagmanifest-sha256.txt", "manifest.json")
STEP, RUN, ORDER = "TRAINVERIFY_STEP", "TRAINVERIFY_EVERY_STEP", "TRAINVERIFY_SAFE_SCHEDULE"
SEMANTICS = (
    "real numbers and unbounded integers; functions are total; for every input that satisfies the input "
    "relation, every output of the plan stands in the claimed relation to the specification's output"
)


class NotProved(Exception):
    """The checker does not call the bundle VALID, so that nobody can certify it."""


def subject(bundle: Path) -> dict[str, Any]:
    """What is signed: the file that lists the digests of all others, by its own digest."""
    files = read_files(bundle)
    for name in SEALS:
        if name in files:
            return {"name": name, "digest": {"sha256": digest(files[name])}}
    raise FormatError(f"{bundle} is no bundle")


def certificate(
    about: Mapping[str, Any], code: int, found: Mapping[str, Any], checker: str
) -> dict[str, Any]:
    """The statement that every output is proved; ``NotProved`` if ``tv-check`` does not end with code 0."""
    outputs = found.get("outputs") or []
    if code != 0 or not outputs or any(o["verdict"] != "PROVED" for o in outputs):
        raise NotProved(str(found.get("verdict", "no verdict")))
    return _statement(
        about,
        CERTIFICATE,
        {
            "verdict": found["verdict"],
            "plan": {"name": found["plan"], "digest": {"sha256": found["digest"]}, "mesh": found["mesh"]},
            "claim": {
                "semantics": SEMANTICS,
                "outputs": found["claims"],
                "holds": "after every step" if found["invariant"] else "after one step",
                "conditions": found["conditions"],
                "states": found["states"],
                "given": found["given"],
                "constants": found["constants"],
            },
            "assumptions": found["assumptions"],
            "notClaimed": found["not_claimed"],
            "domainsNotShown": found["domains_not_shown"],
            "outside": found["outside"],
            "schedule": found["schedule"],
            "reduction": {"obligations": found["algebra"], "acceptedByPolicy": found["policy"]["reductions"]},
            "stages": {
                "stages": found["stages"],
                "cases": found["cases"],
                "obligations": found["obligations"],
                "confirmedWithoutSolver": found["normalised"],
                "laws": found["laws"],
            },
            "solvers": found["solvers"],
            "trustedBase": found["trusted_base"],
            "checker": checker,
        },
    )


def summary(
    about: Mapping[str, Any],
    code: int,
    found: Mapping[str, Any],
    *,
    verifier: str,
    checker: str,
    resource: str,
    policy: Path | None,
    time: str,
) -> dict[str, Any]:
    """A SLSA verification summary of ``tv-check``'s verdict; ``time`` is RFC 3339."""
    levels = [STEP, *([RUN] if found.get("invariant") else [])]
    levels += [ORDER] if str(found.get("schedule", "")).startswith("SAFE: ") else []
    rule: dict[str, Any] = {"uri": "urn:trainverify:policy:default"}
    if policy is not None:
        rule = {
            "uri": f"urn:trainverify:policy:{policy.name}",
            "digest": {"sha256": digest(read_bytes(policy))},
        }
    return _statement(
        about,
        SUMMARY,
        {
            "verifier": {"id": verifier, "version": {"tv-check": checker}},
            "timeVerified": time,
            "resourceUri": resource,
            "policy": rule,
            "inputAttestations": [],
            "verificationResult": "FAILED" if code else "PASSED",
            "verifiedLevels": ["FAILED"] if code else levels,
        },
    )


def _statement(about: Mapping[str, Any], kind: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    return {"_type": STATEMENT, "subject": [dict(about)], "predicateType": kind, "predicate": dict(predicate)}
