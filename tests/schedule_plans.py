"""Pipelines with schedules: a residual MLP in stages, several of them on a rank, and when each does what.

The schedules are PyTorch's own: the lists of actions that the classes of `torch.distributed.pipelining` make,
put into the form of a plan, for a pipeline whose stages are placed as each of them wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any
from unittest import mock

from certificates.authoring.build import ProgramBuilder, SourcedProgram, Value, build_plan
from certificates.authoring.scheduling import LaneBuilder, ScheduleBuilder, meet, recv, send, with_schedule
from certificates.plan.affine import Affine
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.schedule import Event, Item
from certificates.plan.writing import dumps
from certificates.proof.when import When
from checker.reading.plan import read_plan
from checker.reading.schedule import read_when
from checker.scheduling.safety import Safety, safety
from orchestrator.scheduling import when

WIDTH, HIDDEN, ROWS = 3, 4, 2
#: Schedules of torch, with the stages of each rank.
TORCH = {
    "GPipe": 1,
    "1F1B": 1,
    "Interleaved1F1B": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}


@dataclass
class Places:
    """Which rank has which stage; of the pipeline of stages over ranks and microbatches."""

    rank: tuple[int, ...]
    microbatches: int
    replicas: int = 2

    @property
    def ranks(self) -> int:
        return max(self.rank) + 1

    @property
    def stages(self) -> int:
        return len(self.rank)


@dataclass
class Built:
    """A plan without a schedule, and what a schedule of it needs to know."""

    plan: Plan
    programs: Mapping[str, SourcedProgram]
    places: Places
    inside: bool = False


def specification(places: Places) -> ProgramBuilder:
    """The mean square of what a residual MLP leaves of a batch, and a step of SGD."""
    b = ProgramBuilder()
    batch = ROWS * places.replicas * places.microbatches
    x, lr = b.input("batch.x", f"f32[{batch},{WIDTH}]"), b.input("hyper.lr", "f32[]")
    ws = [b.input(f"params.{i}.w", f"f32[{WIDTH},{WIDTH}]") for i in range(places.stages)]
    kept = []
    for w in ws:
        kept.append((x, x @ w))
        x = x + b.tanh(x @ w)
    b.output("loss", (x * x).sum(0, 1) / (batch * WIDTH))
    g = x * Fraction(2, batch * WIDTH)
    for i in reversed(range(places.stages)):
        g, gw = _backward(b, g, *kept[i], ws[i])
        b.output(f"params.{i}.w", ws[i] - b.broadcast(lr, ws[i].shape) * gw)
    return b


def _backward(b: ProgramBuilder, g: Value, x: Value, h: Value, w: Value) -> tuple[Value, Value]:
    t = b.tanh(h)
    gh = g * (1 - t * t)
    return g + gh @ w.T, b.dot(x, gh, contract=((0,), (0,)))


def built(places: Places, inside: bool = False) -> Built:
    """Segments `f3`, `i3` and `w3` are forward, gradient of the input, gradient of the weights of stage 3;
    `inside`: the gradients are reduced over the replicas within the segment of the step."""
    mesh, time = {"pp": places.ranks, "dp": places.replicas}, {"mb": places.microbatches}
    batch = ROWS * places.replicas * places.microbatches
    bs = [ProgramBuilder(mesh, box={"pp": (r, r + 1)}, time=time) for r in range(places.ranks)]
    lrs = [b.input("hyper.lr", "f32[]") for b in bs]
    ws = [bs[r].input(f"params.{s}.w", f"f32[{WIDTH},{WIDTH}]") for s, r in enumerate(places.rank)]

    def hop(x: Value, source: int, target: int, seq: int) -> Value:
        here, there = places.rank[source], places.rank[target]
        if here == there:
            return x
        bs[here].send(x, seq, pp=there)
        return bs[there].recv(x.type, seq, pp=here)

    kept: list[tuple[Value, Value]] = []
    first = bs[places.rank[0]]
    rows = ROWS * places.microbatches
    whole = first.input("batch.x", f"f32[{rows},{WIDTH}]")
    with first.segment("f0"):
        x = first.slice(whole, (first.axis_index("mb").scale(ROWS), 0), (ROWS, WIDTH))
    for s, r in enumerate(places.rank):
        if s:
            x = hop(x, s - 1, s, s)
        with bs[r].segment(f"f{s}"):
            h = x @ ws[s]
            kept.append((x, h))
            x = x + bs[r].tanh(h)
    r = places.rank[-1]
    with bs[r].segment(f"f{places.stages - 1}"):
        part = (x * x).sum(0, 1) / (batch * WIDTH)
        g = x * Fraction(2, batch * WIDTH)
    total = bs[r].all_reduce(part, "mb", seq=5000)
    bs[r].output("loss", bs[r].all_reduce(total, "dp", seq=5001))
    grads = []
    for s in reversed(range(places.stages)):
        b, (x, h) = bs[places.rank[s]], kept[s]
        if s < places.stages - 1:
            g = hop(g, s + 1, s, 100 + s)
        with b.segment(f"i{s}"):
            t = b.tanh(h)
            gh = g * (1 - t * t)
            g = g + gh @ ws[s].T
        with b.segment(f"w{s}"):
            gw = b.dot(x, gh, contract=((0,), (0,)))
        grads.append((s, b.all_reduce(gw, "mb", seq=1000 + s)))
    for s, grad in grads:
        b, lr = bs[places.rank[s]], lrs[places.rank[s]]
        with b.segment("update") if inside else nullcontext():
            mean = b.all_reduce(grad, "dp", seq=2000 + s)
        with b.segment("update"):
            b.output(f"params.{s}.w", ws[s] - b.broadcast(lr, ws[s].shape) * mean)
    programs = {f"c{r}": b.build() for r, b in enumerate(bs)}
    z = (Affine.symbol("z0"), Affine.symbol("z1"))
    weights = [
        Relation(n := f"params.{s}.w", n, (Piece(f"c{r}", (WIDTH, WIDTH), z, z),))
        for s, r in enumerate(places.rank)
    ]
    data = Piece(f"c{places.rank[0]}", (rows, WIDTH), z, (Affine.of(0, {"dp": rows, "z0": 1}), z[1]))
    loss = Piece(f"c{r}", (), (), ())
    plan = build_plan(
        name=f"scheduled-{places.stages}-on-{places.ranks}",
        mesh=mesh,
        time=time,
        specification=specification(places).build(),
        classes={f"c{r}": ({"pp": (r, r + 1)}, programs[f"c{r}"]) for r in range(places.ranks)},
        inputs=[
            *weights,
            Relation("batch.x", "batch.x", (data,)),
            Relation("hyper.lr", "hyper.lr", tuple(Piece(c, (), (), ()) for c in programs)),
        ],
        outputs=[*weights, Relation("loss", "loss", (loss,))],
        given=["batch.x", "hyper.lr"],
    )
    return Built(plan, programs, places, inside)


# From torch's actions ---------------------------------------------------------------------------------------

Action = tuple[str, int, int]
"""Kind, stage, microbatch."""


@cache
def actions(name: str, ranks: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """What each rank does, as the lists of the classes with several stages per rank say, with messages."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.schedules import _add_send_recv

    lines: list[list[Any]] = get_schedule_ops(name, ranks, microbatches, TORCH[name])
    kinds = {"F", "I", "W", "B"}
    lines = [
        [a for a in line if a is not None and (a.sub_actions or a.computation_type.value in kinds)]
        for line in lines
    ]
    place = {b.stage_index: r for r, line in enumerate(lines) for a in line for b in a.sub_actions or (a,)}
    both = _add_send_recv({r: list(a) for r, a in enumerate(lines)}, lambda s: place[s], len(place))
    flat = [[b for a in both[r] for b in a.sub_actions or (a,)] for r in range(ranks)]
    return tuple(
        tuple((a.computation_type.value, a.stage_index, a.microbatch_index) for a in line) for line in flat
    )


