"""Schedules with one change each: every operator is refused, or UNSAFE, for a reason that fits it.

What an operator changes is a schedule that is SAFE, of the sample or of PyTorch; its times stay as they were,
so that a forger would have to find new ones: `test_safety.py` does that, with a simulator as the judge.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import pytest

from certificates.plan.writing import dumps
from checker.errors import Malformed, Rejected
from checker.reading.plan import read_plan
from checker.reading.schedule import read_when
from checker.scheduling.safety import safety
from orchestrator.scheduling import when
from tests.checker.samples import Bundle, dump, scheduled
from tests.checker.test_tampering import BAD, Change, at, change, pick, shifted, swap
from tests.schedule_plans import by_torch

SAFE, UNSAFE = "SAFE", "UNSAFE"


@cache
def of_torch(name: str) -> str:
    plan = by_torch(name, 2, 4)
    happens = when(plan)
    assert happens is not None
    return json.dumps([json.loads(dumps(plan)), {"when": happens.to_json()}])


def fresh(name: str) -> Bundle:
    if name == "sample":
        return scheduled()
    plan, proof = json.loads(of_torch(name))
    return Bundle(plan, proof, {}, [])


BASES: dict[str, Callable[[], Bundle]] = {
    name: partial(fresh, name) for name in ("sample", "1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
}

SCHEDULE = ("schedule",)
LANE = (*SCHEDULE, "lanes", "*")
EVENTS = (*LANE, "events", "*")


def kind(*kinds: str) -> Callable[[Any], bool]:
    return lambda event: isinstance(event, list) and event[:1] in [[k] for k in kinds]


def where(*kinds: str, to: Callable[[list[Any], Random], Any]) -> Change:
    """Changes an event of one of these kinds."""
    return change(at("plan", *EVENTS), lambda e, r, b: to(json.loads(json.dumps(e)), r), kind(*kinds))


def put(event: list[Any], i: int, value: Any) -> list[Any]:
    return [*event[:i], value, *event[i + 1 :]]


def ended(event: list[Any], rng: Random) -> list[Any]:
    """Another end of the first item."""
    ends = [e for e in ("send", "recv", "meet") if e != event[2][0][0]]
    event[2][0][0] = rng.choice(ends)
    return event


def late(event: list[Any], rng: Random) -> list[Any]:
    event[2][0][2] += rng.choice((-1, 1, 2)) if event[2][0][2] else 1
    return event


def numbered(event: list[Any], rng: Random) -> list[Any]:
    event[2][0][1] += rng.choice((1, 2, 50))
    return event


def another(event: list[Any], rng: Random) -> list[Any]:
    return put(event, 1, max(0, event[1] + rng.choice((-1, 1))))


def squeezed(slots: list[Any], i: int, rng: Random) -> None:
    """All in the slots of one."""
    slots[:] = [[*s[:2], slots[i][2], 1] for s in slots]


def equal(line: list[Any], i: int, rng: Random) -> None:
    """All at one time."""
    line[:] = [line[i]] * len(line)


#: Per operator the change, and what may come of it.
OPERATORS: dict[str, tuple[Change, set[str | int]]] = {
    "event dropped": (pick(at("plan", *LANE, "events"), lambda s, i, r: s.pop(i)), {UNSAFE, 23}),
    "event twice": (pick(at("plan", *LANE, "events"), lambda s, i, r: s.insert(i, s[i])), {UNSAFE, 23}),
    "events exchanged": (pick(at("plan", *LANE, "events"), swap, 2), {UNSAFE, 23, SAFE}),
    "event of another lane": (
        change(at("plan", *LANE), lambda n, r, b: {**n, "events": b.plan["schedule"]["lanes"][0]["events"]}),
        {UNSAFE, 23},
    ),
    "run of a segment": (where("run", to=lambda e, r: put(e, 2, e[2] + 1)), {UNSAFE, 23}),
    "name of a segment": (where("run", to=lambda e, r: put(e, 1, "other")), {23}),
    "run of an item": (where("now", "post", to=late), {UNSAFE, 23}),
    "number of an item": (where("now", "post", to=numbered), {UNSAFE, 23}),
    "end of an item": (where("now", "post", to=ended), {UNSAFE, 23}),
    "item twice": (where("now", "post", to=lambda e, r: put(e, 2, e[2] * 2)), {UNSAFE}),
    "communicator": (where("now", "post", to=lambda e, r: put(e, 1, "other")), {UNSAFE, SAFE}),
    "posted and never waited for": (where("now", to=lambda e, r: put(e, 0, "post")), {UNSAFE}),
    "waited for twice": (where("post", to=lambda e, r: put(e, 0, "now")), {23}),
    "waits for another": (where("wait", to=another), {UNSAFE, 23}),
    "span": (change(at("plan", *SCHEDULE, "segments", "*", "*", "*", "1"), shifted), {BAD, 23}),
    "segments exchanged": (
        change(at("plan", *SCHEDULE, "segments", "*", "*"), lambda v, r, b: [[0, 1]]),
        {23},
    ),
    "span dropped": (pick(at("plan", *SCHEDULE, "segments", "*", "*"), lambda s, i, r: s.pop(i)), {23}),
    "not once": (pick(at("plan", *SCHEDULE, "once", "*"), lambda s, i, r: s.pop(i)), {UNSAFE, 23}),
    "once": (
        change(at("plan", *SCHEDULE, "once", "*"), lambda v, r, b: [*v, "w1"] if "w1" not in v else None),
        {23},
    ),
    "box of a lane": (change(at("plan", *LANE, "box", "pp", "*"), shifted), {BAD, 23}),
    "lane dropped": (pick(at("plan", *SCHEDULE, "lanes"), lambda s, i, r: s.pop(i)), {23}),
    "lane twice": (pick(at("plan", *SCHEDULE, "lanes"), lambda s, i, r: s.append(s[i])), {BAD}),
    "slot dropped": (pick(at("plan", *LANE, "slots"), lambda s, i, r: s.pop(i)), {23}),
    "slots shared": (pick(at("plan", *LANE, "slots"), squeezed, 2), {UNSAFE, SAFE}),
    "slot of another class": (
        change(at("plan", *LANE, "slots", "*", "0"), lambda v, r, b: "c1" if v == "c0" else "c0"),
        {23},
    ),
    "slot of another value": (change(at("plan", *LANE, "slots", "*", "1"), lambda v, r, b: "%777"), {23}),
    "times dropped": (pick(at("proof", "when", "times", "*"), lambda s, i, r: s.pop(i)), {23}),
    "all at one time": (pick(at("proof", "when", "times", "*"), equal, 2), {23}),
    "times exchanged": (pick(at("proof", "when", "times", "*"), swap, 2), {23}),
    "times of no lane": (
        change(at("proof", "when", "times"), lambda v, r, b: dict(list(v.items())[1:])),
        {23},
    ),
    "no certificate": (change(at("proof", "when"), lambda v, r, b: {"circle": []}), {23}),
    "circle of nothing": (change(at("proof", "when"), lambda v, r, b: {"circle": [["rank0", 0]]}), {23}),
    "both": (change(at("proof", "when"), lambda v, r, b: {**v, "circle": []}), {BAD}),
}  # fmt: skip
#: What may stay SAFE, with the reason.
HARMLESS = {
    "events exchanged": "neither of the two waits for the other, and times grow in both orders",
    "communicator": "of a collective: all its lanes must say so, and here one lane has all its ranks",
    "slots shared": "accumulators and messages that are never alive together",
}


def outcome(bundle: Bundle) -> tuple[str | int, str]:
    try:
        plan = read_plan(dump(bundle.plan))
        found = safety(plan, read_when(bundle.proof["when"]) if "when" in bundle.proof else None)
    except Malformed as error:
        return BAD, str(error)
    except Rejected as error:
        return error.number, str(error)
    assert found is not None
    return SAFE if found.safe else UNSAFE, found.reason


def strikes(seeds: range, counts: Counter[str]) -> list[str]:
    wrong = []
    for base, make in BASES.items():
        for operator, (strike, expected) in OPERATORS.items():
            for seed in seeds:
                bundle = make()
                if strike(bundle, Random(f"{operator} {seed}")) is None:
                    continue
                found, message = outcome(bundle)
                counts[operator] += 1
                if found not in expected or (found == SAFE and operator not in HARMLESS):
                    wrong.append(f"{base} {operator} {seed}: {found} {message[:200]}")
    return wrong


def test_they_are_safe_before() -> None:
    for name, make in BASES.items():
        assert outcome(make())[0] == SAFE, name


def test_a_few_of_each_operator() -> None:
    counts: Counter[str] = Counter()
    assert strikes(range(2), counts) == []
    assert set(counts) == set(OPERATORS)


@pytest.mark.slow
def test_many_of_each_operator() -> None:
    counts: Counter[str] = Counter()
    assert strikes(range(16), counts) == []
    assert sum(counts.values()) >= 1000
