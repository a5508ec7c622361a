"""A certificate is stated of what is proved only; a summary says PASSED of nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from certificates.attesting.statement import CERTIFICATE, STATEMENT, NotProved, certificate, subject, summary
from certificates.errors import FormatError

ABOUT = {"name": "manifest.json", "digest": {"sha256": "0" * 64}}
FOUND: dict[str, Any] = {
    "verdict": "VALID: all 1 outputs equal",
    "outputs": [{"spec": "y", "plan": "y", "verdict": "PROVED", "reason": ""}],
    **{"plan": "p", "digest": "1" * 64, "mesh": [["tp", 2]], "claims": ["y = y"], "invariant": True},
    **{"conditions": ["c"], "states": [], "given": ["x"], "constants": [], "assumptions": ["a"]},
    **{
        "not_claimed": [],
        "domains_not_shown": ["d"],
        "outside": ["o"],
        "schedule": "SAFE: 6 events",
        "algebra": 1,
        "stages": 2,
        "cases": 2,
    },
    **{"obligations": 2, "normalised": 1, "laws": {"ring": 1}, "trusted_base": ["t"]},
    **{"solvers": [{"name": "z3", "version": "4", "unsat": 2}], "policy": {"reductions": True}},
}


def test_a_certificate_says_what_was_claimed_assumed_and_trusted() -> None:
    statement = certificate(ABOUT, 0, FOUND, "tv 1")
    predicate = statement.pop("predicate")
    assert statement == {"_type": STATEMENT, "subject": [ABOUT], "predicateType": CERTIFICATE}
    assert predicate["claim"]["outputs"] == ["y = y"] and predicate["claim"]["holds"] == "after every step"
    assert predicate["schedule"] == "SAFE: 6 events"
    assert (predicate["assumptions"], predicate["domainsNotShown"], predicate["outside"]) == (
        ["a"],
        ["d"],
        ["o"],
    )
    assert predicate["reduction"] == {"obligations": 1, "acceptedByPolicy": True}
    assert predicate["solvers"] == FOUND["solvers"] and predicate["trustedBase"] == ["t"]


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (1, {}),
        (3, {}),
        (0, {"outputs": []}),
        (0, {"outputs": [*FOUND["outputs"], {**FOUND["outputs"][0], "verdict": "UNKNOWN"}]}),
    ],
)
def test_what_is_not_proved_is_not_certified(code: int, change: dict[str, Any]) -> None:
    """The property is absent; nothing says in small print which output lacks it."""
    with pytest.raises(NotProved):
        certificate(ABOUT, code, FOUND | change, "tv 1")


def summed(code: int, found: dict[str, Any], policy: Path | None = None) -> Any:
    given = {"verifier": "urn:v", "checker": "tv 1", "resource": "urn:r", "time": "2026-11-24T00:00:00Z"}
    return summary(ABOUT, code, found, policy=policy, **given)["predicate"]


def test_a_summary_tells_the_result_under_a_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{}")
    passed = summed(0, FOUND, tmp_path / "policy.json")
    assert passed["verificationResult"] == "PASSED"
    levels = ["TRAINVERIFY_STEP", "TRAINVERIFY_EVERY_STEP", "TRAINVERIFY_SAFE_SCHEDULE"]
    assert passed["verifiedLevels"] == levels
    assert passed["policy"]["digest"]["sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert summed(0, FOUND | {"invariant": False, "schedule": ""})["verifiedLevels"] == levels[:1]
    for code in (1, 3, 4, 5):
        failed = summed(code, {})
        assert (failed["verificationResult"], failed["verifiedLevels"]) == ("FAILED", ["FAILED"])


def test_the_subject_is_the_seal_of_the_bundle(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is no bundle"):
        subject(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"m")
    assert subject(tmp_path) == {
        "name": "manifest.json", "digest": {"sha256": hashlib.sha256(b"m").hexdigest()},
    }  # fmt: skip
    (tmp_path / "tagmanifest-sha256.txt").write_bytes(b"t")
    assert subject(tmp_path)["name"] == "tagmanifest-sha256.txt", "which seals all others in a bag"
