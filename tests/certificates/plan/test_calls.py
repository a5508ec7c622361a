"""Calls that do not fit their functions are refused."""

from __future__ import annotations

import json

import pytest

from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from orchestrator.outlining.outline import outline
from tests.orchestrator.deep_plans import deep


@pytest.fixture(scope="module")
def layers() -> Plan:
    """Six calls of one function."""
    return outline(deep(6))


def refusal(plan: Plan, change: str) -> str:
    document = json.loads(dumps(plan))
    ops = document["classes"][0]["program"]["ops"]
    place = next(i for i, op in enumerate(ops) if op[1] == "call")
    call = ops[place]
    match change:
        case "twice":
            ops.insert(place + 1, [[f"%{900 + i}" for i, _ in enumerate(call[0])], *call[1:]])
        case "absent":
            call[4] = 77
        case "unknown":
            call[3] = "f9"
        case "operands":
            call[2][0], call[2][1] = call[2][1], call[2][0]
        case "results":
            call[0].pop()
        case "body":
            document["functions"]["f0"]["classes"] = {}
        case "empty":
            document["functions"] = {}
        case "nested":
            document["functions"]["f0"]["specification"]["ops"].append([["%900"], "call", [], "f0", 0])
        case "type":
            document["functions"]["f0"]["specification"]["ops"][0][3] = "f32[1]"
    with pytest.raises(FormatError) as error:
        loads((json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode())
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("twice", "class c0 calls f0 0 twice"),
        ("absent", "only some programs call f0 0"),
        ("unknown", "call of an unknown function 'f9'"),
        ("operands", "operands of f0 0 have other types"),
        ("results", "results, its body"),
        ("body", "function f0 must have a body for every rank class"),
        ("empty", "an empty list of functions"),
        ("nested", "call of an unknown function 'f0'"),
        ("type", "function f0: "),
    ],
)
def test_calls_that_do_not_fit_are_refused(layers: Plan, change: str, reason: str) -> None:
    assert reason in refusal(layers, change)
