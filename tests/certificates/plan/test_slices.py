"""Functions at a slice in plan files: written, read, refused by name, and what their calls mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from certificates.errors import FormatError
from certificates.plan.functions import body_plan, inline
from certificates.plan.plan import Mesh
from certificates.plan.reading import loads
from certificates.plan.sites import sites
from certificates.plan.slices import ground
from certificates.plan.writing import dumps
from certificates.showing.plan_text import plan_text
from orchestrator.evaluating import interpreter, scatter
from tests.sliced_plans import Sliced, dense

PLAN = dumps(dense())


def test_written_and_read() -> None:
    for plan in (dense(), Sliced(2, 2, parts=2).plan()):
        again = loads(dumps(plan))
        assert again == plan and dumps(again) == dumps(plan) and plan.version == 4


def test_a_slice_is_a_mesh_of_its_own() -> None:
    plan = Sliced(3, 1, replicas=4, parts=2).plan()
    mesh, groups, classes = ground(plan, plan.functions["back"])
    assert mesh == Mesh({"mb": 3, "dp": 4}, ("mb",))
    assert groups.keys() == {"mb", "dp"} and groups["dp"].ranks == ((0, 1, 2, 3),)
    assert [(c.name, c.box["dp"]) for c in classes] == [("r0", (0, 2)), ("r1", (2, 4))]
    assert body_plan(plan, "back").mesh == mesh and [plan.role("back", c.name) for c in plan.classes] == [
        *["r0"] * 3,
        *["r1"] * 3,
    ]


def test_a_site_has_the_classes_of_its_slice() -> None:
    plan = Sliced(2, 2, parts=2).plan()
    site = sites(plan)["ahead", 3]
    assert site.slice == {"pp": (1, 2)} and site.roles == {"s": "s", "c10": "r0", "c11": "r1"}


def wrong_outputs(plan: Any) -> set[str]:
    rng = np.random.default_rng(5)
    inputs = scatter.random_inputs(plan, rng)
    ranks = interpreter.run_plan(plan, scatter.scatter_inputs(plan, inputs, rng))
    spec = interpreter.run_specification(plan, inputs)
    return {m.plan for m in scatter.compare_outputs(plan, spec, ranks, 1e-9)}


def test_a_plan_with_slices_computes_what_its_calls_written_out_compute() -> None:
    for parts in (1, 2):
        flat = inline(Sliced(2, 2, parts=parts).plan())
        assert flat.functions == {} and wrong_outputs(flat) == set()
    assert "loss" in wrong_outputs(inline(Sliced(2, 2, bug="weights of another layer").plan()))
    assert wrong_outputs(inline(dense(3))) == set()


def test_shown() -> None:
    lines = plan_text(dense())
    assert "function layer at a slice of pp, called 2 times: ops 1 in the specification, 3 in role r" in lines
    assert "function layer, role r on tp 0..1 {" in lines


def function(document: Any) -> Any:
    return document["functions"]["layer"]


def classes(document: Any, number: int) -> Any:
    return document["classes"][number]["program"]["ops"]


def over_stages(d: Any) -> None:
    d["groups"]["pp"] = {"axes": ["pp"], "ranks": [[0, 2], [1, 3]]}
    function(d)["classes"]["r"]["ops"][2][4]["group"] = "pp"


def second_role(d: Any) -> None:
    for member in ("roles", "classes"):
        function(d)[member]["r2"] = function(d)[member]["r"]


def renamed_role(d: Any) -> None:
    for member in ("roles", "classes"):
        function(d)[member]["c0"] = function(d)[member].pop("r")


def instance(d: Any, number: int) -> None:
    next(op for op in classes(d, 1) if op[1] == "call")[4] = number


MALFORMED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda d: d.update(version=3), "functions at a slice need version 4"),
    (lambda d: function(d).update(along=[]), "an empty list of along"),
    (lambda d: function(d).update(along=["tp"]), "role r must have a side for each other axis"),
    (lambda d: function(d).update(along=["dp"]), "along must be mesh axes in mesh order"),
    (lambda d: function(d)["roles"]["r"].update(pp=[0, 1]), "call of an unknown function|each other axis"),
    (
        lambda d: function(d)["roles"]["r"].update(tp=[0, 1]),
        "call of an unknown function",
    ),
    (lambda d: function(d).pop("along"), "with exactly the keys classes, specification"),
    (renamed_role, "role c0 has the name of a class"),
    (second_role, "overlap|has the box of no class"),
    (over_stages, "names no group of the plan"),
    (
        lambda d: function(d)["classes"]["r"]["ops"][0][4].update(start=[0, {"pp": 2}]),
        "starts mention mesh axes only",
    ),
    (lambda d: instance(d, 0), "layer 0 is not called by the classes of one slice"),
    (lambda d: instance(d, 5), "layer 1 is not called by the classes of one slice"),
]


@pytest.mark.parametrize(("change", "reason"), MALFORMED)
def test_malformed(change: Callable[[Any], Any], reason: str) -> None:
    document = json.loads(PLAN)
    change(document)
    with pytest.raises(FormatError, match=reason):
        loads(json.dumps(document).encode())
