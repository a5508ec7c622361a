"""Bundles of pipelines, slices, packed rows and schedules with one random change, and what the checker says.

A change strikes one thing of the kind: of an op, relation, fact or stage that speaks of messages. Nothing
says in advance what must refuse it. What is accepted all the same is compared with the bundle before: its
plan is the same but for names of rendezvous and what decides nothing, or it is another plan, whose claim is
then evaluated (or whose schedule is simulated) as the checker never does.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from certificates.errors import FormatError
from certificates.plan.plan import Plan
from certificates.plan.reading import loads
from certificates.plan.writing import dumps
from checker.errors import Malformed, Rejected
from checker.reading.plan import read_plan
from checker.reading.schedule import read_when
from checker.scheduling.safety import safety
from orchestrator.errors import EvaluationError
from orchestrator.scheduling import when
from tests.checker.samples import Bundle, dump, forged
from tests.checker.test_tampering import ACCEPTED, BAD, outcome, proved
from tests.corpus.run import oracle_equal
from tests.packed_plans import dispatch
from tests.pipeline_plans import pipeline
from tests.schedule_plans import TORCH, by_torch
from tests.schedule_simulator import trouble
from tests.sliced_plans import dense

Spot = tuple[Any, Any]
#: An accepted bundle: its plan is the one before; another, which is right as well; another, which is wrong.
SAME, RIGHT, FALSE = "accepted, same plan", "accepted, another right plan", "ACCEPTED AND WRONG"
#: Of a schedule: the checker calls it UNSAFE.
UNSAFE = "unsafe"
MESSAGES = ("send", "recv")
ROWS = (
    *("sort_rows", "ship_rows", "regroup_rows", "pack", "ship", "regroup", "ungroup", "ship_back", "unpack"),
    *("ragged_dot", "ragged_outer"),
)


@cache
def _base(name: str) -> str:
    plans: dict[str, Callable[[], Plan]] = {
        "pipeline": lambda: pipeline(2, 2, 2),
        "three stages": lambda: pipeline(3, 1, 3),
        "slices": dense,
        "three slices": lambda: dense(3),
        "rows": dispatch,
        "rows of three ranks": lambda: dispatch(3, 2, 1),
    }
    found = proved(plans[name]())
    return json.dumps([found.plan, found.proof, found.files, found.verdicts, found.status])


def base(name: str) -> Bundle:
    """A fresh copy of a valid bundle."""
    return Bundle(*json.loads(_base(name)))


# What a change may strike -----------------------------------------------------------------------------------


def _programs(plan: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "s", plan["specification"]
    for one in plan["classes"]:
        yield one["name"], one["program"]
    for function in plan.get("functions", {}).values():
        yield from function["classes"].items()


def _made_by(bundle: Bundle, names: tuple[str, ...]) -> list[Any]:
    """Ops of these names; relations, facts and stages that name a result of theirs."""
    ops = [(space, op) for space, body in _programs(bundle.plan) for op in body["ops"] if op[1] in names]
    results = re.compile("|".join(rf'"{re.escape(f"{space}:{op[0]}")}"' for space, op in ops))
    records = [*bundle.proof["facts"], *bundle.proof["stages"]]
    return [*(op for _, op in ops), *(r for r in records if results.search(json.dumps(r)))]


def _messages(bundle: Bundle) -> list[Any]:
    return _made_by(bundle, MESSAGES)


def _rows(bundle: Bundle) -> list[Any]:
    return [*_made_by(bundle, ROWS), bundle.plan["ranges"]]


def _time(bundle: Bundle) -> list[Any]:
    """Whatever names the axis of the runs."""
    plan, proof = bundle.plan, bundle.proof
    parts = [op for _, body in _programs(plan) for op in body["ops"]]
    parts += [*plan["inputs"], *plan["outputs"], *plan["classes"], *proof["facts"], *proof["stages"]]
    return [plan["time"], plan["groups"], *(p for p in parts if '"mb"' in json.dumps(p))]


def _slices(bundle: Bundle) -> list[Any]:
    """Functions, lemmas, and the calls of both."""
    calls = [op for _, body in _programs(bundle.plan) for op in body["ops"] if op[1] in ("call", "layer")]
    stages = [s for s in bundle.proof["stages"] if "lemma" in s]
    return [bundle.plan["functions"], *calls, *bundle.proof["lemmas"], *stages, bundle.plan["classes"]]


#: Kind: the valid bundles, and the parts of one that a change may strike.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Bundle], list[Any]]]] = {
    "messages": (("pipeline", "three stages"), _messages),
    "time axes": (("pipeline", "three stages"), _time),
    "slices of the mesh": (("slices", "three slices"), _slices),
    "packed rows": (("rows", "rows of three ranks"), _rows),
}
SCHEDULES = "schedules"


def _spots(value: Any) -> Iterator[Spot]:
    stack = [value]
    while stack:
        box = stack.pop()
        for key in range(len(box)) if isinstance(box, list) else list(box):
            yield box, key
            if isinstance(box[key], list | dict):
                stack.append(box[key])


def struck(parts: list[Any], words: list[str], rng: Random) -> bool:
    """Changes one thing of one of the parts in place; whether anything is other than before."""
    spots = list(_spots(rng.choice(parts)))
    if not spots:
        return False
    box, key = rng.choice(spots)
    before = copy.deepcopy(box)
    old, change = box[key], rng.randrange(6)
    if change == 0 and isinstance(box, list):
        other = rng.randrange(len(box))
        box[key], box[other] = box[other], old
    elif change == 1 and isinstance(box, list):
        box.insert(key, copy.deepcopy(old))
    elif change == 2 and isinstance(box, dict) and len(box) > 1:
        other_key = rng.choice(sorted(box))
        box[key], box[other_key] = box[other_key], old
    elif change == 3 and isinstance(box, dict):
        box[rng.choice(words)] = box.pop(key)
    elif isinstance(old, int):
        box[key] = old + rng.choice((-2, -1, 1, 2))
    elif isinstance(old, str):
        box[key] = rng.choice(words)
    else:
        del box[key]
    return bool(box != before)


def _words(document: Any) -> list[str]:
    """Names and values that occur, so that a change is often well-formed."""
    return sorted({str(box[key]) for box, key in _spots(document) if isinstance(box[key], str)}) + [
        key for key in sorted({str(key) for _, key in _spots(document)}) if not key.isdigit()
    ]


# What the checker says of it --------------------------------------------------------------------------------


def meaning(plan: dict[str, Any]) -> Any:
    """What of a plan file the claim is about: no provenance, rendezvous by order of first occurrence, and of
    functions no names of results, which calls take by position."""
    found = {k: v for k, v in plan.items() if k not in ("name", "provenance", "sources")}
    found = copy.deepcopy(found)
    for function in found.get("functions", {}).values():
        for body in (function["specification"], *function["classes"].values()):
            body["outputs"] = [value for _, value in body["outputs"]]
    numbers: dict[tuple[bool, int], int] = {}
    for _, body in _programs(found):
        for op in body["ops"]:
            del op[5:]
            if isinstance(op[4], dict) and "seq" in op[4]:
                key = (op[1] in MESSAGES, op[4]["seq"])
                op[4]["seq"] = numbers.setdefault(key, len(numbers))
    return found


def accepted(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What an accepted bundle is worth: a plan's document before and after the change."""
    if meaning(before) == meaning(after):
        return SAME
    try:
        return RIGHT if oracle_equal(loads(dump(after)), range(3)) else FALSE
    except (FormatError, EvaluationError) as error:
        return f"{FALSE}: {error}"


