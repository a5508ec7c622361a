"""The order in which ranks were seen to do what a folded plan says, as the plan's schedule.

A rank's trace is a list of ops, messages, collectives and waits. Between two of these the ops of one
microbatch are a chunk, and ops that are in the same chunk of every microbatch are a segment. An op that only
moves what is received, and that the trace has before the wait, is put behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import networkx

from certificates.authoring.scheduling import with_schedule
from certificates.errors import FormatError
from certificates.plan.affine import Range
from certificates.plan.ops import COLLECTIVES, MESSAGES
from certificates.plan.plan import Plan, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.schedule import Batch, Event, Item, Lane, Run, Schedule, Wait, spans

from ..outlining.packing import read_again
from .builder import MEETING, WAIT

#: How a message was issued: communicator, and batch or -1; no attributes of a plan file.
ISSUED = ("channel", "batch")
#: Of a traced value: the number of its op in the folded program, and its run; ``None`` if it happens once.
Place = tuple[int, int | None]


@dataclass(frozen=True)
class Trace:
    """One class as it was seen: the traced program with waits, where its ops are in the folded program, and
    for each message or collective its number there and run."""

    program: Program
    places: Mapping[str, Place]
    meetings: Mapping[int, Place]


def without_waits(program: Program, *, issued: bool = False) -> Program:
    """The program of a plan, in which nothing says when something is waited for, nor, unless ``issued``, how
    messages were issued."""
    kept = [op for op in program.ops if op.name != WAIT]
    names = {op.out: f"%{i}" for i, op in enumerate(kept)}
    ops = (
        Op(
            names[op.out],
            op.name,
            tuple(names.get(v, v) for v in op.ins),
            op.type,
            {k: v for k, v in op.attrs.items() if issued or op.name not in MESSAGES or k not in ISSUED},
            op.loc,
        )
        for op in kept
    )
    return Program(program.inputs, tuple(ops), {n: names.get(v, v) for n, v in program.outputs.items()})


def pruned(program: Program) -> tuple[Program, dict[str, int]]:
    """Without ops that nothing reads, and the numbers of those that stay: rendezvous and messages do."""
    of = {op.out: op for op in program.ops}
    stack = [*program.outputs.values(), *(op.out for op in program.ops if op.name in COLLECTIVES | MESSAGES)]
    live: set[str] = set()
    while stack:
        value = stack.pop()
        if value in of and value not in live:
            live.add(value)
            stack += of[value].ins
    names = {op.out: f"%{i}" for i, op in enumerate(op for op in program.ops if op.out in live)}
    ops = tuple(
        replace(op, out=names[op.out], ins=tuple(names.get(v, v) for v in op.ins))
        for op in program.ops
        if op.out in live
    )
    made = Program(program.inputs, ops, {n: names.get(v, v) for n, v in program.outputs.items()})
    return made, {old: int(new[1:]) for old, new in names.items()}


def scheduled(plan: Plan, traces: Mapping[str, Trace]) -> Plan:
    """The folded plan, lowered, with the recorded order as its schedule; a ``FormatError`` if it has no place
    there. ``plan`` is as it is written, like the traces."""
    lanes = [_Lane(plan, cls, traces[cls.name]) for cls in plan.classes]
    events = [lane.events() for lane in lanes]
    once = {lane.cls.name: tuple(lane.once) for lane in lanes}
    made = tuple(
        Lane(lane.cls.name, {a: lane.cls.box[a] for a in plan.mesh.space}, tuple(found))
        for lane, found in zip(lanes, events, strict=True)
    )
    for lane in lanes:
        lane.check()
    plain = read_again(plan)
    segments = {lane.cls.name: _plain(lane.segments, plain.by_class[lane.cls.name].program) for lane in lanes}
    return with_schedule(plain, Schedule(segments, once, made))


def _plain(segments: Mapping[str, tuple[Range, ...]], program: Program) -> dict[str, tuple[Range, ...]]:
    """Segments of a written program as those of the plain ops, of which each written one has a run that ends
    with its result. What stands for a collective beside it belongs to what made its operand."""
    if program.rows is None:
        return dict(segments)
    owner = {i: name for name, ranges in segments.items() for low, high in ranges for i in range(low, high)}
    numbers = {op.out: i for i, op in enumerate(program.written)}
    found: dict[str, list[int]] = {name: [] for name in segments}
    at = 0
    for place, op in enumerate(program.ops):
        here = program.written[at]
        within = owner.get(at)
        if within is None and op.name not in COLLECTIVES | MESSAGES:
            within = owner.get(numbers.get(here.ins[0], -1))
            if within is None:
                raise FormatError(f"{here.out} {here.name} masks what no segment makes")
        if within is not None:
            found[within].append(place)
        at += op.out == here.out
    return {name: spans(places) for name, places in found.items()}


@dataclass
class _Lane:
    """The ranks of one class."""

    plan: Plan
    cls: RankClass
    trace: Trace
    segments: dict[str, tuple[Range, ...]] = field(default_factory=dict)
    once: list[str | int] = field(default_factory=list)

    def events(self) -> list[Event]:
        chunks = list(self._chunks())
        of: dict[int, dict[int | None, int]] = {}  # op of the folded program -> run -> chunk
        for number, chunk in enumerate(chunks):
            if isinstance(chunk, dict):
                for op, run in chunk.items():
                    of.setdefault(op, {})[run] = number
        segments: dict[tuple[tuple[int | None, int], ...], list[int]] = {}
        for op, runs in sorted(of.items()):
            segments.setdefault(tuple(runs.items()), []).append(op)
        names = {key: f"s{i}" for i, key in enumerate(segments)}
        self.segments = {names[key]: spans(ops) for key, ops in segments.items()}
        self.once += [names[key] for key in segments if key[0][0] is None]
        order = self._order(of, {op: names[key] for key, ops in segments.items() for op in ops})
        by_chunk: dict[int, list[tuple[str, int]]] = {}
        for key in sorted(segments, key=lambda k: order[names[k]]):
            for run, number in key:
                by_chunk.setdefault(number, []).append((names[key], run or 0))
        return list(self._issued(chunks, by_chunk))

    def check(self) -> None:
        """A ``FormatError`` for what stands in no segment: folding made it, no rank was seen to run it."""
        placed = {i for ranges in self.segments.values() for lo, hi in ranges for i in range(lo, hi)}
        for i, op in enumerate(self.cls.program.ops):
            if i not in placed and op.name not in MEETING | MESSAGES:
                raise FormatError(f"{op.out} {op.name} of class {self.cls.name} was not seen to run")

    def _order(self, of: Mapping[int, object], segment: Mapping[int, str]) -> Mapping[str, int]:
        """Segments in an order in which each finds what it reads."""
        graph = networkx.DiGraph()
        graph.add_nodes_from(segment[op] for op in sorted(of))
        numbers = {op.out: i for i, op in enumerate(self.cls.program.ops)}
        for op in of:
            for value in self.cls.program.ops[op].ins:
                made = numbers.get(value, -1)
                if made in segment and segment[made] != segment[op]:
                    graph.add_edge(segment[made], segment[op])
        if not networkx.is_directed_acyclic_graph(graph):
            raise FormatError("segments of the recorded order need one another")
        return {
            name: i for i, name in enumerate(networkx.lexicographical_topological_sort(graph, key=_number))
        }

    def _chunks(self) -> Iterator[Op | dict[int, int | None]]:
        """The trace: messages, collectives and waits, and between them ops of one run each."""
        ops = self.trace.program.ops
        waited = {op.ins[0]: i for i, op in enumerate(ops) if op.name == WAIT}
        at: dict[str, int] = {}
        for i, op in enumerate(ops):
            needs = [waited.get(v, 0) if v in waited else at.get(v, 0) for v in op.ins if op.name != WAIT]
            at[op.out] = max([i, *needs])
        gap: list[Op] = []
        for op in sorted(ops, key=lambda op: (at[op.out], op.name != WAIT)):
            if op.name in MEETING | MESSAGES or op.name == WAIT:
                yield from self._between(gap)
                gap = []
                yield op
            else:
                gap.append(op)
        yield from self._between(gap)

    def _between(self, ops: Sequence[Op]) -> Iterator[dict[int, int | None]]:
        """What happens once and rests on no microbatch; each microbatch; what rests on them joined."""
        before: dict[int, int | None] = {}
        runs: dict[int, dict[int, int | None]] = {}
        after: dict[int, int | None] = {}
        late = {op.out for op in ops if op.out not in self.trace.places}  # what joins microbatches
        for op in ops:
            number, run = self.trace.places.get(op.out, (-1, None))
            if op.out in late:
                continue
            if run is not None:
                runs.setdefault(run, {})[number] = run
            elif late.isdisjoint(op.ins):
                before[number] = None
            else:
                after[number] = None
            if run is not None or number in after:
                late.add(op.out)
        yield from filter(None, (before, *runs.values(), after))

    def _issued(
        self, chunks: Sequence[Op | dict[int, int | None]], segments: Mapping[int, Sequence[tuple[str, int]]]
    ) -> Iterator[Event]:
        """Events: a batch is one, issued with its last message, and waited for with its last wait."""
        together: dict[object, list[Op]] = {}
        for op in chunks:
            if isinstance(op, Op) and op.name != WAIT:
                together.setdefault(self._batch(op), []).append(op)
        waits = {op.ins[0]: i for i, op in enumerate(chunks) if isinstance(op, Op) and op.name == WAIT}
        count, posted = 0, dict[object, int]()
        batch_of = {op.out: key for key, ops in together.items() for op in ops}
        for i, op in enumerate(chunks):
            if isinstance(op, dict):
                for name, run in segments.get(i, ()):
                    yield Run(name, run)
                    count += 1
                continue
            key = batch_of[op.ins[0] if op.name == WAIT else op.out]
            batch = together[key]
            if op.name == WAIT:
                if i == max(waits[o.out] for o in batch if o.out in waits):
                    yield Wait(posted[key])
                    count += 1
            elif op is batch[-1]:
                items = tuple(map(self._item, batch))
                yield Batch(self._communicator(batch), items, posted=any(o.out in waits for o in batch))
                posted[key] = count
                count += 1

    def _batch(self, op: Op) -> object:
        together = op.attrs.get("batch", -1)
        return op.out if together == -1 else together

    def _item(self, op: Op) -> Item:
        seq, run = self.trace.meetings[op.integer("seq")]
        if run is None and seq not in self.once:
            self.once.append(seq)
        return Item(op.name if op.name in MESSAGES else "meet", seq, run or 0)  # type: ignore[arg-type]

    def _group(self, op: Op) -> str:
        """The group of a collective; rows are sent in that of their order."""
        return (op if "group" in op.attrs else self._made[op.ins[-1]]).text("group")

    @cached_property
    def _made(self) -> Mapping[str, Op]:
        return {op.out: op for op in self.trace.program.ops}

    def _communicator(self, batch: Sequence[Op]) -> str:
        """A batch of messages is on the group's communicator, a message alone on that of its two classes."""
        first = batch[0]
        if first.name in MEETING:
            return _name(self._group(first))
        group = _name(first.text("channel"))
        if first.attrs.get("batch", -1) != -1:
            return group
        seq, _ = self.trace.meetings[first.integer("seq")]
        ends = {**self.plan.messages("send", seq), **self.plan.messages("recv", seq)}
        return f"{group}_{'_'.join(sorted(ends))}"


def _name(group: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", group)


def _number(name: str) -> int:
    return int(name[1:])
