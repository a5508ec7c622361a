"""The verdict as data has everything that its lines say."""

from __future__ import annotations

import json

from checker.kernel import conclude
from checker.report.details import details, installed
from checker.report.findings import Findings
from checker.report.verdict import OUTSIDE


def test_a_verdict_as_data(right: Findings) -> None:
    files = right.examined.files
    answers = {"z3": dict.fromkeys(files, "unsat"), "my solver": dict.fromkeys(files, "unsat")}
    verified = conclude(right.examined, answers, 2, {})
    told = details(right.examined, verified, answers, right.proof, False)
    assert json.loads(json.dumps(told)) == told
    assert (told["digest"], told["invariant"], told["outside"]) == (right.plan.digest, True, list(OUTSIDE))
    assert len(told["claims"]) == len(told["outputs"]) == 5 and told["claims"][0].startswith("loss f32[]")
    assert told["obligations"] == len(files) and 0 < told["normalised"] <= told["algebra"]
    assert [(s["name"], s["unsat"]) for s in told["solvers"]] == [
        ("z3", len(files)),
        ("my solver", len(files)),
    ]
    assert any(line.startswith("op semantics: ") for line in told["trusted_base"])


def test_only_a_package_tells_its_version() -> None:
    assert installed("my solver") == "unknown"
    assert installed("cvc5")[0].isdigit()
