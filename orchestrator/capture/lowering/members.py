"""Collectives of ranks that are no fibre of the mesh, such as both ends of a pipeline, as messages.

A plan's groups are fibres of its axes. A reduction, a broadcast or a gather over other ranks is said by
messages of each member to all others on their communicator, in one batch. Their tag says which collective it
is: members which call different ones, or none, are refused as messages without the right other end are
(ADR 0189).
"""

from __future__ import annotations

from ..builder import CALLS, Value
from ..recorder import GroupRef
from .table import Context

#: Members up to which messages are written: their number grows with its square.
MOST = 8
_TAGS = {call: tag for tag, call in CALLS.items()}
_COMBINED = {"add": "add", "max": "maximum", "min": "minimum"}


def apart(c: Context, group: GroupRef) -> bool:
    """Is it a group that a plan has no name for, and that is small enough for messages?"""
    small = 1 < len(group.ranks) <= MOST and c.root is None
    return small and c.rank in group.ranks and not c.group_axes(group)


def reduced(c: Context, x: Value, kind: str, group: GroupRef) -> Value:
    """The sum, maximum or minimum over the members; ``x`` itself stands first, as on all of them."""
    c.carries("all_reduce", x, kind)
    total = x
    for other in _swapped(c, x, f"all_reduce by {kind}", group):
        total = c.b.binary(_COMBINED[kind], total, other)
    return total


def gathered(c: Context, x: Value, group: GroupRef) -> Value:
    """The members' tensors along the first dimension, in their order."""
    c.carries("all_gather", x)
    size, place = len(group.ranks), _place(c, group)
    others = _swapped(c, x, "all_gather", group)
    return c.b.concatenate([([x, *others])[(i - place) % size] for i in range(size)], 0)


def handed_on(c: Context, x: Value, root: int, group: GroupRef) -> Value:
    """The tensor of the member at ``root``."""
    c.carries("broadcast", x)
    batch, tag = _batch(c), _TAGS["broadcast"]
    if not c.is_member(group, root):
        return c.message("recv", (), x.type, group, group.ranks[root], tag, batch)
    for peer in group.ranks:
        if peer != c.rank:
            c.message("send", (x,), x.type, group, peer, tag, batch)
    return x


def _swapped(c: Context, x: Value, call: str, group: GroupRef) -> list[Value]:
    """What the other members have, from the next one on."""
    place, size, batch = _place(c, group), len(group.ranks), _batch(c)
    peers = [group.ranks[(place + i) % size] for i in range(1, size)]
    for peer in peers:
        c.message("send", (x,), x.type, group, peer, _TAGS[call], batch)
    return [c.message("recv", (), x.type, group, peer, _TAGS[call], batch) for peer in peers]


def _place(c: Context, group: GroupRef) -> int:
    return group.ranks.index(c.rank if c.rank is not None else -1)


def _batch(c: Context) -> int:
    """Of no batch of a user's, which count from 0."""
    return -1 - len(c.batches)
