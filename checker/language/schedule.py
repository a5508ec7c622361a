"""A schedule as data: in which order the ranks of a plan do what its programs say (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Key = tuple[str, str | int]
"""What is ordered in a class: `run` and a segment, or `send`, `recv`, `meet` (a collective) and a number."""
Box = tuple[tuple[int, int], ...]


class Item(NamedTuple):
    """A segment, one end of a message, or a collective, of one run (the row-major number of a time)."""

    key: Key
    run: int


class Event(NamedTuple):
    """`run`: a segment. `now` and `post`: a batch on a communicator `on`, which the rank waits for at once or
    at the event `wait`, whose `run` is the number of the posted event."""

    kind: str
    on: str
    run: int
    items: tuple[Item, ...]


class Slot(NamedTuple):
    """A value of a class and run is in the slot `first + run mod turns` of its rank."""

    cls: str
    value: str
    first: int
    turns: int


class Lane(NamedTuple):
    """Ranks (a box over the mesh without time) that issue the same events."""

    name: str
    box: Box
    events: tuple[Event, ...]
    slots: tuple[Slot, ...]


class Schedule(NamedTuple):
    """Per class its segments (spans of op numbers), and which segments and meetings happen once only."""

    segments: Mapping[str, Mapping[str, tuple[tuple[int, int], ...]]]
    once: Mapping[str, tuple[str | int, ...]]
    lanes: tuple[Lane, ...]


class When(NamedTuple):
    """The certificate of a schedule: a time for every event of every lane, or a circle of events that wait
    for one another."""

    times: Mapping[str, tuple[int, ...]]
    circle: tuple[tuple[str, int], ...]
