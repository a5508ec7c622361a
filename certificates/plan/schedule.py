"""A schedule: in which order the ranks of a plan do what its programs say (``docs/format.md``, *Schedules*).

Shape and reference only: that a schedule is of this plan, and whether it is safe, ``tv-check`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import FormatError
from ..shapes import as_list, as_object
from .affine import Range
from .program import INPUT_NAME

End = Literal["send", "recv", "meet"]
#: Segments (spans of op numbers) by name, for each rank class.
Segments = Mapping[str, Mapping[str, tuple[Range, ...]]]


@dataclass(frozen=True, slots=True)
class Item:
    """One end of message ``seq``, or collective ``seq`` (``meet``), of one run."""

    end: End
    seq: int
    run: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A segment of one run; runs are numbered row-major over the time axes."""

    segment: str
    run: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages and collectives together on a communicator; a ``posted`` one needs a :class:`Wait`."""

    communicator: str
    items: tuple[Item, ...]
    posted: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """For the posted batch that is event number ``event`` of the lane."""

    event: int


Event = Run | Batch | Wait


@dataclass(frozen=True, slots=True)
class Slot:
    """Value ``value`` of class ``cls`` and run ``k`` is in slot ``first + k mod count`` of each rank."""

    cls: str
    value: str
    first: int
    count: int = 1


@dataclass(frozen=True)
class Lane:
    """Ranks (a box over the mesh axes) that issue the same events in one order."""

    name: str
    box: Mapping[str, Range]
    events: tuple[Event, ...]
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """Segments per class; which segments and meetings happen once for all runs; what each lane does."""

    segments: Segments
    once: Mapping[str, tuple[str | int, ...]]
    lanes: tuple[Lane, ...]


def spans(numbers: Iterable[int]) -> tuple[Range, ...]:
    """Sorted numbers of ops as spans."""
    found: list[Range] = []
    for number in numbers:
        joined = bool(found) and found[-1][1] == number
        found[-1:] = [(found[-1][0], number + 1)] if joined else [*found[-1:], (number, number + 1)]
    return tuple(found)


def _event_json(event: Event) -> list[object]:
    match event:
        case Run(segment, run):
            return ["run", segment, run]
        case Wait(number):
            return ["wait", number]
        case Batch(communicator, items, posted):
            return ["post" if posted else "now", communicator, [[i.end, i.seq, i.run] for i in items]]


def schedule_to_json(schedule: Schedule) -> dict[str, object]:
    return {
        "segments": {
            c: {s: [list(span) for span in spans] for s, spans in named.items()}
            for c, named in schedule.segments.items()
        },
        "once": {c: list(names) for c, names in schedule.once.items()},
        "lanes": [
            {
                "name": lane.name,
                "box": {a: list(side) for a, side in lane.box.items()},
                "events": [_event_json(e) for e in lane.events],
                "slots": [[s.cls, s.value, s.first, s.count] for s in lane.slots],
            }
            for lane in schedule.lanes
        ],
    }


def schedule_from_json(data: object) -> Schedule:
    """A parsed ``schedule``, or a ``FormatError``."""
    raw = as_object(data, "a schedule", ["segments", "once", "lanes"])
    segments = {
        c: {
            s: tuple(map(_span, as_list(spans, f"segment {s}")))
            for s, spans in _any(named, "segments").items()
        }
        for c, named in _any(raw["segments"], "segments").items()
    }
    once: dict[str, tuple[str | int, ...]] = {}
    for c, names in _any(raw["once"], "once").items():
        once[c] = tuple(n if isinstance(n, str) else _natural(n, "once") for n in as_list(names, "once"))
    return Schedule(segments, once, tuple(map(_lane, as_list(raw["lanes"], "lanes"))))


def check_schedule(schedule: Schedule, classes: Mapping[str, int], mesh: Mapping[str, int]) -> None:
    """Names and numbers that a schedule may use; ``classes`` have so many ops, ``mesh`` has no time axes."""
    for c, named in schedule.segments.items():
        if c not in classes:
            raise FormatError(f"schedule: segments of an unknown class {c!r:.60}")
        for name, spans in named.items():
            _named(name, "segment")
            if any(not lo < hi <= classes[c] for lo, hi in spans):
                raise FormatError(f"schedule: segment {name} of class {c} leaves its {classes[c]} ops")
    if set(schedule.once) - set(classes):
        raise FormatError("schedule: once of an unknown class")
    names = [lane.name for lane in schedule.lanes]
    if len(set(names)) != len(names) or not names:
        raise FormatError("schedule: lanes need distinct names")
    for lane in schedule.lanes:
        _named(lane.name, "lane")
        for event in lane.events:
            if isinstance(event, Batch):
                _named(event.communicator, "communicator")
        if lane.box.keys() != mesh.keys() or any(hi > mesh[a] for a, (_, hi) in lane.box.items()):
            raise FormatError(f"schedule: the box of lane {lane.name} is no box of the mesh")
        if any(s.cls not in classes or s.count < 1 for s in lane.slots):
            raise FormatError(f"schedule: a slot of lane {lane.name} has an unknown class, or no count")


def _named(name: str, what: str) -> None:
    if not INPUT_NAME.match(name) or len(name) > 200:
        raise FormatError(f"schedule: {what} {name!r:.60} is no name")


def _any(data: object, what: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise FormatError(f"{what} must be an object")
    return data


def _natural(data: object, what: str) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or data < 0:
        raise FormatError(f"{what} must hold non-negative integers")
    return data


def _span(data: object) -> Range:
    match data:
        case [int(low), int(high)] if not isinstance(low, bool) and 0 <= low < high:
            return low, high
        case _:
            raise FormatError("a span of a schedule is [low, high) with low < high")


def _lane(data: object) -> Lane:
    raw = as_object(data, "a lane", ["name", "box", "events", "slots"])
    name = raw["name"]
    if not isinstance(name, str):
        raise FormatError("name of a lane must be a string")
    slots = []
    for entry in as_list(raw["slots"], f"slots of {name}"):
        match entry:
            case [str(c), str(value), first, count]:
                slots.append(Slot(c, value, _natural(first, "slots"), _natural(count, "slots")))
            case _:
                raise FormatError(f"a slot of lane {name} is [class, value, first, count]")
    return Lane(
        name,
        {a: _span(side) for a, side in _any(raw["box"], f"box of {name}").items()},
        tuple(_event(e, name) for e in as_list(raw["events"], f"events of {name}")),
        tuple(slots),
    )


def _event(data: object, lane: str) -> Event:
    match data:
        case ["run", str(segment), run]:
            return Run(segment, _natural(run, "runs"))
        case ["wait", number]:
            return Wait(_natural(number, "waits"))
        case ["now" | "post" as kind, str(communicator), [_, *_] as items]:
            return Batch(communicator, tuple(_item(i, lane) for i in items), kind == "post")
        case _:
            raise FormatError(f"an event of lane {lane} has none of the documented shapes")


def _item(data: object, lane: str) -> Item:
    match data:
        case ["send" | "recv" | "meet" as end, seq, run]:
            return Item(end, _natural(seq, "messages"), _natural(run, "runs"))
        case _:
            raise FormatError(f"an item of lane {lane} is [send, recv or meet, number, run]")
