"""Pipelines written by hand: a residual MLP in stages, forward, backward, SGD, mean loss, over microbatches.

The specification is the plain model on the whole batch. Every stage is a rank class with a program of its
own; activations and gradients are messages, the microbatch is the time axis ``mb``. The batch of a replica
lies whole on the first and the last stage, which cut their microbatch out of it. The batch is handed on to
the last stage beside the activations, so that there are two messages of one type between two stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.plan import Piece, Plan, Relation

WIDTH, HIDDEN, ROWS = 6, 10, 2
Forward = tuple[Value, tuple[Value, Value]]

#: What can be wrong, and which output shows it: REFUTED, with a witness.
REFUTED = {
    "messages swapped": "loss",
    "sent to the dp neighbour": "loss",
    "labels of another microbatch": "loss",
    "own input instead of the received one": "loss",
    "loss scaled by the wrong count": "loss",
    "loss of the last microbatch": "loss",
    "loss of one replica": "loss",
    "gradient overwritten instead of summed": "params.0.u",
    "gradient scaled by the wrong count": "params.0.u",
    "gradient reduced before the last microbatch": "params.0.u",
    "gradient not reduced over replicas": "params.0.u",
    "gradient summed over microbatches twice": "params.0.u",
    "activation saved of the first microbatch only": "params.0.u",
    "backward reads the updated weight": "params.0.u",
    "update skipped": "params.1.u",
}


#: Other ways to compute the same: PROVED.
RIGHT = (
    "rows of a microbatch far apart",
    "gradient reduced over replicas at every microbatch",
    "gradients stacked and added up",
    "loss averaged over microbatches",
    "activations computed again",
    "learning rate sent from stage to stage",
    "gradient reduced in shards",
    "last microbatch has a program of its own",
    "microbatches in reverse order",
)


@dataclass
class Stage:
    """One rank class under construction."""

    number: int
    b: ProgramBuilder
    weights: dict[str, Value] = field(default_factory=dict)
    lr: Value | None = None


def forward(b: ProgramBuilder, x: Value, u: Value, d: Value) -> Forward:
    h = x @ u
    return x + (h * b.logistic(h)) @ d, (x, h)


def backward(
    b: ProgramBuilder, g: Value, saved: tuple[Value, Value], u: Value, d: Value
) -> tuple[Value, Value, Value]:
    """Gradients of the block's input and of both weights."""
    x, h = saved
    s = b.logistic(h)
    gd = b.dot(h * s, g, contract=((0,), (0,)))
    gh = g @ d.T * (s + h * s * (1 - s))
    gu = b.dot(x, gh, contract=((0,), (0,)))
    return g + gh @ u.T, gu, gd


def specification(stages: int, batch: int) -> ProgramBuilder:
    b = ProgramBuilder()
    x, y = b.input("batch.x", f"f32[{batch},{WIDTH}]"), b.input("batch.y", f"f32[{batch},{WIDTH}]")
    lr = b.input("hyper.lr", "f32[]")
    us = [b.input(f"params.{i}.u", f"f32[{WIDTH},{HIDDEN}]") for i in range(stages)]
    ds = [b.input(f"params.{i}.d", f"f32[{HIDDEN},{WIDTH}]") for i in range(stages)]
    h, kept = x, []
    for u, d in zip(us, ds, strict=True):
        h, saved = forward(b, h, u, d)
        kept.append(saved)
    e = h - x * Fraction(1, 3) - y
    b.output("loss", (e * e).sum(0, 1) / (batch * WIDTH))
    g = e * Fraction(2, batch * WIDTH)
    for i in reversed(range(stages)):
        g, gu, gd = backward(b, g, kept[i], us[i], ds[i])
        b.output(f"params.{i}.u", us[i] - b.broadcast(lr, us[i].shape) * gu)
        b.output(f"params.{i}.d", ds[i] - b.broadcast(lr, ds[i].shape) * gd)
    return b


