"""What a plan declares of its inputs, by both readers, and what the invariant of a run then claims."""

from __future__ import annotations

import json
from typing import Any

import pytest

from certificates.errors import FormatError
from certificates.plan import Plan, canonical_bytes, dumps, loads
from checker.errors import Malformed
from checker.reader import read_plan


def document(plan: Plan, **roles: Any) -> bytes:
    return canonical_bytes(json.loads(dumps(plan)) | roles)


def test_roles_are_read(mlp: Plan) -> None:
    data = document(mlp, given=["batch.t", "batch.x"], constants=["hyper.lr"])
    found = [(p.given, p.constants) for p in (loads(data), read_plan(data))]
    assert found == [(("batch.t", "batch.x"), ("hyper.lr",))] * 2
    assert dumps(loads(data)) == data


def test_a_plan_that_declares_nothing_has_no_such_members(mlp: Plan) -> None:
    assert not {"given", "constants", "functions"} & json.loads(dumps(mlp)).keys()


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
    plan = json.loads(dumps(mlp))
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
