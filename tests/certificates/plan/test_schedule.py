"""Schedules in plan files: read as they were written, refused where they name what is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from certificates.errors import FormatError
from certificates.plan.functions import inline
from certificates.plan.reading import loads
from certificates.plan.schedule import Batch, Item, Run, Wait, schedule_from_json, schedule_to_json
from certificates.plan.writing import dumps
from tests.schedule_plans import by_torch


def document() -> Any:
    return json.loads(dumps(by_torch("1F1B", 2, 2)))


def test_a_schedule_is_read_as_it_was_written() -> None:
    plan = by_torch("ZBVZeroBubble", 2, 4)
    assert plan.schedule is not None and plan.version == 2
    assert schedule_from_json(schedule_to_json(plan.schedule)) == plan.schedule
    assert loads(dumps(plan)) == plan
    kinds = {type(e) for lane in plan.schedule.lanes for e in lane.events}
    assert kinds == {Run, Batch, Wait}
    assert Batch("pair_0_1", (Item("send", 1, 0),), True) in plan.schedule.lanes[0].events


def test_calls_written_out_leave_no_schedule() -> None:
    """Its segments number the ops of programs that call."""
    assert inline(by_torch("1F1B", 2, 2)).schedule is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("lanes"), "exactly the keys lanes, once, segments"),
        (lambda s: s["segments"].update(c9={}), "segments of an unknown class 'c9'"),
        (lambda s: s["segments"]["c0"].update(f0=[[0, 999]]), "segment f0 of class c0 leaves its"),
        (lambda s: s["segments"]["c0"].update({"a b": []}), "segment 'a b' is no name"),
        (lambda s: s["segments"]["c0"].update(f0=[[2, 2]]), "low < high"),
        (lambda s: s["once"].update(c9=[]), "once of an unknown class"),
        (lambda s: s["once"].update(c0=[True]), "non-negative integers"),
        (lambda s: s.update(lanes=[]), "lanes need distinct names"),
        (lambda s: s["lanes"][1].update(name="rank0"), "lanes need distinct names"),
        (lambda s: s["lanes"][0].update(name=""), "lane '' is no name"),
        (lambda s: s["lanes"][0]["box"].pop("dp"), "is no box of the mesh"),
        (lambda s: s["lanes"][0]["box"].update(dp=[0, 3]), "is no box of the mesh"),
        (lambda s: s["lanes"][0]["slots"].append(["c9", "%0", 0, 1]), "an unknown class, or no count"),
        (lambda s: s["lanes"][0]["slots"].append(["c0", "%0", 0, 0]), "an unknown class, or no count"),
        (lambda s: s["lanes"][0]["slots"].append(["c0"]), "is [class, value, first, count]"),
        (lambda s: s["lanes"][0]["events"].append(["now", "pp", []]), "none of the documented shapes"),
        (lambda s: s["lanes"][0]["events"].append(["now", "", [["send", 0, 0]]]), "communicator '' is"),
        (lambda s: s["lanes"][0]["events"].append(["now", "pp", [["sent", 0, 0]]]), "is [send, recv or meet"),
        (lambda s: s["lanes"][0]["events"].append(["wait", -1]), "non-negative integers"),
    ],
)  # fmt: skip
def test_what_is_no_schedule(change: Callable[[Any], object], words: str) -> None:
    plan = document()
    change(plan["schedule"])
    with pytest.raises(FormatError) as error:
        loads(json.dumps(plan).encode())
    assert words in str(error.value)


def test_version_1_has_no_schedule() -> None:
    plan = document() | {"version": 1}
    with pytest.raises(FormatError, match="schedules need version 2"):
        loads(json.dumps(plan).encode())
