"""Pipelines whose layers are functions at a slice: proved once, called by the classes of each stage.

A residual MLP, forward, backward, SGD; the specification is the plain model on the whole batch. Stages hold
`layers` layers each. With two `parts` the replicas of a stage are two rank classes, a function has two roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.plan import Function, Piece, Plan, Relation
from certificates.plan.program import Program
from tests.pipeline_plans import HIDDEN, ROWS, WIDTH, backward, forward

Box = Mapping[str, tuple[int, int]]
#: The stages before and after a stage: written so, messages of all stages are proved alike.
BEFORE, AFTER = (Affine.of(k, {"pp": 1}) for k in (-1, 1))


def bodies(b: ProgramBuilder, rows: int, reduced: bool) -> None:
    """The backward of a layer and its update; the rank's gradients are summed over runs and replicas."""
    g, x, h = (b.input(n, f"f32[{rows},{k}]") for n, k in (("g", WIDTH), ("x", WIDTH), ("h", HIDDEN)))
    u, d = b.input("u", f"f32[{WIDTH},{HIDDEN}]"), b.input("d", f"f32[{HIDDEN},{WIDTH}]")
    lr = b.input("lr", "f32[]")
    g, gu, gd = backward(b, g, (x, h), u, d)
    b.output("g", g)
    for name, weight, grad in (("u", u, gu), ("d", d, gd)):
        total = b.all_reduce(b.all_reduce(grad, "mb"), "dp") if reduced else grad
        b.output(name, weight - b.broadcast(lr, weight.shape) * total)


def ahead(b: ProgramBuilder, rows: int) -> None:
    """The forward of a layer, with what its backward reads."""
    x = b.input("x", f"f32[{rows},{WIDTH}]")
    u, d = b.input("u", f"f32[{WIDTH},{HIDDEN}]"), b.input("d", f"f32[{HIDDEN},{WIDTH}]")
    y, (_, h) = forward(b, x, u, d)
    b.output("y", y)
    b.output("h", h)