class Recorder:
    """A stage of torch's that computes nothing: it writes down what its schedule does with it."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.stage_index = self.group_rank = rank
        self.num_stages = self.group_size = ranks
        self.is_first, self.is_last, self.has_backward = rank == 0, rank == ranks - 1, True
        self.submod = None
        self.done: list[tuple[str, Any]] = []

    def _ops(self, end: str, way: str, m: int, there: bool) -> list[Action]:
        return [(f"{end}_{way}", self.stage_index, m)] if there else []

    def get_fwd_recv_ops(self, m: int) -> list[Action]:
        return self._ops("RECV", "F", m, not self.is_first)

    def get_fwd_send_ops(self, m: int) -> list[Action]:
        return self._ops("SEND", "F", m, not self.is_last)

    def get_bwd_recv_ops(self, m: int) -> list[Action]:
        return self._ops("RECV", "B", m, not self.is_last)

    def get_bwd_send_ops(self, m: int) -> list[Action]:
        return self._ops("SEND", "B", m, not self.is_first)

    def forward_one_chunk(self, m: int, *_: Any, **__: Any) -> None:
        self.done.append(("F", m))

    def backward_one_chunk(self, m: int, **_: Any) -> None:
        self.done.append(("B", m))

    def post(self, ops: list[Action], **_: Any) -> list[int]:
        """Stands for what starts a batch: its number in the list is what it is waited for by."""
        if not ops:
            return []
        self.done.append(("post", tuple(ops)))
        return [len(self.done) - 1]

    def wait(self, work: list[int]) -> None:
        self.done += [("wait", number) for number in work]

    def perform_reduce_grad(self, _: Any) -> None:
        pass


def recorded(name: str, rank: int, ranks: int, microbatches: int) -> list[tuple[str, Any]]:
    """What the code of a schedule class with one stage per rank does, run without processes."""
    from torch.distributed.pipelining import schedules

    stage, cls = Recorder(rank, ranks), schedules.get_schedule_class(name)
    found = cls(stage, microbatches)  # type: ignore[call-arg]
    with (
        mock.patch.object(schedules, "_batch_p2p", stage.post),
        mock.patch.object(schedules, "_sorted_batch_p2p", lambda ops, **_: {0: stage.post(ops)}),
        mock.patch.object(schedules, "_wait_batch_p2p", stage.wait),
        mock.patch.object(cls, "_initialize_stage", lambda *_: None),
    ):
        found._step_microbatches([()] * microbatches, [{}] * microbatches)
    return stage.done


def placed(name: str, ranks: int, microbatches: int, replicas: int = 2) -> Places:
    if TORCH[name] == 1:
        return Places(tuple(range(ranks)), microbatches, replicas)
    lines = actions(name, ranks, microbatches)
    place = {s: r for r, line in enumerate(lines) for kind, s, _ in line if kind == "F"}
    return Places(tuple(place[s] for s in sorted(place)), microbatches, replicas)


class TorchLane:
    """A lane that is filled as torch's runtime does it: what only sends, or only receives, goes over the
    communicator of two ranks, a batch with both over the group's."""

    def __init__(self, b: Built, lane: LaneBuilder, rank: int) -> None:
        self.b, self.lane, self.rank = b, lane, rank

    def post(self, *ops: Action) -> list[int]:
        """The posted events."""
        items = [self._item(*op) for op in ops]
        if len({item.end for _, item in items}) > 1:
            return [self.lane.post("pp", *(item for _, item in items))]
        return [
            self.lane.post(f"pair_{min(self.rank, peer)}_{max(self.rank, peer)}", item)
            for peer, item in items
        ]

    def _item(self, kind: str, stage: int, m: int) -> tuple[int, Item]:
        """The rank of the other end, and the item."""
        end, way = kind.split("_")
        other = stage + (1 if (end == "SEND") == (way == "F") else -1)
        into = other if end == "SEND" else stage
        seq = into if way == "F" else 100 + into
        return self.b.places.rank[other], send(seq, m) if end == "SEND" else recv(seq, m)

    def compute(self, kind: str, stage: int, m: int) -> None:
        for part in {"F": "f", "I": "i", "W": "w", "B": "iw"}[kind]:
            self.lane.run(f"{part}{stage}", m)