@dataclass
class Tally:
    """Bundles of each kind, by what became of them; ``false``: those accepted with a false claim."""

    found: dict[str, Counter[str]] = field(default_factory=dict)
    false: list[str] = field(default_factory=list)

    def add(self, kind: str, seed: int, result: str) -> None:
        self.found.setdefault(kind, Counter())[result] += 1
        if result.startswith(FALSE):
            self.false.append(f"{kind}, seed {seed}: {result}")

    def rows(self) -> Iterator[str]:
        """The table of docs/fuzz.md: what refused how many."""
        yield "| kind | bundles | refused | refused by | same plan | another, right | wrong |"
        yield "| --- | ---: | ---: | --- | ---: | ---: | ---: |"
        for kind, results in self.found.items():
            taken = [results[SAME], results[RIGHT], sum(n for r, n in results.items() if r.startswith(FALSE))]
            by = [f"{r} {n}" for r, n in results.most_common() if not r.lower().startswith("accepted")]
            total = results.total()
            yield (
                f"| {kind} | {total} | {total - sum(taken)} | {', '.join(by)} | "
                f"{' | '.join(str(n) for n in taken)} |"
            )


def bundle(kind: str, seed: int) -> str:
    """What becomes of one changed bundle of the kind; nothing if the change left it as it was."""
    rng = Random(f"{kind} {seed}")
    names, parts = KINDS[kind]
    changed = base(rng.choice(names))
    before = copy.deepcopy(changed.plan)
    if not struck(parts(changed), _words([changed.plan, changed.proof]), rng):
        return ""
    try:
        changed = forged(changed) if rng.random() < 0.5 else changed
        found, _ = outcome(changed.members())
    except (KeyError, TypeError, IndexError):  # the sample writer, not the checker, needs what is gone
        return BAD
    if found == ACCEPTED:
        return accepted(before, changed.plan)
    return f"obligation {found}" if isinstance(found, int) else str(found)


def schedule(seed: int) -> str:
    """A schedule of PyTorch or its times, changed, then with fresh times where there are any."""
    rng = Random(f"{SCHEDULES} {seed}")
    document, times = json.loads(_scheduled(rng.choice(list(TORCH))))
    before = copy.deepcopy(document)
    of_times = rng.random() < 0.3
    if not struck([times if of_times else document["schedule"]], _words(document["schedule"]), rng):
        return ""
    try:
        data = dump(document)
        if not of_times and rng.random() < 0.7:
            times = _times(data) or times
        found = safety(read_plan(data), read_when(times))
    except Malformed:
        return BAD
    except Rejected as error:
        return f"obligation {error.number}"
    if found is None or not found.safe:
        return UNSAFE
    if meaning(before) == meaning(document):
        return SAME
    wrong = trouble(loads(data), seed, 4)
    return f"{FALSE}: {wrong}" if wrong else RIGHT


@cache
def _scheduled(name: str) -> str:
    plan = by_torch(name, 2, 4)
    happens = when(plan)
    assert happens is not None
    return json.dumps([json.loads(dumps(plan)), happens.to_json()])


def _times(data: bytes) -> Any:
    """Times that the orchestrator finds for a changed schedule; None if it finds none."""
    try:
        happens = when(loads(data))
    except FormatError:
        return None
    return happens.to_json() if happens else None


def run(count: int, seed: int) -> Tally:
    """So many changed bundles of each kind, with seeds from this one on."""
    tally = Tally()
    for kind in (*KINDS, SCHEDULES):
        made, number = 0, seed
        while made < count:
            result = schedule(number) if kind == SCHEDULES else bundle(kind, number)
            if result:
                tally.add(kind, number, result)
            made, number = made + bool(result), number + 1
    return tally
