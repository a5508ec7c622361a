"""When the events of a schedule happen: the member ``when`` of ``proof.json`` (``docs/certificate.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..canonical import canonical_text
from ..errors import FormatError

Spot = tuple[str, int]


@dataclass(frozen=True)
class When:
    """A time for every event of every lane; or a circle of events, each before the next or meeting it."""

    times: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    circle: tuple[Spot, ...] = ()

    def to_json(self) -> dict[str, object]:
        if self.circle:
            return {"circle": [list(spot) for spot in self.circle]}
        return {"times": {lane: list(line) for lane, line in self.times.items()}}


def with_when(document: bytes, when: When) -> bytes:
    """A ``proof.json`` with this member: of all members it is the last."""
    return (
        document.removesuffix(b"}\n") + b',"when":' + canonical_text(when.to_json()).encode("ascii") + b"}\n"
    )


def when_from_json(data: object) -> When:
    match data:
        case {"times": dict(times), **rest} if not rest:
            if all(isinstance(line, list) and all(map(_natural, line)) for line in times.values()):
                return When({str(lane): tuple(line) for lane, line in times.items()})
        case {"circle": [*spots], **rest} if not rest:
            found = [(s[0], s[1]) for s in spots if isinstance(s, list) and len(s) == 2]
            if len(found) == len(spots) > 0 and all(isinstance(n, str) and _natural(i) for n, i in found):
                return When({}, tuple(found))
        case _:
            pass
    raise FormatError("when must have times, a list of them per lane, or a circle of [lane, event]")


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
