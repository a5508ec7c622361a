"""SAFE and UNSAFE: PyTorch's own schedules, and a simulator that judges what is called SAFE."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from certificates.authoring.build import ProgramBuilder, build_plan
from certificates.authoring.scheduling import ScheduleBuilder, with_schedule
from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.errors import Malformed, Rejected
from checker.reading.plan import read_plan
from checker.reading.schedule import read_when
from checker.scheduling.safety import safety
from orchestrator.scheduling import when
from tests.checker.samples import dump, refuses, staged
from tests.random_schedules import drawn
from tests.schedule_plans import TORCH, by_torch, judged
from tests.schedule_simulator import trouble


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (3, 6), (4, 8)])
def test_the_schedules_of_torch_are_safe(name: str, ranks: int, microbatches: int) -> None:
    plan = by_torch(name, ranks, microbatches)
    found = judged(plan)
    assert found is not None and found.safe, found
    assert trouble(plan, 1, interleavings=2) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(("ranks", "microbatches"), [(8, 16), (16, 64)])
def test_large_schedules_of_torch_are_safe(name: str, ranks: int, microbatches: int) -> None:
    found = judged(by_torch(name, ranks, microbatches))
    assert found is not None and found.safe, found


def test_no_schedule_is_no_claim() -> None:
    plan = read_plan(dump(staged().plan))
    assert safety(plan, None) is None
    with refuses(23, "times of a schedule, and the plan has none"):
        safety(plan, read_when({"times": {}}))


def test_a_certificate_is_needed() -> None:
    plan = read_plan(dumps(by_torch("GPipe", 2, 2)))
    with refuses(23, "the proof neither times nor a circle"):
        safety(plan, None)


def test_times_of_another_plan() -> None:
    with refuses(23, "every event has one time|meet at two times|is not after"):
        judged(by_torch("1F1B", 2, 4), when(by_torch("GPipe", 2, 4)))


def test_a_schedule_of_another_plan() -> None:
    one, other = by_torch("1F1B", 2, 4), by_torch("ZBVZeroBubble", 2, 4)
    with refuses(23, "stands in no segment|is a part of its own|has ops|is to happen once"):
        judged(replace(one, schedule=other.schedule))


def test_every_rank_is_in_one_lane() -> None:
    plan = by_torch("1F1B", 2, 4)
    assert plan.schedule is not None
    first, last = plan.schedule.lanes
    for lanes in ((first,), (first, last, replace(last, name="again")), (first, first)):
        with pytest.raises((Rejected, Malformed), match=r"not a partition of the ranks|occurs twice"):
            judged(replace(plan, schedule=replace(plan.schedule, lanes=lanes)))


def test_a_lane_has_ranks_of_the_mesh() -> None:
    """A box below 0 counts as many ranks as one that is left out: their events would be missing."""
    document = json.loads(dumps(by_itself()))
    lanes = document["schedule"]["lanes"]
    times = {n["name"]: list(range(len(n["events"]))) for n in lanes}
    found = safety(read_plan(dump(document)), read_when({"times": times}))
    assert found is not None and found.safe
    lanes[1] |= {"box": {"pp": [-1, 0]}, "events": []}
    with refuses(23, "the lanes are not a partition of the ranks"):
        safety(read_plan(dump(document)), read_when({"times": times | {lanes[1]["name"]: []}}))


def by_itself() -> Plan:
    """Two ranks that have nothing to do with each other."""
    spec, b = ProgramBuilder(), ProgramBuilder({"pp": 2}, time={"mb": 1})
    spec.output("y", spec.input("x", "f32[2]") * 2)
    with b.segment("all"):
        b.output("y", b.input("x", "f32[2]") * 2)
    programs = {"c0": b.build()}
    plan = build_plan(
        name="alone", mesh={"pp": 2}, time={"mb": 1}, specification=spec.build(),
        classes={"c0": ({}, programs["c0"])}, inputs={"x": {}}, outputs={"y": {}}, given=["x"],
    )  # fmt: skip
    s = ScheduleBuilder(programs)
    for r in range(2):
        s.lane(f"rank{r}", {"pp": (r, r + 1)}).run("all")
    return with_schedule(plan, s.build())


def agrees(seed: int) -> str:
    """SAFE, and nothing goes wrong in any interleaving; or why not."""
    plan = drawn(seed)
    found = judged(plan)
    assert found is not None
    wrong = trouble(plan, seed, interleavings=10 if found.safe else 4)
    if found.safe:
        assert wrong == "", f"seed {seed}: called SAFE, and {wrong}"
        return "safe"
    assert plan.schedule is not None
    single = all(len(getattr(e, "items", "1")) == 1 for lane in plan.schedule.lanes for e in lane.events)
    if "wait for one another" in found.reason and single:
        assert wrong != "", f"seed {seed}: a circle, and no interleaving stops"
    return "wrong" if wrong else "careful"


def test_what_is_safe_never_goes_wrong() -> None:
    seen = [agrees(seed) for seed in range(60)]
    assert seen.count("safe") > 15 and seen.count("wrong") > 15
    assert seen.count("careful") < 10, "what is UNSAFE goes wrong nearly always"


@pytest.mark.slow
def test_what_is_safe_never_goes_wrong_in_many() -> None:
    seen = [agrees(seed) for seed in range(1000, 1500)]
    assert seen.count("safe") > 150 and seen.count("wrong") > 150


def struck(value: Any, rng: random.Random) -> bool:
    """Changes one thing of a schedule or of times in place."""
    spots: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        box = stack.pop()
        keys = range(len(box)) if isinstance(box, list) else list(box)
        spots += [(box, key) for key in keys]
        stack += [box[key] for key in keys if isinstance(box[key], list | dict)]
    box, key = rng.choice(spots)
    old = box[key]
    match old:
        case int():
            box[key] = max(0, old + rng.choice((-2, -1, 1, 2)))
        case str():
            words = [b[k] for b, k in spots if isinstance(b[k], str)]
            box[key] = rng.choice(words)
        case _ if isinstance(box, list):
            other = rng.randrange(len(box))
            match rng.randrange(4):
                case 0:
                    box[key], box[other] = box[other], old
                case 1:
                    box.insert(other, copy.deepcopy(old))
                case 2:
                    box.pop(key)
                case _:
                    box.insert(other, box.pop(key))
        case _:
            del box[key]
    return box is not None and (not isinstance(box, list) or key >= len(box) or box[key] != old)


def tampered(seed: int) -> str:
    """A schedule with one change, with fresh times if there are any, else with the old ones."""
    rng = random.Random(seed)
    plan = by_torch(rng.choice(list(TORCH)), 2, 4)
    document, happens = json.loads(dumps(plan)), when(plan)
    assert happens is not None
    times: Any = happens.to_json()
    forged = rng.random() < 0.5
    struck(times if forged else document["schedule"], rng)
    try:
        data = dump(document)
        if not forged:
            try:
                changed = loads(data)
            except FormatError:
                changed = None
            again = when(changed) if changed else None
            times = again.to_json() if again else times
        found = safety(read_plan(data), read_when(times))
    except Malformed:
        return "malformed"
    except Rejected as error:
        assert error.number == 23
        return "rejected"
    assert found is not None
    if found.safe:
        wrong = trouble(changed, seed, 4) if not forged and changed else ""
        assert wrong == "", f"seed {seed}: {wrong}"
        return "safe"
    return "unsafe"


def test_tampered_schedules() -> None:
    """What is still SAFE after a change is so: the simulator finds nothing."""
    seen = [tampered(seed) for seed in range(60)]
    assert {"malformed", "rejected", "unsafe"} <= set(seen)


@pytest.mark.slow
def test_many_tampered_schedules() -> None:
    seen = [tampered(seed) for seed in range(500, 900)]
    assert len(seen) - seen.count("safe") > 260
