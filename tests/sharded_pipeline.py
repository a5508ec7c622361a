"""A pipeline of two ranks with five layers each, whose weights are sharded over two replicas.

Each rank gathers a layer's weights once, before all microbatches, and reduces its gradients once behind
them, with the square of the norm of each. A rank may leave the gradients of weights for later.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, SourcedProgram, Value, build_plan
from certificates.authoring.scheduling import LaneBuilder, ScheduleBuilder, meet, recv, send, with_schedule
from certificates.plan.affine import Affine
from certificates.plan.plan import Piece, Plan, Relation

WIDTH, ROWS, OWN, RUNS, REPLICAS = 4, 2, 5, 2, 2
STAGES = 2 * OWN
ROWS_OF_ALL = ROWS * RUNS * REPLICAS
MESH, TIME = {"pp": 2, "dp": REPLICAS}, {"mb": RUNS}
WEIGHT, SHARD = f"f32[{WIDTH},{WIDTH}]", f"f32[{WIDTH // REPLICAS},{WIDTH}]"


def specification() -> SourcedProgram:
    """A residual MLP on a batch, and its step."""
    b = ProgramBuilder()
    x, lr = b.input("batch.x", f"f32[{ROWS_OF_ALL},{WIDTH}]"), b.input("hyper.lr", "f32[]")
    ws = [b.input(f"params.{i}.w", WEIGHT) for i in range(STAGES)]
    kept = []
    for w in ws:
        h = x @ w
        kept.append((x, h))
        x = x + b.tanh(h) * h
    part, g = _loss(b, x, lr)
    b.output("loss", part)
    grads: list[Value] = []
    for w, (before, h) in zip(reversed(ws), reversed(kept), strict=True):
        g, grad = _backward(b, g, before, h, w.T)
        grads.insert(0, grad)
    b.output("norms", b.concatenate([(grad * grad).sum(0, 1).reshape(1) for grad in grads], 0))
    clip = 1 / (1 + lr * lr)
    clipped = [grad * b.broadcast(clip, grad.shape) for grad in grads]
    for i, (w, grad) in enumerate(zip(ws, clipped, strict=True)):
        b.output(f"params.{i}.w", _stepped(b, w, grad, lr))
    return b.build()


def _stepped(b: ProgramBuilder, w: Value, grad: Value, lr: Value) -> Value:
    step = b.broadcast(lr, w.shape)
    return w - step * grad - step * w * w


def _loss(b: ProgramBuilder, x: Value, scale: Value) -> tuple[Value, Value]:
    """The sum of all tanh(x), scaled, and its gradient."""
    t, factor = b.tanh(x), b.broadcast(scale, x.shape)
    return (t * factor).sum(0, 1), (1 - t * t) * factor


def _backward(b: ProgramBuilder, g: Value, x: Value, h: Value, wt: Value) -> tuple[Value, Value]:
    g, gh = _handed_on(b, g, h, wt)
    return g, _left(b, x, gh)


def _handed_on(b: ProgramBuilder, g: Value, h: Value, wt: Value) -> tuple[Value, Value]:
    t = b.tanh(h)
    gh = g * (t + h * (1 - t * t))
    return g + gh @ wt, gh


def _left(b: ProgramBuilder, x: Value, gh: Value) -> Value:
    return b.dot(x, gh, contract=((0,), (0,)))


def ranks(scale: Fraction = Fraction(1), late: Container[int] = ()) -> dict[str, SourcedProgram]:
    """The programs of both stages; gradients are multiplied by ``scale`` before they are reduced.

    A ``late`` rank computes gradients of weights when those of all inputs are sent.
    """
    bs = [ProgramBuilder(MESH, box={"pp": (r, r + 1)}, time=TIME) for r in range(2)]
    lrs = [b.input("hyper.lr", "f32[]") for b in bs]
    shards = [bs[s // OWN].input(f"params.{s}.w", SHARD) for s in range(STAGES)]
    whole: list[tuple[Value, Value]] = []
    for s, shard in enumerate(shards):
        b = bs[s // OWN]
        with b.segment(f"flat{s}"):
            flat = shard.reshape(WIDTH * WIDTH // REPLICAS)
        full = b.all_gather(flat, "dp", seq=3000 + s)
        with b.segment(f"open{s}"):
            w = full.reshape(WIDTH, WIDTH)
            whole.append((w, w.T))
    batch = bs[0].input("batch.x", f"f32[{ROWS * RUNS},{WIDTH}]")
    kept: list[tuple[Value, Value]] = []
    with bs[0].segment("f0"):
        x = bs[0].slice(batch, (bs[0].axis_index("mb").scale(ROWS), 0), (ROWS, WIDTH))
    for s in range(STAGES):
        b = bs[s // OWN]
        if s == OWN:
            bs[0].send(x, 1, pp=1)
            x = b.recv(x.type, 1, pp=0)
        with b.segment(f"f{s}"):
            h = x @ whole[s][0]
            kept.append((x, h))
            x = x + b.tanh(h) * h
    with b.segment(f"f{STAGES - 1}"):
        part, g = _loss(b, x, lrs[1])
    b.output("loss", b.all_reduce(b.all_reduce(part, "mb", seq=5000), "dp", seq=5001))
    grads: dict[int, Value] = {}
    waiting: dict[int, Value] = {}
    for s in reversed(range(STAGES)):
        b = bs[s // OWN]
        if s == OWN - 1:
            bs[1].send(g, 2, pp=0)
            g = b.recv(g.type, 2, pp=1)
        with b.segment(f"b{s}"):
            g, waiting[s] = _handed_on(b, g, kept[s][1], whole[s][1])
            if s // OWN not in late:
                grads[s] = _left(b, kept[s][0], waiting[s])
    for s in reversed(range(STAGES)):
        b = bs[s // OWN]
        if s // OWN in late:
            with b.segment(f"w{s}"):
                grads[s] = _left(b, kept[s][0], waiting[s])
        joined = b.all_reduce(grads[s], "mb", seq=1000 + s)
        with b.segment(f"reduce{s}"):
            flat = joined.reshape(WIDTH * WIDTH) * scale
        grads[s] = b.reduce_scatter(flat, "dp", seq=2000 + s)
    for r, b in enumerate(bs):
        own = range(OWN * r, OWN * r + OWN)
        with b.segment("norm"):
            norms = b.concatenate([(grads[s] * grads[s]).sum(0).reshape(1) for s in own], 0)
        b.output("norms", b.all_reduce(norms, "dp", seq=4000 + r))
        with b.segment("update"):
            clip = 1 / (1 + lrs[r] * lrs[r])
            clipped = [
                grads[s].reshape(WIDTH // REPLICAS, WIDTH) * b.broadcast(clip, shards[s].shape) for s in own
            ]
            for s, grad in zip(own, clipped, strict=True):
                b.output(f"params.{s}.w", _stepped(b, shards[s], grad, lrs[r]))
    return {f"c{r}": b.build() for r, b in enumerate(bs)}


def sharded(scale: Fraction = Fraction(1), late: Container[int] = ()) -> Plan:
    """The plan with its schedule: all forwards, then all backwards."""
    programs = ranks(scale, late)
    z = (Affine.symbol("z0"), Affine.symbol("z1"))
    half, rows = WIDTH // REPLICAS, ROWS * RUNS
    weights = [
        Relation(
            n := f"params.{s}.w",
            n,
            (Piece(f"c{s // OWN}", (half, WIDTH), z, (Affine.of(0, {"dp": half, "z0": 1}), z[1])),),
        )
        for s in range(STAGES)
    ]
    stacked = tuple(Piece(f"c{r}", (OWN,), z[:1], (Affine.of(OWN * r, {"z0": 1}),)) for r in range(2))
    norms = Relation("norms", "norms", stacked)
    data = Piece("c0", (rows, WIDTH), z, (Affine.of(0, {"dp": rows, "z0": 1}), z[1]))
    plan = build_plan(
        name="sharded-pipeline",
        mesh=MESH,
        time=TIME,
        specification=specification(),
        classes={f"c{r}": ({"pp": (r, r + 1)}, programs[f"c{r}"]) for r in range(2)},
        inputs=[
            *weights,
            Relation("batch.x", "batch.x", (data,)),
            Relation("hyper.lr", "hyper.lr", tuple(Piece(c, (), (), ()) for c in programs)),
        ],
        outputs=[*weights, norms, Relation("loss", "loss", (Piece("c1", (), (), ()),))],
        given=["batch.x", "hyper.lr"],
    )
    return with_schedule(plan, _schedule(programs, late).build())


def _schedule(programs: Mapping[str, SourcedProgram], late: Container[int]) -> ScheduleBuilder:
    s = ScheduleBuilder(programs, once={f"c{r}": _once(r) for r in range(2)})
    first, last = (s.lane(f"rank{r}", {"pp": (r, r + 1)}) for r in range(2))
    for r, lane in enumerate((first, last)):
        _gathers(lane, range(OWN * r, OWN * r + OWN))
    for m in range(RUNS):
        for stage in range(OWN):
            first.run(f"f{stage}", m)
        first.now("pp", send(1, m))
        last.now("pp", recv(1, m))
        for stage in range(OWN, STAGES):
            last.run(f"f{stage}", m)
    for m in range(RUNS):
        for stage in reversed(range(OWN, STAGES)):
            last.run(f"b{stage}", m)
        last.now("pp", send(2, m))
        first.now("pp", recv(2, m))
        for stage in reversed(range(OWN)):
            first.run(f"b{stage}", m)
    for r, lane in enumerate((first, last)):
        for m in range(RUNS) if r in late else ():
            for stage in reversed(range(OWN * r, OWN * r + OWN)):
                lane.run(f"w{stage}", m)
    last.now("dp", meet(5001))
    for r, lane in enumerate((first, last)):
        for stage in reversed(range(OWN * r, OWN * r + OWN)):
            lane.run(f"reduce{stage}")
            lane.now("dp", meet(2000 + stage))
        lane.run("norm")
        lane.now("dp", meet(4000 + r))
        lane.run("update")
    return s


def _gathers(lane: LaneBuilder, own: range) -> None:
    """All shards are made flat first, as frameworks do."""
    for s in own:
        lane.run(f"flat{s}")
    for s in own:
        lane.now("dp", meet(3000 + s))
        lane.run(f"open{s}")


def _once(r: int) -> list[str | int]:
    own = range(OWN * r, OWN * r + OWN)
    named: list[str | int] = [f"{kind}{s}" for kind in ("flat", "open", "reduce") for s in own]
    named += [kind + s for kind in (2000, 3000) for s in own]
    return [*named, "norm", "update", 4000 + r, *([5001] if r else [])]
