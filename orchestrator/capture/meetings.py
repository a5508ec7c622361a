"""Collectives that some members of a group call and others do not: a job would wait for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Plan
from certificates.plan.program import Loc, Op

from .builder import Frame
from .errors import CaptureError, GroupError

_INSTEAD = (
    "the same collectives in the same order, with tensors of one shape and type, on all ranks of the group: "
    "no collective behind `if rank == …:`, or one on every branch"
)


def unmet(plan: Plan, frame: Callable[[Loc | None], Frame | None]) -> list[CaptureError]:
    """One error for the first rendezvous of each communicator that not all members of a group come to."""
    classes = [plan.class_of(plan.mesh.coordinates(rank)).name for rank in range(plan.mesh.ranks)]
    found: dict[str, CaptureError] = {}
    for seq, name, op in _calls(plan):
        group = op.text("group")
        if group in found or group not in plan.groups:
            continue
        called = set(plan.rendezvous(seq))
        for ranks in plan.groups[group].ranks:
            absent = [r for r in ranks if classes[r] not in called]
            caller = next((r for r in ranks if classes[r] == name), None)
            if absent and caller is not None:
                found[group] = GroupError(
                    f"of group {group} rank {caller} calls it, and rank {absent[0]} calls none like it",
                    op=op.name,
                    rank=caller,
                    frame=frame(op.loc),
                    instead=_INSTEAD,
                )
                break
    return list(found.values())


def _calls(plan: Plan) -> Iterator[tuple[int, str, Op]]:
    """Rendezvous, class and op of each collective, as the classes run them."""
    for cls in plan.classes:
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                yield op.integer("seq"), cls.name, op
