"""Which send meets which receive: by the order of each channel, once all ranks are traced.

A rank is traced alone, and what it receives is a value of the buffer's type that nobody knows yet. So no
order of tracing is needed, and none can hang: whether the ranks themselves can is what a schedule tells.
A channel is a communicator from one rank to another; its messages arrive in the order in which they are sent.
Both ends are laid against each other for every rank of the mesh, traced or not, from the fitted programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import networkx
from networkx.utils import UnionFind

from certificates.plan.affine import Affine
from certificates.plan.ops import MESSAGES
from certificates.plan.plan import Mesh
from certificates.plan.program import Op

from .builder import CALLS, Draft
from .errors import CaptureError, GroupError, shown
from .fitting import FittedClass, with_scalars
from .lowering import RankProgram

#: Provenance: of each message its number, communicator, place among those of a channel, and tag.
THROUGH = "messages"
#: Source, destination, communicator (its name and members, if no axes name it), place in their order.
_Key = tuple[int, int, str, tuple[int, ...], int]
_EACH = (
    "one recv for each send, in the order of the sends, between the same two ranks, on one communicator, "
    "with a buffer of the shape and type that is sent"
)
_APART = (
    "another order, or one communicator for each of the two: mesh[axis].get_group(), dist.new_group(ranks)"
)


@dataclass(frozen=True, eq=False)
class End:
    """One end of messages: an op of a class, as all its ranks run it."""

    cls: int
    draft: Draft
    attrs: Mapping[str, object]

    @property
    def name(self) -> tuple[int, str]:
        return self.cls, self.draft.out

    @property
    def line(self) -> str:
        return f" at {shown(self.draft.frame)}" if self.draft.frame else ""

    def keys(self, mesh: Mesh, box: Mapping[str, tuple[int, int]]) -> Iterator[tuple[int, _Key]]:
        """For each rank of the class, the rank and which message this is."""
        sends = self.draft.name == "send"
        there, members = self.forms("to" if sends else "from"), self.forms("members")
        name, number = str(self.attrs["channel"]), int(str(self.attrs["number"]))
        for point in itertools.product(*(range(*box[axis]) for axis in mesh.axes)):
            at = dict(zip(mesh.axes, point, strict=True))
            here, peer = mesh.rank(at), self._peer(mesh, there, at)
            ends = (here, peer) if sends else (peer, here)
            yield here, (*ends, name, tuple(f.evaluate(at) for f in members), number)

    def forms(self, key: str) -> tuple[Affine, ...]:
        forms = self.attrs[key]
        assert isinstance(forms, tuple)
        return forms

    def _peer(self, mesh: Mesh, there: Sequence[Affine], at: Mapping[str, int]) -> int:
        place = {axis: form.evaluate(at) for axis, form in zip(mesh.axes, there, strict=True)}
        if any(not 0 <= x < mesh.axes[axis] for axis, x in place.items()):
            raise GroupError(
                f"by the rule of its class it names the rank {place}, which the mesh does not have",
                op=self.draft.name,
                rank=mesh.rank(at),
                frame=self.draft.frame,
            )
        return mesh.rank(place)


def matched(
    mesh: Mesh, classes: Sequence[FittedClass]
) -> tuple[list[FittedClass], Mapping[tuple[int, str], int]]:
    """The classes, cut where their ranks pass messages on among themselves, and the number of the message of
    each end, by class and result.

    What is sent and never received, received and never sent, or received as another type is a
    :class:`CaptureError` with both lines.
    """
    received = _Received()
    while True:
        groups = _groups(mesh, classes)
        cut = next((c for g in groups if (c := _to_cut(mesh, classes, g, received)) is not None), None)
        if cut is None:
            _check_circles(classes, groups, received)
            return list(classes), {end.name: i for i, group in enumerate(groups) for end in group}
        number, axis = cut
        lo, hi = classes[number].box[axis]
        parts = [
            replace(classes[number], box={**classes[number].box, axis: (x, x + 1)}) for x in range(lo, hi)
        ]
        classes = [*classes[:number], *parts, *classes[number + 1 :]]


def stages(classes: Sequence[FittedClass], numbers: Mapping[tuple[int, str], int]) -> list[dict[str, int]]:
    """Where each class stands along the axes that messages between classes cross.

    Classes of two stages meet in collectives over such an axis only. What both call in the same place of the
    orders of their own communicators is no rendezvous of both: one may wait for a message of the other.
    """
    tied: dict[int, set[int]] = {}
    for (cls, _), number in numbers.items():
        tied.setdefault(number, set()).add(cls)
    pairs = {pair for of in tied.values() for pair in itertools.combinations(sorted(of), 2)}
    found: list[dict[str, int]] = [{} for _ in classes]
    for axis in classes[0].box:
        spans = [c.box[axis] for c in classes]
        if any(spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0] for a, b in pairs):
            edges = {x for low, high in spans for x in (low, high)}
            cuts = sorted(x for x in edges if not any(low < x < high for low, high in spans))
            for stage, (low, _) in zip(found, spans, strict=True):
                stage[axis] = sum(x <= low for x in cuts)
    return found


def channel(op: Draft | Op) -> str:
    """Where a traced send or receive goes through: communicator, place in the order of its channel, tag."""
    attrs = dict(op.attrs)
    return f"{attrs['channel']} {attrs['number']} {attrs['tag']}"


def ends(number: int, fitted: FittedClass) -> Iterator[End]:
    """The messages of a class, in the order of its program."""
    forms = iter(fitted.forms)
    for draft in fitted.program.drafts:
        attrs = with_scalars(draft, forms)
        if draft.name in MESSAGES:
            yield End(number, draft, dict(attrs))


def _groups(mesh: Mesh, classes: Sequence[FittedClass]) -> list[list[End]]:
    """Ends that meet, directly or through others, in the order of the programs: one message of the plan."""
    sent: dict[_Key, End] = {}
    received: dict[_Key, End] = {}
    all_ends = [end for i, c in enumerate(classes) for end in ends(i, c)]
    for end in all_ends:
        table = sent if end.draft.name == "send" else received
        for rank, key in end.keys(mesh, classes[end.cls].box):
            if table.setdefault(key, end) is not end:
                raise GroupError(
                    f"it meets the channel of another {end.draft.name}{table[key].line} on this rank only",
                    op=end.draft.name,
                    rank=rank,
                    frame=end.draft.frame,
                    instead="--most, to trace more ranks",
                )
    problems = [*_lonely(sent, received), *_unlike(sent, received)]
    if problems:
        raise _first(problems)
    met = UnionFind()
    for key, end in sent.items():
        met.union(end.name, received[key].name)
    groups: dict[tuple[int, str], list[End]] = {}
    for end in all_ends:
        groups.setdefault(met[end.name], []).append(end)
    return list(groups.values())


def _lonely(sent: Mapping[_Key, End], received: Mapping[_Key, End]) -> Iterator[CaptureError]:
    """Ends without another end, each told once."""
    told: set[tuple[int, str]] = set()
    for table, others in ((sent, received), (received, sent)):
        for key, end in table.items():
            if key in others or end.name in told:
                continue
            told.add(end.name)
            source, destination = key[:2]
            sends = end.draft.name == "send"
            here, there = (source, destination) if sends else (destination, source)
            counts = [sum(k[:-1] == key[:-1] for k in t) for t in (table, others)]
            verb, answer = ("sends", "receives") if sends else ("receives", "sends")
            what = f"message{'s' * (counts[0] > 1)} {'to' if sends else 'from'} rank {there}"
            last = [e for k, e in others.items() if k[:-1] == key[:-1]]
            yield GroupError(
                f"rank {here} {verb} {counts[0]} {what} on {_spoken(key)}, which {answer} "
                f"{counts[1] or 'none'}" + (f" (the last one{last[-1].line})" if last else ""),
                op=end.draft.name,
                rank=here,
                frame=end.draft.frame,
                instead=_EACH,
            )


def _tagged(tag: object) -> str:
    """How a message was sent or received."""
    return f"in {CALLS[tag]}" if isinstance(tag, int) and tag in CALLS else f"with tag {tag}"


def _unlike(sent: Mapping[_Key, End], received: Mapping[_Key, End]) -> Iterator[CaptureError]:
    """Both ends of a message that do not fit."""
    told: set[tuple[tuple[int, str], tuple[int, str]]] = set()
    for key, end in sent.items():
        other = received.get(key)
        if other is None or (end.name, other.name) in told:
            continue
        told.add((end.name, other.name))
        tags = [e.attrs["tag"] for e in (end, other)]
        what = None
        if end.draft.type != other.draft.type:
            what = f"{end.draft.type} is received as {other.draft.type}"
        elif tags[0] != tags[1]:
            what = f"what is sent {_tagged(tags[0])} is received {_tagged(tags[1])}"
        if what is not None:
            yield GroupError(
                f"message {key[-1]} from rank {key[0]} to rank {key[1]} on {_spoken(key)}: "
                f"{what}{other.line}",
                op="send",
                rank=key[0],
                frame=end.draft.frame,
                instead=_EACH,
            )


def _first(problems: Sequence[CaptureError]) -> CaptureError:
    """One error per line; what follows from a message that is missing is not told again."""
    lines: dict[object, CaptureError] = {}
    for problem in problems:
        lines.setdefault((problem.op, problem.frame), problem)
    found = list(lines.values())
    found[0].others = tuple(found[1:])
    return found[0]


def _spoken(key: _Key) -> str:
    _, _, name, members, _ = key
    return f"the group {list(members)}" if members else name


def _check_circles(
    classes: Sequence[FittedClass], groups: Sequence[Sequence[End]], received: _Received
) -> None:
    """A value that rests on itself: all ranks of a circle wait for what others make of their messages."""
    graph = networkx.DiGraph()
    for group in groups:
        sends = [e for e in group if e.draft.name == "send"]
        graph.add_edges_from((e, send) for e in group if e.draft.name == "recv" for send in sends)
    ends = [e for group in groups for e in group if e.draft.name == "recv"]
    for send in [e for group in groups for e in group if e.draft.name == "send"]:
        made = received.by(classes[send.cls], send.draft)
        graph.add_edges_from((send, e) for e in ends if e.cls == send.cls and e.draft.out in made)
    try:
        circle = [send for _, send in networkx.find_cycle(graph) if send.draft.name == "send"]
    except networkx.NetworkXNoCycle:
        return
    others = "".join(f", which is made of what is sent{e.line}" for e in circle[1:])
    raise GroupError(
        f"what is sent is made of itself: of what is sent{circle[0].line}{others}",
        op="send",
        frame=circle[0].draft.frame,
        instead="a first message that is made of a rank's own values",
    )


def _to_cut(
    mesh: Mesh, classes: Sequence[FittedClass], group: Sequence[End], received: _Received
) -> tuple[int, str] | None:
    """Class and axis to be cut: a plan's message has one send and one recv in a class, a class does not
    receive what rests on its own sending, as the ranks of a chain do, and both ends name each other by the
    rules of their classes: through two ranks of a ring there is always one, and it need not be the ring's."""
    for end in group:
        mine = [other for other in group if other.cls == end.cls and other.draft.out != end.draft.out]
        twice = [other for other in mine if other.draft.name == end.draft.name]
        chained = end.draft.name == "send" and any(
            other.draft.out in received.by(classes[end.cls], end.draft)
            for other in mine
            if other.draft.name == "recv"
        )
        if twice or chained:
            axis = _moved(mesh, classes[end.cls], [end, *mine])
            if axis is not None:
                return end.cls, axis
            if twice:
                raise GroupError(
                    f"it meets what another {end.draft.name} of this rank meets on others{twice[0].line}",
                    op=end.draft.name,
                    frame=end.draft.frame,
                    instead=_APART,
                )
    for end, other in itertools.permutations(group, 2):
        if end.draft.name != other.draft.name and not _meant(mesh, classes, end, other):
            for at in (end, other):
                axis = _moved(mesh, classes[at.cls], [at])
                if axis is not None:
                    return at.cls, axis
    return None


