"""What a plan declares of its inputs, by both readers, and what the invariant of a run then claims."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from certificates.canonical import canonical_bytes
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.errors import Malformed
from checker.reading.plan import read_plan
from checker.report.verdict import FEW, named
from checker.report.verdict import role_lines as lines
from checker.rules.roles import broken, states


def document(plan: Plan, **roles: Any) -> bytes:
    return canonical_bytes(json.loads(dumps(replace(plan, given=()))) | roles)


def test_roles_are_read(mlp: Plan) -> None:
    data = document(mlp, given=["batch.t", "batch.x"], constants=["hyper.lr"])
    found = [(p.given, p.constants) for p in (loads(data), read_plan(data))]
    assert found == [(("batch.t", "batch.x"), ("hyper.lr",))] * 2
    assert dumps(loads(data)) == data


def test_a_plan_that_declares_nothing_has_no_such_members(mlp: Plan) -> None:
    assert not {"given", "constants", "functions"} & json.loads(document(mlp)).keys()


@pytest.mark.parametrize(
    ("roles", "tools", "checker"),
    [
        ({"given": []}, "an empty list of given", "an optional member is empty"),
        ({"constants": []}, "an empty list of constants", "an optional member is empty"),
        ({"given": ["nobody"]}, "given names nobody, which is no input", "given: no input: 'nobody'"),
        ({"constants": ["loss"]}, "constants names loss, which is no input", "constants: no input: 'loss'"),
        ({"given": ["hyper.lr", "batch.x"]}, "given must be a sorted list", "given: names must be sorted"),
        ({"given": ["batch.x", "batch.x"]}, "given must be a sorted list", "given: names must be sorted"),
        ({"given": ["batch.x"], "constants": ["batch.x"]}, "batch.x is declared both given and constant",
         "an input is declared both given and constant"),
        ({"given": ["params.w1"]}, "given names params.w1, which a step leaves with another value",
         "given: a step leaves params.w1 with another value"),
        ({"constants": ["params.w1"]}, "constants names params.w1, which a step leaves with another value",
         "constants: a step leaves params.w1 with another value"),
        ({"given": "batch.x"}, "given must be a list", "a list is expected"),
        ({"given": [1]}, "given must be a list of strings", "no input: 1"),
    ],
)  # fmt: skip
def test_roles_that_do_not_fit_are_refused(
    mlp: Plan, roles: dict[str, Any], tools: str, checker: str
) -> None:
    data = document(mlp, **roles)
    with pytest.raises(FormatError, match=tools):
        loads(data)
    with pytest.raises(Malformed, match=checker):
        read_plan(data)


def test_an_input_of_one_class_may_be_declared_but_not_changed_by_it(mlp: Plan) -> None:
    """A bucket is no input of the specification; what a class alone changes is no constant."""
    plan = json.loads(document(mlp))
    program = plan["classes"][0]["program"]
    program["inputs"].append(["bucket", "f32[3,4]"])
    plan["constants"] = ["bucket"]
    assert read_plan(canonical_bytes(plan)).constants == loads(canonical_bytes(plan)).constants == ("bucket",)
    program["outputs"].append(["bucket", "bucket"])
    assert read_plan(canonical_bytes(plan)).constants == loads(canonical_bytes(plan)).constants
    program["outputs"][-1][1] = "%0"
    with pytest.raises(FormatError, match="constants names bucket, which a step leaves with another value"):
        loads(canonical_bytes(plan))
    with pytest.raises(Malformed, match="constants: a step leaves bucket with another value"):
        read_plan(canonical_bytes(plan))


# The invariant ----------------------------------------------------------------------------------------------


def test_inputs_that_nobody_declares_are_states(mlp: Plan) -> None:
    """Batches and learning rates too: then the plan must say so, and the reason says what."""
    plan = read_plan(document(mlp))
    assert states(plan) == ["batch.x", "batch.t", "hyper.lr", "params.w1", "params.w2"]
    said = "is read but leaves no value; it is neither declared given nor constant"
    assert broken(plan) == [f"{name} {said}" for name in ("batch.x", "batch.t", "hyper.lr")]
    declared = read_plan(document(mlp, given=["batch.t", "batch.x"], constants=["hyper.lr"]))
    assert broken(declared) == [] and states(declared) == ["params.w1", "params.w2"]
    assert lines(declared) == [
        "states that the claim covers, 2: params.w1, params.w2",
        "given anew at each step (declared, not proved), 2: batch.t, batch.x",
        "constant over all steps (declared, not proved), 1: hyper.lr",
    ]


@pytest.mark.parametrize("side", ["specification", "plan", "both"])
def test_a_plan_that_omits_the_output_of_a_state_loses_the_invariant(mlp: Plan, side: str) -> None:
    """What it claims of the other outputs is true, and says nothing of the step after."""
    plan = json.loads(dumps(mlp))
    for name, program in (("specification", plan["specification"]), ("plan", plan["classes"][0]["program"])):
        if side in (name, "both"):
            program["outputs"] = [o for o in program["outputs"] if o[0] != "params.w1"]
    plan["outputs"] = [r for r in plan["outputs"] if r["plan"] != "params.w1"]
    reason = "params.w1 is read but leaves no value; it is neither declared given nor constant"
    found = broken(read_plan(canonical_bytes(plan)))
    other = {"plan": "specification", "specification": "plan"}
    moved = f"{other.get(side)} state params.w1 leaves the step under another relation than it enters"
    assert set(found) == {reason} | ({moved} if side in other else set())


def test_a_state_of_the_plan_alone_must_leave_it_too(mlp: Plan) -> None:
    """A second copy of a weight under another name, which nobody updates, is stale in the next step."""
    plan = json.loads(dumps(mlp))
    plan["classes"][0]["program"]["inputs"].append(["head", "f32[4,4]"])
    copy = next(r for r in plan["inputs"] if r["plan"] == "params.w1") | {"plan": "head"}
    plan["inputs"].append(copy)
    assert broken(read_plan(canonical_bytes(plan))) == [
        "specification state params.w1 leaves the step under another relation than it enters",
        "head is read but leaves no value; it is neither declared given nor constant",
    ]
    plan["given"].insert(2, "head")
    assert broken(read_plan(canonical_bytes(plan))) == [
        "params.w1 is a state, head, to which it is tied, is given anew",
        "specification state params.w1 leaves the step under another relation than it enters",
    ]


def test_a_role_holds_for_both_ends_of_a_relation(mlp: Plan) -> None:
    """What the specification is given anew while the plan keeps it is not the same input."""
    plan = json.loads(dumps(mlp))
    program = plan["classes"][0]["program"]
    program["inputs"] = [["rate" if n == "hyper.lr" else n, t] for n, t in program["inputs"]]
    text = json.dumps(program).replace('"hyper.lr"', '"rate"')
    plan["classes"][0]["program"] = json.loads(text)
    for r in plan["inputs"]:
        r["plan"] = "rate" if r["plan"] == "hyper.lr" else r["plan"]
    plan["constants"] = ["rate"]
    found = broken(read_plan(canonical_bytes(plan)))
    assert found == ["hyper.lr is given anew, rate, to which it is tied, is constant"]
    plan["given"].append("rate")
    del plan["constants"]
    assert broken(read_plan(canonical_bytes(plan))) == []


def test_names_are_counted_and_folded() -> None:
    """A plan of 126 layers has thousands of states."""
    few = [f"w.{k}" for k in range(FEW)]
    assert named(few) == f"{FEW}: " + ", ".join(few)
    assert named([*few, "head"]) == f"{FEW + 1}: w.# ({FEW}), head"


def test_more_than_twelve_names_are_folded() -> None:
    twelve = [f"w{i}" for i in range(12)]
    assert named(twelve) == "12: " + ", ".join(twelve)
    assert named([*twelve, "w12"]) == "13: w# (13)"
