"""Sums over ranks that run different programs: what lies on several pipeline stages, or on one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.plan import Piece, Plan, Relation
from certificates.plan.program import Program

WIDTH = 3


def square(b: ProgramBuilder, x: Value) -> Value:
    return (x * x).sum()


def clipped(stages: int = 3, per: int = 2, bug: str = "", stacked: bool = False, tensor: int = 1) -> Plan:
    """A step of SGD with gradients clipped by the norm of all of them; each stage has `per` weights, whose
    gradients are an input times the weight, and their rows lie over `tp`."""
    mesh = {"pp": stages, "tp": tensor}
    count = stages * per
    spec = ProgramBuilder()
    step(spec, range(count), lambda b, total: total, stacked, WIDTH * tensor)
    classes: dict[str, tuple[Mapping[str, tuple[int, int]], Program]] = {}
    for s in range(stages):
        b = ProgramBuilder(mesh, box={"pp": (s, s + 1)})

        def over(b: ProgramBuilder, total: Value) -> Value:
            if bug != "norm of the rows of one rank":
                total = b.all_reduce(total, "tp", seq=100)
            if bug == "norm clipped per stage":
                return total
            return b.all_reduce(total, "pp", seq=101)

        own = range(s * per, (s + 1) * per)
        step(b, own, over, stacked, WIDTH, root_first=bug == "norms added, not squares")
        classes[f"c{s}"] = {"pp": (s, s + 1)}, b.build()
    z = (Affine.symbol("z0"), Affine.symbol("z1"))
    at = (Affine.of(0, {"tp": WIDTH, "z0": 1}), z[1])

    def lies(name: str, s: int) -> Relation:
        return Relation(name, name, (Piece(f"c{s}", (WIDTH, WIDTH), z, at),))

    params = [lies(f"{n}.{i}", i // per) for i in range(count) for n in ("w", "g")]
    every = tuple(Piece(f"c{s}", (), (), ()) for s in range(stages))
    return build_plan(
        name="clipped",
        mesh=mesh,
        specification=spec.build(),
        classes=classes,
        inputs=params,
        outputs=[*params[::2], Relation("norm", "norm", every)],
        given=[f"g.{i}" for i in range(count)],
    )


def step(
    b: ProgramBuilder,
    own: range,
    over: Callable[[ProgramBuilder, Value], Value],
    stacked: bool,
    rows: int,
    root_first: bool = False,
) -> None:
    ws = {
        i: (b.input(f"w.{i}", f"f32[{rows},{WIDTH}]"), b.input(f"g.{i}", f"f32[{rows},{WIDTH}]")) for i in own
    }
    grads = {i: g * w for i, (w, g) in ws.items()}
    if stacked:
        parts = [b.sqrt(square(b, g)).reshape(1) for g in grads.values()]
        norms = b.concatenate(parts, 0)
        total = (norms * norms).sum(0)
    else:
        squares = [square(b, g) for g in grads.values()]
        total = squares[0]
        for other in squares[1:]:
            total = total + other
    norm = over(b, b.sqrt(total)) if root_first else b.sqrt(over(b, total))
    b.output("norm", norm)
    scale = b.minimum(b.constant(1, norm.type), 1 / (norm + Fraction(1, 1000000)))
    for i, (w, _) in ws.items():
        b.output(f"w.{i}", w - b.broadcast(scale, w.shape) * grads[i])


def last_stage_loss(stages: int = 3, microbatches: int = 4, bug: str = "") -> Plan:
    """The loss is on the last stage; the others have zeros, and it is summed over the stages."""
    mesh, time = {"pp": stages, "dp": 2}, {"mb": microbatches}
    rows = 2
    batch = rows * microbatches * 2
    spec = ProgramBuilder()
    x = spec.input("x", f"f32[{batch},{WIDTH}]")
    spec.output("loss", square(spec, x) / batch)
    classes: dict[str, tuple[Mapping[str, tuple[int, int]], Program]] = {}
    for s in range(stages):
        b = ProgramBuilder(mesh, time=time, box={"pp": (s, s + 1)})
        if s == stages - 1 or (bug == "loss counted twice" and s == 0):
            own = b.input("x", f"f32[{rows * microbatches},{WIDTH}]")
            part = square(b, b.slice(own, (b.axis_index("mb").scale(rows), 0), (rows, WIDTH))) / batch
        else:
            part = b.constant(0, "f32[]")
        total = b.all_reduce(b.all_reduce(part, "mb", seq=1), "dp", seq=2)
        b.output("loss", b.all_reduce(total, "pp", seq=3))
        classes[f"c{s}"] = {"pp": (s, s + 1)}, b.build()
    z = (Affine.symbol("z0"), Affine.symbol("z1"))
    at = (Affine.of(0, {"dp": rows * microbatches, "z0": 1}), z[1])
    holders = [s for s in range(stages) if s == stages - 1 or (bug == "loss counted twice" and s == 0)]
    pieces = tuple(Piece(f"c{s}", (rows * microbatches, WIDTH), z, at) for s in holders)
    return build_plan(
        name="last-stage-loss",
        mesh=mesh,
        time=time,
        specification=spec.build(),
        classes=classes,
        inputs=[Relation("x", "x", pieces)],
        outputs=[Relation("loss", "loss", tuple(Piece(f"c{s}", (), (), ()) for s in range(stages)))],
        given=["x"],
    )


def first_rank_term(bug: str = "") -> Plan:
    """A penalty on the weights that rank 0 alone adds to its share of the loss."""
    mesh = {"dp": 4}
    spec = ProgramBuilder()
    x, w = spec.input("x", f"f32[8,{WIDTH}]"), spec.input("w", f"f32[{WIDTH}]")
    spec.output("loss", square(spec, x * w.like(x, 1)) / 8 + square(spec, w) * Fraction(1, 10))
    classes: dict[str, tuple[Mapping[str, tuple[int, int]], Program]] = {}
    for name, box in (("first", (0, 1)), ("rest", (1, 4))):
        b = ProgramBuilder(mesh, box={"dp": box})
        x, w = b.input("x", f"f32[2,{WIDTH}]"), b.input("w", f"f32[{WIDTH}]")
        part = square(b, x * w.like(x, 1)) / 8
        if name == "first" or bug == "every rank adds the term":
            part = part + square(b, w) * Fraction(1, 10)
        b.output("loss", b.all_reduce(part, "dp", seq=1))
        classes[name] = {"dp": box}, b.build()
    z = (Affine.symbol("z0"), Affine.symbol("z1"))
    both = ("first", "rest")
    at = (Affine.of(0, {"dp": 2, "z0": 1}), z[1])
    return build_plan(
        name="first-rank-term",
        mesh=mesh,
        specification=spec.build(),
        classes=classes,
        inputs=[
            Relation("x", "x", tuple(Piece(c, (2, WIDTH), z, at) for c in both)),
            Relation("w", "w", tuple(Piece(c, (WIDTH,), z[:1], z[:1]) for c in both)),
        ],
        outputs=[Relation("loss", "loss", tuple(Piece(c, (), (), ()) for c in both))],
        given=["x", "w"],
    )
