"""A schedule is of its plan: every op in one segment, and what happens once is the same in all runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder
from checker.language.plan import Plan
from checker.reading.plan import read_plan
from checker.reading.schedule import read_when
from checker.scheduling.parts import END, numbers, parts
from checker.scheduling.safety import safety
from tests.packed_plans import document
from tests.schedule_plans import by_torch, chain, once, torch_lanes

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, op, refuses, scheduled


def test_runs_are_numbered_row_major() -> None:
    assert numbers([(0, 1), (2,)], [2, 3]) == [2, 5]
    assert numbers([], []) == [0]


def test_the_parts_of_a_stage() -> None:
    plan = read_plan(dump(scheduled().plan))
    assert plan.schedule is not None
    found = parts(plan, plan.schedule, "c0")
    assert found.runs == (0, 1)
    assert found.once == {("run", "f"): False, ("send", 0): False}
    assert found.makes["%1"] == (("run", "f"), 1) and found.reads[("send", 0)] == {"%1": END}
    assert found.views == {"x": ["%0"], "%1": ["%2"]}, "a slice and what is sent may share memory"
    assert list(parts(plan, plan.schedule, "c1").joins) == ["%1"]


def segments(plan: dict[str, Any]) -> Any:
    return plan["schedule"]["segments"]["c0"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: segments(p).update(f=[[0, 1]]), "%1 add stands in no segment"),
        (lambda p: segments(p).update(f=[[0, 3]]), "%2 send is a part of its own, not of segment f"),
        (lambda p: segments(p).update(f=[[0, 9]]), "has ops 0 to 9, of 3"),
        (lambda p: segments(p).update(f=[[0, 1], [1, 1]]), "has ops 1 to 1, of 3"),
        (lambda p: segments(p).update(f=[[0, 1], [0, 2]]), "has ops 0 to 2, of 3"),
        (lambda p: segments(p).update(g=[[1, 2]]), "op 1 stands in the segments f and g"),
        (lambda p: p["schedule"]["segments"].update(c1={"g": [[1, 2]]}), "%1 all_gather is a part of its"),
        (lambda p: p["schedule"]["once"].update(c0=["f"]), "%0 slice happens once, and is not the same"),
        (lambda p: p["schedule"]["once"].update(c0=[0]), "%2 send happens once, and reads %1 of one run"),
        (lambda p: p["schedule"]["once"].update(c0=["g"]), "g is to happen once, and is no segment"),
        (lambda p: p["schedule"]["once"].update(c1=[1]), "1 is to happen once, and is no segment and no"),
    ],
)  # fmt: skip
def test_a_schedule_of_another_program(change: Callable[[Any], object], reason: str) -> None:
    plan = scheduled().plan
    change(plan)
    with refuses(23, reason):
        safety(read_plan(dump(plan)), None)


def test_a_call_is_one_part_of_one_run() -> None:
    """A function that joins runs is no part of one; what it hands back may be the memory of its operand."""
    bundle = scheduled()
    body = {
        "inputs": [["a", "f32[2]"]],
        "ops": [op("%0", "reshape", ["a"], "f32[2]")],
        "outputs": [["b", "%0"]],
    }
    spec = {"inputs": [["a", "f32[4]"]], "ops": [], "outputs": [["b", "a"]]}
    other = {"inputs": [["a", "f32[2]"]], "ops": [], "outputs": [["b", "a"]]}
    plan = bundle.plan
    plan["functions"] = {"f0": {"specification": spec, "classes": {"c0": body, "c1": other}}}
    plan["specification"]["ops"].append([["%1"], "call", ["%0"], "f0", 0])
    first, last = (c["program"] for c in plan["classes"])
    first["ops"].insert(2, [["%9"], "call", ["%1"], "f0", 0])
    last["ops"].insert(1, [["%9"], "call", ["%0"], "f0", 0])
    plan["schedule"]["segments"] = {"c0": {"f": [[0, 3]]}, "c1": {"g": [[1, 2]]}}
    read = read_plan(dump(plan))
    assert read.schedule is not None
    assert parts(read, read.schedule, "c0").views["%1"] == ["%9", "%2"]
    assert parts(read, read.schedule, "c1").views["%0"] == ["%9"]
    for one in (spec, body, other):
        one["outputs"].append(["c", one["outputs"][0][1]])
    for program in (plan["specification"], first, last):
        call = next(entry for entry in program["ops"] if entry[1] == "call")
        call[0].append("%10")
    plan["schedule"]["segments"] = {"c0": {"f": [[0, 4]]}, "c1": {"g": [[1, 3]]}}
    read = read_plan(dump(plan))
    assert read.schedule is not None
    views = parts(read, read.schedule, "c1").views
    assert (views["%9"], views["%10"]) == (["%10"], ["%9"]), "both results may be one memory"
    body["ops"].append(op("%1", "all_reduce", ["%0"], "f32[2]", group="runs", kind="add", seq=0))
    other["ops"].append(op("%1", "all_reduce", ["a"], "f32[2]", group="runs", kind="add", seq=0))
    read = read_plan(dump(plan))
    assert read.schedule is not None
    with refuses(23, "function f0 joins runs"):
        parts(read, read.schedule, "c0")


def test_collectives_of_a_segment_are_listed() -> None:
    plan = by_torch("1F1B")
    assert plan.schedule is not None
    b = chain(2)
    assert once(b)["c1"] == ["update", 2001, 5001]
    assert {e for lane in torch_lanes(b, "1F1B").lanes for e in lane.events}
    builder = ProgramBuilder({"dp": 2}, time={"mb": 2})
    with builder.segment("all"):
        x = builder.input("x", "f32[2]")
        builder.output("y", builder.all_reduce(x, "dp") + x)
    assert builder.build().segments == {"all": ((0, 2),)}


def packed(spans: dict[str, list[list[int]]], *events: list[Any]) -> Plan:
    """The dispatch of packed rows, on a schedule."""
    lane = {"name": "l0", "box": {"ep": [0, 2]}, "events": list(events), "slots": []}
    schedule = {"segments": {"c0": spans}, "once": {}, "lanes": [lane]}
    return read_plan(document(lambda plan: plan.update(schedule=schedule)))


def test_segments_of_packed_rows_number_the_ops_that_these_stand_for() -> None:
    plan = packed({"f": [[0, 28]]}, ["run", "f", 0])
    assert plan.schedule is not None and len(plan.program("c0").ops) == 28
    found = parts(plan, plan.schedule, "c0")
    assert found.makes["%17"] == (("run", "f"), 27)
    assert [seq for _, seq, _ in found.meets["f"]] == [0, 1, 2, 3, 4]
    plan = packed({"f": [[0, 18]]}, ["run", "f", 0])  # as many as the file has
    assert plan.schedule is not None
    with refuses(23, "stands in no segment"):
        parts(plan, plan.schedule, "c0")


def test_rows_are_not_sent_before_their_order_is_there() -> None:
    """How many rows go where is what the order says, though no plain op reads it."""
    spans = {"a": [[0, 1]], "p": [[3, 4]], "f": [[2, 3], [5, 28]]}

    def verdict(*middle: list[Any]) -> tuple[bool, str]:
        plan = packed(spans, ["run", "a", 0], ["run", "p", 0], *middle, ["run", "f", 0])
        found = safety(plan, read_when({"times": {"l0": [0, 1, 2, 3, 4]}}))
        assert found is not None
        return found.safe, found.reason

    order, rows = (["now", "ep", [["meet", seq, 0]]] for seq in (0, 1))
    assert verdict(order, rows)[0]
    safe, reason = verdict(rows, order)
    assert not safe and "it reads %1 before that is whole" in reason
