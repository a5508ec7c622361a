"""The schedule of a plan, and the times of a proof, as records: shape only; `scheduling/` says the rest."""

from __future__ import annotations

from typing import Any

from ..errors import need
from ..language.plan import Plan
from ..language.schedule import Event, Item, Lane, Schedule, Slot, When
from .strict import (
    anything,
    array,
    integers,
    interval,
    many,
    members,
    name,
    natural,
    one_of,
    record,
    row,
    text,
)

MAX_LANES = 1024
span = row(natural, natural)


def read_schedule(value: Any, plan: Plan) -> Schedule:
    top = record(value, "schedule", segments=anything, once=anything, lanes=array)
    classes = " ".join(plan.classes)
    segments = {}
    for c, entry in members(top["segments"], "schedule: segments", "", classes).items():
        found = members(entry, f"segments of {c}", "", " ".join(entry) if isinstance(entry, dict) else "")
        segments[c] = {name(s, "a segment"): many(span)(v, f"segment {s}") for s, v in found.items()}
    once = {
        c: many(lambda v, w: v if isinstance(v, str) else natural(v, w))(entry, f"once of {c}")
        for c, entry in members(top["once"], "schedule: once", "", classes).items()
    }
    space = [a for a, _ in plan.mesh if a not in plan.time]
    lanes = []
    for entry in top["lanes"]:
        lane = record(entry, "a lane", name=name, box=anything, events=array, slots=array)
        what = f"lane {lane['name']}"
        box = record(lane["box"], f"{what}: box", **dict.fromkeys(space, interval))
        events = tuple(_event(e, f"{what}: event {i}") for i, e in enumerate(lane["events"]))
        slot = row(one_of(plan.classes, "unknown class"), text, natural, natural)
        slots = tuple(Slot(*slot(s, f"{what}: slots")) for s in lane["slots"])
        need(all(s.turns for s in slots), f"{what}: no slots for a value")
        lanes.append(Lane(lane["name"], tuple(box[a] for a in space), events, slots))
    need(len(lanes) <= MAX_LANES, f"schedule: more than {MAX_LANES} lanes")
    need(len({lane.name for lane in lanes}) == len(lanes), "schedule: a lane occurs twice")
    return Schedule(segments, once, tuple(lanes))


def _event(value: Any, what: str) -> Event:
    kind = array(value, what)[0] if value else None
    if kind == "run":
        _, segment, run = row(text, name, natural)(value, what)
        return Event("run", "", run, (Item(("run", segment), run),))
    if kind == "wait":
        return Event("wait", "", row(text, natural)(value, what)[1], ())
    entry = row(one_of(("now", "post"), "unknown event"), name, array)(value, what)
    ends = one_of(("send", "recv", "meet"), "no end of a message, and no collective:")
    items = [row(ends, natural, natural)(item, what) for item in entry[2]]
    need(bool(items), f"{what}: an empty batch")
    return Event(entry[0], entry[1], 0, tuple(Item((end, seq), run) for end, seq, run in items))


def read_when(value: Any) -> When:
    """Exactly one of both."""
    found = members(value, "when", "", "times circle")
    need(len(found) == 1, "when: either times or a circle")
    times = found.get("times", {})
    lanes = members(times, "times", "", " ".join(times) if isinstance(times, dict) else "")
    return When(
        {lane: integers(line, f"times of {lane}") for lane, line in lanes.items()},
        many(row(name, natural))(found.get("circle", []), "circle"),
    )
