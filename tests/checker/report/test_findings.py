"""A report calls an output what the bundle does, as far as the records allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checker.errors import Rejected
from checker.kernel import Output
from checker.report.findings import Findings, find


def claiming(found: Findings, *words: str) -> Findings:
    """The same bundle, with other words in its manifest."""
    manifest = found.examined.manifest
    verdicts = tuple((s, p, w, "why") for (s, p, _, _), w in zip(manifest.verdicts, words, strict=True))
    examined = replace(found.examined, manifest=manifest._replace(verdicts=verdicts))
    return find(examined, found.proof, found.members, found.refuted)


def test_a_proved_bundle_is_proved(right: Findings) -> None:
    assert right.word == "PROVED" and right.ranks == 4 and right.invariant == ()
    assert right.sentence == (
        "All 5 outputs of the distributed training step equal the single-device model's, under the stated "
        "relations."
    )
    assert right.about == {"who": "the <b>team</b>", "commit": "0123abc"}


def test_an_output_that_the_bundle_does_not_claim_has_no_proof(right: Findings) -> None:
    """A solver may have refused a file: the records alone do not make it proved."""
    found = claiming(right, "PROVED", "UNKNOWN", "PROVED", "PROVED", "PROVED")
    assert found.word == "UNKNOWN" and found.sentence.startswith("1 of 5 outputs have no proof.")
    assert (found.outputs[1].verdict, found.outputs[1].reason) == ("UNKNOWN", "why")
    assert found.invariant == ("params.w1 is not proved",)


def test_a_refuted_bundle_is_refuted(wrong: Findings) -> None:
    assert wrong.word == "REFUTED" and wrong.sentence.startswith("1 of 5 outputs")
    assert [o.verdict for o in wrong.outputs].count("PROVED") == 4


def test_a_refutation_without_a_witness_is_no_finding(right: Findings) -> None:
    with pytest.raises(Rejected, match="obligation 18"):
        claiming(right, "REFUTED", "PROVED", "PROVED", "PROVED", "PROVED")


def test_a_proof_that_is_not_in_the_records_is_no_finding(wrong: Findings) -> None:
    at = next(iter(wrong.refuted))
    words = ["PROVED" if i == at else o.verdict for i, o in enumerate(wrong.outputs)]
    silent = replace(wrong, refuted={})
    with pytest.raises(Rejected, match="goals of no stage"):
        claiming(silent, *words)


def test_nothing_claimed_is_no_success(right: Findings) -> None:
    assert replace(right, outputs=()).word == "UNKNOWN"
    unsolved = replace(right.examined, manifest=right.examined.manifest._replace(status="unknown"))
    open_ = replace(right, examined=unsolved, outputs=(Output("y", "y", "UNKNOWN", ""),))
    assert open_.word == "UNSOLVED" and "no solver was asked" in open_.sentence