def torch_lanes(b: Built, name: str) -> ScheduleBuilder:
    """The gradients are reduced over replicas behind all."""
    places, s = b.places, ScheduleBuilder(b.programs, once=once(b))
    for r in range(places.ranks):
        lane = s.lane(f"rank{r}", {"pp": (r, r + 1)})
        (_single if TORCH[name] == 1 else _several)(TorchLane(b, lane, r), name)
        finish(b, lane, r)
    return s


def _single(to: TorchLane, name: str) -> None:
    posted: dict[int, list[int]] = {}
    for number, (kind, what) in enumerate(
        recorded(name, to.rank, to.b.places.ranks, to.b.places.microbatches)
    ):
        if kind == "post":
            posted[number] = to.post(*what)
        elif kind == "wait":
            for event in posted.pop(what, ()):
                to.lane.wait(event)
        else:
            to.compute(kind, to.rank, what)


def _several(to: TorchLane, name: str) -> None:
    """The runtime posts every receive where the list has it, and waits where the result is read; for sends
    it waits at the end."""
    posted: dict[Action, list[int]] = {}
    sent: list[int] = []
    for kind, stage, m in actions(name, to.b.places.ranks, to.b.places.microbatches)[to.rank]:
        if kind.startswith("RECV"):
            posted[kind, stage, m] = to.post((kind, stage, m))
        elif kind.startswith("SEND"):
            sent += to.post((kind, stage, m))
        else:
            for event in posted.pop((f"RECV_{'F' if kind == 'F' else 'B'}", stage, m), ()):
                to.lane.wait(event)
            to.compute(kind, stage, m)
    for event in sent:
        to.lane.wait(event)