def _meant(mesh: Mesh, classes: Sequence[FittedClass], end: End, other: End) -> bool:
    """Whether the other end names the ranks of this one, at every rank that this one names of its class."""
    box = classes[end.cls].box
    there = end.forms("to" if end.draft.name == "send" else "from")
    spans = [form.interval(box) for form in there]
    theirs = [classes[other.cls].box[axis] for axis in mesh.axes]
    if any(last < lo or hi <= first for (first, last), (lo, hi) in zip(spans, theirs, strict=True)):
        return True
    outward = dict(zip(mesh.axes, there, strict=True))
    fixed = {axis: Affine(lo) for axis, (lo, hi) in box.items() if hi == lo + 1}
    back = other.forms("to" if other.draft.name == "send" else "from")
    return all(
        form.substitute(outward).substitute(fixed) == Affine.symbol(axis).substitute(fixed)
        for axis, form in zip(mesh.axes, back, strict=True)
    )


def _moved(mesh: Mesh, fitted: FittedClass, found: Sequence[End]) -> str | None:
    """An axis of several ranks along which one of these messages moves."""
    for end in found:
        forms = end.forms("to" if end.draft.name == "send" else "from")
        for axis, form in zip(mesh.axes, forms, strict=True):
            lo, hi = fitted.box[axis]
            if hi - lo > 1 and form != Affine.symbol(axis):
                return axis
    return None


class _Received:
    """For each value that is sent, what is received that it is made of; found once for a program."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[RankProgram, dict[str, frozenset[str]]]] = {}

    def by(self, fitted: FittedClass, sent: Draft) -> frozenset[str]:
        program = fitted.program
        if id(program) not in self._found:  # kept with its program: the id is no other's
            self._found[id(program)] = program, dict(self._of(program))
        return self._found[id(program)][1][sent.out]

    def _of(self, program: RankProgram) -> Iterator[tuple[str, frozenset[str]]]:
        bits: dict[str, int] = {}
        rests: dict[str, int] = {}
        for draft in program.drafts:
            of = 0
            for value in draft.ins:
                of |= rests.get(value, 0)
            if draft.name == "send":
                yield draft.out, frozenset(out for out, bit in bits.items() if of & bit)
            elif draft.name == "recv":
                of |= bits.setdefault(draft.out, 1 << len(bits))
            rests[draft.out] = of
