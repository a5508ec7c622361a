"""Schedules and times as JSON: whatever has not the documented shape is malformed, and says where."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.language.schedule import Event, Item, Slot, When
from checker.reading.plan import read_plan
from checker.reading.schedule import MAX_LANES, read_when

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import dump, row_parallel, scheduled


def test_a_schedule_is_read() -> None:
    found = read_plan(dump(scheduled().plan)).schedule
    assert found is not None
    first, last = found.lanes
    assert (first.name, first.box) == ("first", ((0, 1),)) and found.segments == {"c0": {"f": ((0, 2),)}}
    assert first.events[2] == Event("run", "", 1, (Item(("run", "f"), 1),))
    assert last.events[1] == Event("now", "pp", 0, (Item(("recv", 0), 1),))
    assert last.slots == (Slot("c1", "%0", 0, 2), Slot("c1", "%1", 2, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(more=1), "unknown member 'more'"),
        (lambda s: s.pop("once"), "member once is missing"),
        (lambda s: s["segments"].update(c7={}), "unknown member 'c7'"),
        (lambda s: s["segments"]["c0"].update(f=[[0]]), "a list of 2 is expected"),
        (lambda s: s["segments"]["c0"].update(f=[[-1, 2]]), "no integer in"),
        (lambda s: s["once"].update(c0=[-1]), "no integer in"),
        (lambda s: s["lanes"][1].update(name="first"), "a lane occurs twice"),
        (lambda s: s["lanes"][0].update(name="a b"), "no valid text"),
        (lambda s: s["lanes"][0]["box"].update(mb=[0, 2]), "unknown member 'mb'"),
        (lambda s: s["lanes"][0]["events"].append([]), "event 4: a list of 3"),
        (lambda s: s["lanes"][0]["events"].append(["skip", 0]), "a list of 3"),
        (lambda s: s["lanes"][0]["events"].append(["now", "pp", []]), "an empty batch"),
        (lambda s: s["lanes"][0]["events"].append(["now", "", [["send", 0, 0]]]), "no valid text"),
        (lambda s: s["lanes"][0]["events"].append(["now", "pp", [["run", 0, 0]]]), "no end of a message"),
        (lambda s: s["lanes"][0]["events"].append(["run", "f", True]), "no integer"),
        (lambda s: s["lanes"][0]["events"].append(["wait", "f"]), "no integer"),
        (lambda s: s["lanes"][1]["slots"].append(["c1", "%0", 0, 0]), "no slots for a value"),
        (lambda s: s["lanes"][1]["slots"].append(["c7", "%0", 0, 1]), "unknown class"),
        (lambda s: s.update(lanes=[{**s["lanes"][0], "name": f"l{i}"} for i in range(MAX_LANES + 1)]),
         "more than 1024 lanes"),
    ],
)  # fmt: skip
def test_what_is_no_schedule(change: Callable[[Any], object], words: str) -> None:
    plan = copy.deepcopy(scheduled().plan)
    change(plan["schedule"])
    with pytest.raises(Malformed, match=words):
        read_plan(dump(plan))


def test_a_plan_of_version_1_has_none() -> None:
    plan = row_parallel().plan | {"schedule": {"segments": {}, "once": {}, "lanes": []}}
    with pytest.raises(Malformed, match="version 1 has no time axes or schedule"):
        read_plan(dump(plan))


def test_times_or_a_circle() -> None:
    assert read_when({"times": {"a": [0, 2]}}) == When({"a": (0, 2)}, ())
    assert read_when({"circle": [["a", 1]]}) == When({}, (("a", 1),))
    for wrong in ({}, {"times": {}, "circle": []}, {"times": {"a": [-1]}}, {"circle": [["a"]]}, []):
        with pytest.raises(Malformed):
            read_when(wrong)