class Pipeline:
    """The plan's programs; ``bug`` is one of :data:`REFUTED` or :data:`RIGHT`, or empty."""

    def __init__(self, stages: int, replicas: int, microbatches: int, bug: str = "") -> None:
        self.count, self.replicas, self.microbatches, self.bug = stages, replicas, microbatches, bug
        self.mesh, self.time = {"pp": stages, "dp": replicas}, {"mb": microbatches}
        self.batch = ROWS * replicas * microbatches
        self.stages = [self._stage(s) for s in range(stages)]
        self.kept: list[tuple[Value, Value]] = []
        self._steps = 0

    def _stage(self, number: int) -> Stage:
        b = ProgramBuilder(self.mesh, box={"pp": (number, number + 1)}, time=self.time)
        stage = Stage(number, b)
        if self._has_lr(stage):
            stage.lr = b.input("hyper.lr", "f32[]")
        stage.weights["u"] = b.input(f"params.{number}.u", f"f32[{WIDTH},{HIDDEN}]")
        stage.weights["d"] = b.input(f"params.{number}.d", f"f32[{HIDDEN},{WIDTH}]")
        return stage

    def plan(self) -> Plan:
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if stage.lr is None and before.lr is not None:
                before.b.send(before.lr, 900 + stage.number, pp=stage.number)
                stage.lr = stage.b.recv("f32[]", 900 + stage.number, pp=before.number)
        self._forward()
        self._backward()
        classes = {f"c{s.number}": ({"pp": (s.number, s.number + 1)}, s.b.build()) for s in self.stages}
        if self.bug == "last microbatch has a program of its own":
            classes = {
                f"{name}{part}": (box | {"mb": run}, program)
                for name, (box, program) in classes.items()
                for part, run in (
                    ("", (0, self.microbatches - 1)),
                    ("_last", (self.microbatches - 1, self.microbatches)),
                )
            }

        def relations(given: bool) -> list[Relation]:
            found = self._relations(given)
            return list(map(twice, found)) if self.bug.startswith("last microbatch") else found

        return build_plan(
            name=f"pipeline-{self.count}x{self.replicas}x{self.microbatches}",
            mesh=self.mesh,
            time=self.time,
            specification=specification(self.count, self.batch).build(),
            classes=classes,
            inputs=relations(given=True),
            outputs=relations(given=False),
            given=["batch.x", "batch.y", "hyper.lr"],
        )

    def _has_lr(self, stage: Stage) -> bool:
        return stage.number == 0 or self.bug != "learning rate sent from stage to stage"

    def _forward(self) -> None:
        first, last = self.stages[0].b, self.stages[-1].b
        x = h = self._microbatch(first, "batch.x")
        for s, stage in enumerate(self.stages):
            h, saved = forward(stage.b, h, stage.weights["u"], stage.weights["d"])
            self.kept.append(self._saved(stage.b, saved))
            if s + 1 < self.count:
                numbers = (2 * s + 1, 2 * s) if self.bug == "messages swapped" else (2 * s, 2 * s + 1)
                own = self.bug == "own input instead of the received one" and s == 0
                carried = [self._message(s, s + 1, v, 2 * s + k, numbers[k]) for k, v in enumerate((h, x))]
                h, x = (carried[1], carried[1]) if own else carried
        y = self._microbatch(last, "batch.y", other=self.bug == "labels of another microbatch")
        self.error = h - x * Fraction(1, 3) - y

    def _microbatch(self, b: ProgramBuilder, name: str, other: bool = False) -> Value:
        """The rows of this microbatch, of those that the replica has."""
        whole, at = b.input(name, f"f32[{ROWS * self.microbatches},{WIDTH}]"), b.axis_index("mb")
        if self.bug == "rows of a microbatch far apart":
            return b.slice(whole, (at, 0), (ROWS, WIDTH), (self.microbatches, 1))
        other |= self.bug == "microbatches in reverse order"
        start = at.scale(-ROWS) + ROWS * (self.microbatches - 1) if other else at.scale(ROWS)
        return b.slice(whole, (start, 0), (ROWS, WIDTH))

    def _saved(self, b: ProgramBuilder, saved: tuple[Value, Value]) -> tuple[Value, Value]:
        if self.bug != "activation saved of the first microbatch only":
            return saved
        x, h = saved
        return self._of_run(b, x, 0), h

    def _of_run(self, b: ProgramBuilder, x: Value, run: int) -> Value:
        """A value of one run, at all runs."""
        self._steps += 1
        runs = b.all_gather(b.reshape(x, (1, *x.shape)), "mb", seq=10_000 + self._steps)
        return b.slice(runs, (run, *(0,) * len(x.shape)), (1, *x.shape)).reshape(*x.shape)

    def _message(self, source: int, target: int, x: Value, seq: int, received: int) -> Value:
        crossed = self.bug == "sent to the dp neighbour" and seq == 0
        dp = Affine.of(self.replicas - 1, {"dp": -1}) if crossed else Affine.symbol("dp")
        self.stages[source].b.send(x, seq, pp=target, dp=dp)
        other = dp if received == 0 else Affine.symbol("dp")
        return self.stages[target].b.recv(x.type, received, pp=source, dp=other)

    def _backward(self) -> None:
        last, e = self.stages[-1].b, self.error
        share = self.batch // self.replicas if self.bug == "loss scaled by the wrong count" else self.batch
        part = (e * e).sum(0, 1) / (share * WIDTH)
        if self.bug == "loss of the last microbatch":
            part = self._of_run(last, part, self.microbatches - 1)
        elif self.bug == "loss averaged over microbatches":
            part = last.all_reduce(part * self.microbatches, "mb", seq=5000) / self.microbatches
        else:
            part = last.all_reduce(part, "mb", seq=5000)
        loss = part * self.replicas
        if self.bug != "loss of one replica":
            loss = last.all_reduce(part, "dp", seq=5001)
        last.output("loss", loss)
        wrong = self.bug == "gradient scaled by the wrong count"
        g = e * Fraction(2, (self.batch // self.microbatches if wrong else self.batch) * WIDTH)
        for s in reversed(range(self.count)):
            stage = self.stages[s]
            u, d = stage.weights["u"], stage.weights["d"]
            if self.bug == "activations computed again":
                self.kept[s] = forward(stage.b, self.kept[s][0], u, d)[1]
            if self.bug == "backward reads the updated weight" and s == self.count - 1:
                gd = backward(stage.b, g, self.kept[s], u, d)[2]
                d = self._updated(stage, "d", gd, 7000)
            g, gu, gd = backward(stage.b, g, self.kept[s], u, d)
            for k, (name, grad) in enumerate({"u": gu, "d": gd}.items()):
                stage.b.output(f"params.{s}.{name}", self._updated(stage, name, grad, 1000 + 10 * s + k))
            if s:
                seq = 100 + s
                stage.b.send(g, seq, pp=s - 1)
                g = self.stages[s - 1].b.recv(g.type, seq, pp=s)

    def _updated(self, stage: Stage, name: str, grad: Value, seq: int) -> Value:
        """Accumulated over the runs, summed over the replicas, and a step of SGD."""
        b, p = stage.b, stage.weights[name]
        if self.bug == "update skipped" and stage.number == 1:
            return p
        if self.bug == "gradient overwritten instead of summed":
            total = self._of_run(b, grad, self.microbatches - 1)
        elif self.bug == "gradient reduced before the last microbatch":
            late = self._of_run(b, grad, self.microbatches - 1)
            early = b.all_reduce(grad, "mb", seq=seq) - late
            total = b.all_reduce(early, "dp", seq=seq + 2000) + late
        elif self.bug == "gradient reduced over replicas at every microbatch":
            total = b.all_reduce(b.all_reduce(grad, "dp", seq=seq + 2000), "mb", seq=seq)
        elif self.bug == "gradients stacked and added up":
            total = b.all_gather(b.reshape(grad, (1, *grad.shape)), "mb", seq=seq).sum(0)
        else:
            total = b.all_reduce(grad, "mb", seq=seq)
        if self.bug == "gradient summed over microbatches twice":
            total = b.all_reduce(total, "mb", seq=seq + 1000)
        apart = (
            "gradient not reduced over replicas",
            "gradient reduced before the last microbatch",
            "gradient reduced over replicas at every microbatch",
        )
        if self.bug == "gradient reduced in shards":
            total = b.all_gather(b.reduce_scatter(total, "dp", seq=seq + 2000), "dp", seq=seq + 3000)
        elif self.bug not in apart:
            total = b.all_reduce(total, "dp", seq=seq + 2000)
        assert stage.lr is not None
        return p - b.broadcast(stage.lr, p.shape) * total

    def _relations(self, given: bool) -> list[Relation]:
        """Of the inputs, or of the outputs: weights whole on their stage, rows of the batch per replica."""
        found = []
        shapes = {"u": (WIDTH, HIDDEN), "d": (HIDDEN, WIDTH)}
        for s in range(self.count):
            found += [whole(f"params.{s}.{n}", shape, [f"c{s}"]) for n, shape in shapes.items()]
        if not given:
            return [*found, whole("loss", (), [f"c{self.count - 1}"])]
        found.append(whole("hyper.lr", (), [f"c{s.number}" for s in self.stages if self._has_lr(s)]))
        rows = ROWS * self.microbatches
        z = (Affine.symbol("z0"), Affine.symbol("z1"))
        at = (Affine.of(0, {"dp": rows, "z0": 1}), z[1])
        for name, s in (("batch.x", 0), ("batch.y", self.count - 1)):
            found.append(Relation(name, name, (Piece(f"c{s}", (rows, WIDTH), z, at),)))
        return found


def twice(relation: Relation) -> Relation:
    """The same of the last microbatch's programs."""
    return replace(
        relation, pieces=tuple(q for p in relation.pieces for q in (p, replace(p, cls=f"{p.cls}_last")))
    )


def whole(name: str, shape: tuple[int, ...], classes: list[str]) -> Relation:
    """Replicated on all ranks of some classes."""
    z = tuple(Affine.symbol(f"z{i}") for i in range(len(shape)))
    return Relation(name, name, tuple(Piece(c, shape, z, z) for c in classes))


def pipeline(stages: int = 3, replicas: int = 2, microbatches: int = 4, bug: str = "") -> Plan:
    return Pipeline(stages, replicas, microbatches, bug).plan()