class Sliced:
    """A pipeline of `stages` with `layers` layers each; `bug` exchanges something."""

    def __init__(
        self,
        stages: int = 2,
        layers: int = 2,
        replicas: int = 2,
        microbatches: int = 3,
        parts: int = 1,
        bug: str = "",
    ) -> None:
        self.stages, self.layers, self.bug = stages, layers, bug
        self.mesh, self.time = {"pp": stages, "dp": replicas}, {"mb": microbatches}
        self.batch = ROWS * replicas * microbatches
        cuts = [replicas * i // parts for i in range(parts + 1)]
        self.parts = {f"r{i}": {"dp": (cuts[i], cuts[i + 1])} for i in range(parts)}
        self.functions = {"ahead": self._function(ahead), "back": self._function(bodies)}

    def _function(self, body: object) -> Function:
        def made(b: ProgramBuilder, rows: int, plan: bool) -> Program:
            ahead(b, rows) if body is ahead else bodies(b, rows, plan)
            return b.build()

        roles = {
            role: made(ProgramBuilder({"dp": self.mesh["dp"]}, time=self.time, box=box), ROWS, True)
            for role, box in self.parts.items()
        }
        return Function(made(ProgramBuilder(), self.batch, False), roles, ("pp",), self.parts)

    def specification(self) -> Program:
        b, count = ProgramBuilder(), self.stages * self.layers
        x, y = (b.input(f"batch.{n}", f"f32[{self.batch},{WIDTH}]") for n in "xy")
        lr = b.input("hyper.lr", "f32[]")
        us = [b.input(f"params.{i}.u", f"f32[{WIDTH},{HIDDEN}]") for i in range(count)]
        ds = [b.input(f"params.{i}.d", f"f32[{HIDDEN},{WIDTH}]") for i in range(count)]
        h, kept = x, []
        for i in range(count):
            out, inner = b.call("ahead", self.functions["ahead"].specification, i, h, us[i], ds[i])
            kept.append((h, inner))
            h = out
        w = b.input("params.head", f"f32[{WIDTH},{WIDTH}]")
        part, g, grad = self._loss(b, h, y, w)
        b.output("loss", part)
        b.output("params.head", w - b.broadcast(lr, w.shape) * grad)
        for i in reversed(range(count)):
            body = self.functions["back"].specification
            g, u, d = b.call("back", body, i, g, *kept[i], us[i], ds[i], lr)
            b.output(f"params.{i}.u", u)
            b.output(f"params.{i}.d", d)
        return b.build()

    def _loss(self, b: ProgramBuilder, h: Value, y: Value, w: Value) -> tuple[Value, Value, Value]:
        """The loss of these rows, and the gradients of their activations and of the head."""
        e = h @ w - y
        g = e * Fraction(2, self.batch * WIDTH)
        return (e * e).sum(0, 1) / (self.batch * WIDTH), g @ w.T, b.dot(h, g, contract=((0,), (0,)))

    def plan(self) -> Plan:
        classes: dict[str, tuple[Box, Program]] = {}
        for role, box in self.parts.items():
            for stage in range(self.stages):
                here = {"pp": (stage, stage + 1), **box}
                classes[f"c{stage}{role[1:] if len(self.parts) > 1 else ''}"] = (
                    here,
                    self._stage(stage, role, here),
                )
        return build_plan(
            name=f"sliced-{self.stages}x{self.layers}",
            mesh=self.mesh,
            time=self.time,
            specification=self.specification(),
            classes=classes,
            inputs=self._relations(True),
            outputs=self._relations(False),
            given=["batch.x", "batch.y", "hyper.lr"],
            functions=self.functions,
        )

    def _stage(self, stage: int, role: str, box: Box) -> Program:
        b = ProgramBuilder(self.mesh, time=self.time, box=box)
        first, last = stage == 0, stage == self.stages - 1
        lr = b.input("hyper.lr", "f32[]")
        own = range(stage * self.layers, (stage + 1) * self.layers)
        us = {i: b.input(f"params.{i}.u", f"f32[{WIDTH},{HIDDEN}]") for i in own}
        ds = {i: b.input(f"params.{i}.d", f"f32[{HIDDEN},{WIDTH}]") for i in own}
        h = (
            self._microbatch(b, "batch.x")
            if first
            else b.recv(f"f32[{ROWS},{WIDTH}]", 100 + stage, pp=BEFORE)
        )
        kept = {}
        for i in own:
            swapped = self.bug == "weights of another layer" and i == 1
            j = 0 if swapped else i
            out, inner = b.call("ahead", self.functions["ahead"].classes[role], i, h, us[j], ds[i])
            kept[i] = (h, inner)
            h = out
        if last:
            w = b.input("params.head", f"f32[{WIDTH},{WIDTH}]")
            part, g, grad = self._loss(b, h, self._microbatch(b, "batch.y"), w)
            b.output("loss", b.all_reduce(b.all_reduce(part, "mb", seq=5000), "dp", seq=5001))
            grad = b.all_reduce(b.all_reduce(grad, "mb", seq=5002), "dp", seq=5003)
            b.output("params.head", w - b.broadcast(lr, w.shape) * grad)
        else:
            b.send(h, 101 + stage, pp=AFTER)
            g = b.recv(h.type, 201 + stage, pp=AFTER)
        for i in reversed(own):
            g, u, d = b.call("back", self.functions["back"].classes[role], i, g, *kept[i], us[i], ds[i], lr)
            b.output(f"params.{i}.u", u)
            b.output(f"params.{i}.d", d)
        if not first:
            b.send(g, 200 + stage, pp=BEFORE)
        return b.build()

    def _microbatch(self, b: ProgramBuilder, name: str) -> Value:
        whole = b.input(name, f"f32[{ROWS * self.time['mb']},{WIDTH}]")
        return b.slice(whole, (b.axis_index("mb").scale(ROWS), 0), (ROWS, WIDTH))

    def _classes(self, stage: int) -> list[str]:
        return [f"c{stage}{role[1:] if len(self.parts) > 1 else ''}" for role in self.parts]

    def _relations(self, given: bool) -> list[Relation]:
        found, every = [], [c for s in range(self.stages) for c in self._classes(s)]
        for i in range(self.stages * self.layers):
            for name, shape in (("u", (WIDTH, HIDDEN)), ("d", (HIDDEN, WIDTH))):
                found.append(whole(f"params.{i}.{name}", shape, self._classes(i // self.layers)))
        found.append(whole("params.head", (WIDTH, WIDTH), self._classes(self.stages - 1)))
        if not given:
            return [*found, whole("loss", (), self._classes(self.stages - 1))]
        found.append(whole("hyper.lr", (), every))
        rows = ROWS * self.time["mb"]
        z = (Affine.symbol("z0"), Affine.symbol("z1"))
        at = (Affine.of(0, {"dp": rows, "z0": 1}), z[1])
        for name, s in (("batch.x", 0), ("batch.y", self.stages - 1)):
            pieces = tuple(Piece(c, (rows, WIDTH), z, at) for c in self._classes(s))
            found.append(Relation(name, name, pieces))
        return found


def whole(name: str, shape: tuple[int, ...], classes: list[str]) -> Relation:
    z = tuple(Affine.symbol(f"z{i}") for i in range(len(shape)))
    return Relation(name, name, tuple(Piece(c, shape, z, z) for c in classes))


def dense(stages: int = 2) -> Plan:
    """y = x w0 w1 ..., a layer per stage, rows of the weights over `tp`: the function has a form, a group and
    a sum over ranks."""
    mesh = {"pp": stages, "tp": 2}
    spec, body, role = ProgramBuilder(), ProgramBuilder(), ProgramBuilder({"tp": 2})
    for b, rows in ((body, 4), (role, 2)):
        x, w = b.input("x", "f32[3,4]"), b.input("w", f"f32[{rows},4]")
        if b is role:
            x = b.slice(x, (0, b.axis_index("tp").scale(2)), (3, 2))
        b.output("y", b.all_reduce(x @ w, "tp") if b is role else x @ w)
    layer = Function(body.build(), {"r": role.build()}, ("pp",), {"r": {}})
    x = spec.input("x", "f32[3,4]")
    classes, inputs = {}, []
    for s in range(stages):
        (x,) = spec.call("layer", layer.specification, s, x, spec.input(f"w{s}", "f32[4,4]"))
        b = ProgramBuilder(mesh, box={"pp": (s, s + 1)})
        h = b.recv("f32[3,4]", s, pp=BEFORE) if s else b.input("x", "f32[3,4]")
        (h,) = b.call("layer", layer.classes["r"], s, h, b.input(f"w{s}", "f32[2,4]"))
        if s + 1 < stages:
            b.send(h, s + 1, pp=AFTER)
        else:
            b.output("y", h)
        classes[f"c{s}"] = {"pp": (s, s + 1)}, b.build()
        z = (Affine.symbol("z0"), Affine.symbol("z1"))
        at = (Affine.of(0, {"tp": 2, "z0": 1}), z[1])
        inputs.append(Relation(f"w{s}", f"w{s}", (Piece(f"c{s}", (2, 4), z, at),)))
    spec.output("y", x)
    return build_plan(
        name="dense",
        mesh=mesh,
        specification=spec.build(),
        classes=classes,
        inputs=[whole("x", (3, 4), ["c0"]), *inputs],
        outputs=[whole("y", (3, 4), [f"c{stages - 1}"])],
        given=["x"],
        constants=[f"w{s}" for s in range(stages)],
        functions={"layer": layer},
    )


def chosen(square: bool, masked: bool = False) -> Plan:
    """Two stages that hand a function a number under a root and a mask: what one of them hands in is a
    square, and leaves a number in each row; the other need not."""
    mesh = {"pp": 2}
    spec, body, role = ProgramBuilder(), ProgramBuilder(), ProgramBuilder({})
    for b in (body, role):
        p, keep = b.input("p", "f32[2,3]"), b.input("keep", "i1[2,3]")
        b.output("y", b.sqrt(p))
        row = b.select(keep, p, b.constant("-inf", p.type))
        b.output("m", b.reduce(row, (1,), "max"))
    layer = Function(body.build(), {"r": role.build()}, ("pp",), {"r": {}})

    def stage(b: ProgramBuilder, s: int, of: Program) -> None:
        x = b.input(f"x{s}", "f32[2,3]")
        p = x * x if square or s == 0 else x + 0
        least = 3 if masked and s == 1 else 1
        keep = b.compare(b.iota("i64[2,3]", 1), b.constant(least, "i64[2,3]"), "GE")
        for name, value in zip(("y", "m"), b.call("layer", of, s, p, keep), strict=True):
            b.output(f"{name}{s}", value)

    classes = {}
    for s in (0, 1):
        stage(spec, s, layer.specification)
        b = ProgramBuilder(mesh, box={"pp": (s, s + 1)})
        stage(b, s, layer.classes["r"])
        classes[f"c{s}"] = {"pp": (s, s + 1)}, b.build()
    shapes = {"x": (2, 3), "y": (2, 3), "m": (2,)}
    return build_plan(
        name="chosen",
        mesh=mesh,
        specification=spec.build(),
        classes=classes,
        inputs=[whole(f"x{s}", shapes["x"], [f"c{s}"]) for s in (0, 1)],
        outputs=[whole(f"{n}{s}", shapes[n], [f"c{s}"]) for s in (0, 1) for n in "ym"],
        given=["x0", "x1"],
        functions={"layer": layer},
    )