def once(b: Built) -> dict[str, list[str | int]]:
    found: dict[str, list[str | int]] = {}
    for r in range(b.places.ranks):
        mine = [] if b.inside else [s for s, place in enumerate(b.places.rank) if place == r]
        found[f"c{r}"] = ["update", *(2000 + s for s in mine)]
    found[f"c{b.places.rank[-1]}"].append(5001)
    return found


def finish(b: Built, lane: LaneBuilder, r: int) -> None:
    """Gradients and loss over the replicas, and the step."""
    if b.places.rank[-1] == r:
        lane.now("dp", meet(5001))
    for s, place in enumerate(b.places.rank):
        if place == r and not b.inside:
            lane.now("dp", meet(2000 + s))
    lane.run("update")


def by_torch(name: str, ranks: int = 2, microbatches: int = 4, replicas: int = 2) -> Plan:
    """A pipeline with the schedule that torch gives it."""
    b = built(placed(name, ranks, microbatches, replicas))
    return with_schedule(b.plan, torch_lanes(b, name).build())


# Changes ----------------------------------------------------------------------------------------------------


def judged(plan: Plan, happens: When | None = None) -> Safety | None:
    """What the checker says of a plan's schedule, by default with the certificate that is found for it."""
    happens = happens or when(plan)
    return safety(read_plan(dumps(plan)), read_when(happens.to_json()) if happens else None)


def reason(plan: Plan) -> str:
    """Why the schedule of a plan is UNSAFE."""
    found = judged(plan)
    assert found is not None and not found.safe
    return found.reason


def place(plan: Plan, lane: str, event: Event) -> int:
    """The number of an event."""
    assert plan.schedule is not None
    return next(n for n in plan.schedule.lanes if n.name == lane).events.index(event)


def edited(plan: Plan, lane: str, change: Callable[[list[Event]], Iterable[Event]]) -> Plan:
    """A plan with other events in one lane; nothing is checked."""
    assert plan.schedule is not None
    lanes = tuple(
        replace(n, events=tuple(change(list(n.events)))) if n.name == lane else n for n in plan.schedule.lanes
    )
    return replace(plan, schedule=replace(plan.schedule, lanes=lanes))


def chain(ranks: int = 2, microbatches: int = 3, replicas: int = 2) -> Built:
    """One stage per rank."""
    return built(Places(tuple(range(ranks)), microbatches, replicas))
