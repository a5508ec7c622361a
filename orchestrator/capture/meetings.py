"""Collectives that some members of a group call and others do not, or with another root: a job would hang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from certificates.plan.ops import COLLECTIVES
from certificates.plan.plan import Mesh, Plan
from certificates.plan.program import Loc, Op

from .builder import Frame, Meeting
from .errors import CaptureError, GroupError, shown
from .fitting import Sample
from .group import Agreed
from .lowering.table import Called, Rooted, communicator
from .recorder import GroupRef

_INSTEAD = (
    "the same collectives in the same order, with tensors of one shape and type, on all ranks of the group: "
    "no collective behind `if rank == …:`, or one on every branch"
)

#: Where a Reducer has compared less than another.
_NOTHING: Agreed = ("", (), None)


def unmet(plan: Plan, frame: Callable[[Loc | None], Frame | None]) -> list[CaptureError]:
    """One error for the first rendezvous of each communicator that not all members of a group come to."""
    classes = [plan.class_of(plan.mesh.coordinates(rank)).name for rank in range(plan.mesh.ranks)]
    found: dict[str, CaptureError] = {}
    met: set[tuple[str, str, frozenset[str]]] = set()
    for seq, name, op in _calls(plan):
        group, called = op.text("group"), frozenset(plan.rendezvous(seq))
        if group in found or group not in plan.groups or (group, name, called) in met:
            continue
        met.add((group, name, called))
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


def _by_rank(samples: Iterable[Sample]) -> list[Sample]:
    """Those of ranks, in their order."""
    return sorted((s for s in samples if s.rank is not None), key=lambda s: s.rank or 0)


def other_roots(samples: Iterable[Sample]) -> list[CaptureError]:
    """One error for the first rendezvous of each communicator whose members do not name one root.

    In a plan nothing is left of it: a broadcast is an all-gather, of which each rank takes a piece.
    """
    ranks = _by_rank(samples)
    met = {sample.rank: {m[:2] for m in sample.kept | sample.dropped} for sample in ranks}
    said: dict[tuple[tuple[int, ...], Meeting], dict[int, Rooted | None]] = {}
    for sample in ranks:
        for call in sample.roots:
            said.setdefault((call.members, call.meeting), {})[sample.rank or 0] = call
    found: dict[tuple[tuple[int, ...], str], CaptureError] = {}
    for (members, meeting), calls in said.items():
        for sample in ranks:
            if sample.rank in members and meeting in met[sample.rank]:
                calls.setdefault(sample.rank or 0, None)
        first, one = next((rank, call) for rank, call in calls.items() if call is not None)
        for rank, other in calls.items():
            if other is None or (other.call, other.root) != (one.call, one.root):
                found.setdefault((members, meeting[0]), _two_roots(meeting[0], (first, one), (rank, other)))
    return list(found.values())


def other_names(samples: Iterable[Sample]) -> list[CaptureError]:
    """One error for each group of ranks that other ranks take for another one.

    PyTorch names a group by the number of groups that its rank has made before it, those that it is no member
    of too, and members find each other by that name: they would wait for ever, or meet another group's.
    """
    ranks = _by_rank(samples)
    named: dict[GroupRef, tuple[int, str]] = {}
    meant: dict[str, tuple[int, GroupRef]] = {}
    found: dict[tuple[int, ...], CaptureError] = {}
    for sample in ranks:
        rank = sample.rank or 0
        for group, (name, frame) in sample.communicators.items():
            first, known = named.setdefault(group, (rank, name))
            other, same = meant.setdefault(name, (rank, group))
            if name == known and group == same:
                continue
            by = (
                f"those of ranks {list(same.ranks)} as well, on rank {other}"
                if name == known
                else f"rank {first} by {known!r}"
            )
            error = GroupError(
                f"the members of the group of ranks {list(group.ranks)} find each other by the name "
                f"{name!r}, the number of groups made before it; {by}",
                frame=frame,
                instead="the same calls of dist.new_group, in one order, by all ranks, members or not",
            )
            found.setdefault(group.ranks, error.at_rank(rank))
    return list(found.values())


def other_agreements(samples: Iterable[Sample]) -> list[CaptureError]:
    """One error for each group in which DistributedDataParallel was taken to find the same on all members and
    does not: which parameters a rank used, or the order in which its gradients were ready.

    Each rank is traced by itself, as if the others had its own integers.
    """
    ranks = _by_rank(samples)
    said: dict[GroupRef, tuple[int, Sequence[Agreed]]] = {}
    found: dict[GroupRef, CaptureError] = {}
    for sample in ranks:
        rank = sample.rank or 0
        for group, mine in sample.agreed.items():
            first, theirs = said.setdefault(group, (rank, mine))
            for (call, own, frame), (other_call, other, _) in zip_longest(mine, theirs, fillvalue=_NOTHING):
                if (call, own) != (other_call, other):
                    error = GroupError(
                        f"DistributedDataParallel compares {list(own)} with the other ranks of "
                        f"{list(group.ranks)}, and rank {first} has {list(other)}: which parameters took "
                        "part in the loss, or in which order, is not the same on all ranks",
                        op=f"dist.{call or other_call}",
                        rank=rank,
                        frame=frame,
                        instead="the same parameters in the loss on all ranks: those that a rank does not "
                        "need times zero, or a branch as a mask",
                    )
                    found.setdefault(group, error)
                    break
    return list(found.values())


def other_numbers(mesh: Mesh, samples: Iterable[Sample]) -> list[CaptureError]:
    """One error for each communicator whose members do not call as many collectives, read or not.

    What one rank calls alone, for a log, meets what the others call next, perhaps in their next step.
    """
    ranks = _by_rank(samples)
    calls = {s.rank or 0: {communicator(*call.key): call for call in s.called} for s in ranks}
    said: dict[tuple[str, tuple[int, ...]], tuple[int, Called]] = {}
    for rank, mine in calls.items():
        for name, call in mine.items():
            fibre = (-1 if axis in call.key[0] else x for axis, x in mesh.coordinates(rank).items())
            said.setdefault((name, tuple(fibre)), (rank, call))
    found: dict[str, CaptureError] = {}
    for (name, place), (first, call) in said.items():
        for rank, mine in calls.items():
            here = mesh.coordinates(rank).values()
            other = mine.get(name, Called(call.key, 0, None))
            if all(x in (-1, y) for x, y in zip(place, here, strict=True)) and other.count != call.count:
                found.setdefault(name, _two_numbers(name, (first, call), (rank, other)))
    return list(found.values())


def _two_numbers(group: str, *said: tuple[int, Called]) -> CaptureError:
    (few, less), (many, more) = sorted(said, key=lambda x: x[1].count)
    return GroupError(
        f"of group {group} rank {many} calls {more.count} collectives and barriers in a step, and rank {few} "
        f"{less.count}: what a rank calls alone meets what the others call next",
        op="torch.distributed",
        rank=many,
        frame=more.frame,
        instead=_INSTEAD,
    )


def _two_roots(group: str, one: tuple[int, Rooted], other: tuple[int, Rooted | None]) -> CaptureError:
    rank, call = other
    does = "a collective without root" if call is None else _spoken(call)
    line = f" at {shown(call.frame)}" if call is not None and call.frame is not None else ""
    return GroupError(
        f"of group {group} rank {one[0]} calls {_spoken(one[1])}, and rank {rank} in its place {does}{line}",
        op=f"dist.{one[1].call}",
        rank=one[0],
        frame=one[1].frame,
        instead="one root on all ranks of the group: src and dst are ranks of the world, group_src and "
        "group_dst places in the group",
    )


def _spoken(call: Rooted) -> str:
    return f"{call.call} with root {call.members[call.root]}"


def _calls(plan: Plan) -> Iterator[tuple[int, str, Op]]:
    """Rendezvous, class and op of each collective, as the classes run them."""
    for cls in plan.classes:
        for op in cls.program.ops:
            if op.name in COLLECTIVES:
                yield op.integer("seq"), cls.name, op
