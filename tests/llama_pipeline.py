"""Llama 3 as a pipeline written by hand: the whole step, against the plain model on the whole batch.

Stages are rank classes along `pp`; weights lie over `tp` as Megatron cuts them, replicas over `dp`,
microbatches over the time axis `mb`. Tokens are embedded on the first stage; the last one has the final norm,
the head, whose logits it gathers, and the loss. A layer is three functions at a slice: forward; backward,
which computes the forward again, and adds gradients up over microbatches and replicas; and AdamW. Gradients
are clipped by the norm of all of them, whose squares lie on all stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard, relate
from certificates.plan.plan import Function, Piece, Plan, RankClass, Relation
from certificates.plan.program import Program

BEFORE, AFTER = (Affine.of(k, {"pp": 1}) for k in (-1, 1))
EPS = Fraction(1, 100000)
#: Of a layer's weights the dimension that lies over `tp`, if any.
CUTS = {"n1": None, "wq": 1, "wk": 1, "wv": 1, "wo": 0, "n2": None, "w1": 1, "w3": 1, "w2": 0}
#: Of those on the first and on the last stage.
ENDS = {"embed": None, "norm": None, "head": 1}
MOMENTS = ("m", "v")


@dataclass(frozen=True)
class Sizes:
    """The model, the mesh, and how many microbatches of `rows` sequences a replica has."""

    layers: int
    stages: int
    microbatches: int
    replicas: int = 64
    tensor: int = 8
    rows: int = 1
    sequence: int = 8192
    width: int = 16384
    heads: int = 128
    groups: int = 8
    head: int = 128
    hidden: int = 53248
    vocabulary: int = 128256

    @property
    def batch(self) -> int:
        return self.rows * self.microbatches * self.replicas

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, q, kv = self.width, self.heads * self.head, self.groups * self.head
        layer = {"n1": (d,), "wq": (d, q), "wk": (d, kv), "wv": (d, kv), "wo": (q, d), "n2": (d,)}
        return layer | {"w1": (d, self.hidden), "w3": (d, self.hidden), "w2": (self.hidden, d)}

    def ends(self) -> dict[str, tuple[int, ...]]:
        d, v = self.width, self.vocabulary
        return {"embed": (v, d), "norm": (d,), "head": (d, v)}

    def own(self, stage: int) -> range:
        """The layers of a stage; the last ones have one less where they do not divide."""
        most, more = divmod(self.layers, self.stages)
        first = stage * most + min(stage, more)
        return range(first, first + most + (stage < more))


LLAMA = {"405b": {}, "small": {"replicas": 2, "tensor": 2, "rows": 1, "sequence": 6, "width": 8, "heads": 4,
                               "groups": 2, "head": 2, "hidden": 12, "vocabulary": 10}}  # fmt: skip


class Side:
    """One program of the specification (`ranked` is false) or of ranks, and what both have in common."""

    def __init__(self, b: ProgramBuilder, sizes: Sizes, ranked: bool, stage: int = 0) -> None:
        self.b, self.n, self.ranked = b, sizes, ranked
        self.numbers = itertools.count(10_000 + 100 * stage)
        self.rows = sizes.rows if ranked else sizes.batch
        self.over = sizes.tensor if ranked else 1

    def local(self, shape: tuple[int, ...], cut: int | None) -> tuple[int, ...]:
        return tuple(n // self.over if d == cut else n for d, n in enumerate(shape))

    def weights(self, prefix: str = "", what: str = "") -> dict[str, Value]:
        return {
            k: self.b.input(f"{prefix}{k}{what}", _f32(self.local(shape, CUTS[k])))
            for k, shape in self.n.shapes().items()
        }

    def add_up(self, x: Value) -> Value:
        """Over tensor-parallel ranks."""
        return self.b.all_reduce(x, "tp", seq=next(self.numbers)) if self.ranked else x

    def over_batch(self, g: Value) -> Value:
        """A gradient over microbatches and replicas."""
        if not self.ranked:
            return g
        own = self.b.all_reduce(g, "mb", seq=next(self.numbers))
        return self.b.all_reduce(own, "dp", seq=next(self.numbers))

    def gradient(self, x: Value, g: Value) -> Value:
        """Of the weight in x @ w."""
        return self.b.dot(x, g, contract=((0, 1), (0, 1)))

    def norm(self, x: Value, w: Value) -> tuple[Value, Value]:
        """RMS norm, and the reciprocal of the root mean square."""
        r = self.b.rsqrt((x * x).sum(2) / self.n.width + EPS)
        return x * r.like(x, 0, 1) * w.like(x, 2), r

    def norm_back(self, g: Value, x: Value, r: Value, w: Value) -> tuple[Value, Value]:
        """Gradients of what is normalised and of the weight."""
        wide = r.like(x, 0, 1)
        inner = g * w.like(x, 2)
        mean = (inner * x).sum(2) / self.n.width
        return wide * inner - x * (mean * r * r * r).like(x, 0, 1), (g * x * wide).sum(0, 1)

    def rope(self, x: Value, cos: Value, sin: Value, back: bool = False) -> Value:
        """Halves of the last dimension turned; positions are dimension 1."""
        half = self.n.head // 2
        cut = tuple(slice(None) for _ in x.shape[:-1])
        a, c = x[(*cut, slice(0, half))], x[(*cut, slice(half, None))]
        dims = (1, len(x.shape) - 1)
        co, si = cos.like(a, *dims), sin.like(a, *dims)
        turned = (a * co + c * si, c * co - a * si) if back else (a * co - c * si, a * si + c * co)
        return self.b.concatenate(turned, len(x.shape) - 1)

    def forward(
        self, x: Value, w: Mapping[str, Value], cos: Value, sin: Value
    ) -> tuple[Value, dict[str, Value]]:
        b, n, s = self.b, self.n, self.n.sequence
        kv, share = n.groups // self.over, n.heads // n.groups
        k: dict[str, Value] = {"x": x}
        k["h"], k["r1"] = self.norm(x, w["n1"])
        q = (k["h"] @ w["wq"]).reshape(self.rows, s, kv, share, n.head)
        k["q"] = self.rope(q, cos, sin)
        k["k"] = self.rope((k["h"] @ w["wk"]).reshape(self.rows, s, kv, n.head), cos, sin)
        k["v"] = (k["h"] @ w["wv"]).reshape(self.rows, s, kv, n.head)
        scores = b.dot(k["q"], k["k"], contract=((4,), (3,)), batch=((0, 2), (0, 2))) * Fraction(1, n.head)
        square = f"i64[{s},{s}]"
        seen = b.broadcast(b.compare(b.iota(square, 0), b.iota(square, 1), "GE"), scores.shape, (2, 4))
        masked = b.select(seen, scores, b.constant("-inf", scores.type))
        e = b.exponential(masked - b.reduce(masked, (4,), "max").like(masked, 0, 1, 2, 3))
        k["p"] = e / e.sum(4).like(e, 0, 1, 2, 3)
        out = b.dot(k["p"], k["v"], contract=((4,), (1,)), batch=((0, 1), (0, 2)))
        k["o"] = out.transpose(0, 2, 1, 3, 4).reshape(self.rows, s, kv * share * n.head)
        k["x1"] = x + self.add_up(k["o"] @ w["wo"])
        k["h2"], k["r2"] = self.norm(k["x1"], w["n2"])
        k["gate"], k["up"] = k["h2"] @ w["w1"], k["h2"] @ w["w3"]
        k["sig"] = b.logistic(k["gate"])
        k["act"] = k["gate"] * k["sig"] * k["up"]
        return k["x1"] + self.add_up(k["act"] @ w["w2"]), k

    def backward(
        self, g: Value, k: Mapping[str, Value], w: Mapping[str, Value], cos: Value, sin: Value
    ) -> tuple[Value, dict[str, Value]]:
        b, n, s = self.b, self.n, self.n.sequence
        kv, share = n.groups // self.over, n.heads // n.groups
        grads = {"w2": self.gradient(k["act"], g)}
        act = g @ w["w2"].T
        gate = act * k["up"] * (k["sig"] + k["gate"] * k["sig"] * (1 - k["sig"]))
        up = act * k["gate"] * k["sig"]
        grads |= {"w1": self.gradient(k["h2"], gate), "w3": self.gradient(k["h2"], up)}
        inner, grads["n2"] = self.norm_back(
            self.add_up(gate @ w["w1"].T + up @ w["w3"].T), k["x1"], k["r2"], w["n2"]
        )
        g = g + inner
        grads["wo"] = self.gradient(k["o"], g)
        out = (g @ w["wo"].T).reshape(self.rows, s, kv, share, n.head).transpose(0, 2, 1, 3, 4)
        p = k["p"]
        dp = b.dot(out, k["v"], contract=((4,), (3,)), batch=((0, 1), (0, 2)))
        dv = b.dot(p, out, contract=((2, 3), (2, 3)), batch=((0, 1), (0, 1))).transpose(0, 2, 1, 3)
        ds = p * (dp - (dp * p).sum(4).like(dp, 0, 1, 2, 3)) * Fraction(1, n.head)
        dq = b.dot(ds, k["k"], contract=((4,), (1,)), batch=((0, 1), (0, 2))).transpose(0, 2, 1, 3, 4)
        dk = b.dot(ds, k["q"], contract=((2, 3), (1, 3)), batch=((0, 1), (0, 2))).transpose(0, 2, 1, 3)
        width = kv * n.head
        dq = self.rope(dq, cos, sin, back=True).reshape(self.rows, s, width * share)
        dk = self.rope(dk, cos, sin, back=True).reshape(self.rows, s, width)
        dv = dv.reshape(self.rows, s, width)
        total = dq @ w["wq"].T + dk @ w["wk"].T + dv @ w["wv"].T
        grads |= {c: self.gradient(k["h"], d) for c, d in (("wq", dq), ("wk", dk), ("wv", dv))}
        inner, grads["n1"] = self.norm_back(self.add_up(total), k["x"], k["r1"], w["n1"])
        return g + inner, {name: self.over_batch(grads[name]) for name in CUTS}

    def squares(self, grads: Mapping[str, Value], cuts: Mapping[str, int | None]) -> Value:
        """The sum of the squares of gradients, of which some lie over tensor-parallel ranks."""
        each = {name: (g * g).sum() for name, g in grads.items()}
        return _sum([s if cuts[name] is None else self.add_up(s) for name, s in each.items()])

    def adam(
        self, p: Value, g: Value, m: Value, v: Value, h: Mapping[str, Value]
    ) -> tuple[Value, Value, Value]:
        """AdamW with clipped gradients; `h` has the scale, the rate, and what corrects the moments."""
        b = self.b
        g = g * b.broadcast(h["scale"], g.shape)
        m, v = m * Fraction(9, 10) + g * Fraction(1, 10), v * Fraction(19, 20) + g * g * Fraction(1, 20)
        root = b.sqrt(v / b.broadcast(h["c2"], v.shape)) + Fraction(1, 10**8)
        lr = b.broadcast(h["lr"], p.shape)
        return p - lr * (m / b.broadcast(h["c1"], m.shape)) / root - lr * p * Fraction(1, 10), m, v

    def scale(self, total: Value) -> Value:
        norm = self.b.sqrt(total)
        return self.b.minimum(self.b.constant(1, norm.type), 1 / (norm + Fraction(1, 10**6)))

    def embedding(self, tokens: Value) -> Value:
        """One row per token, true where its number is."""
        shape = (self.rows, self.n.sequence, self.n.vocabulary)
        numbers = self.b.broadcast(self.b.iota(f"i64[{shape[2]}]", 0), shape, (2,))
        return self.b.compare(self.b.broadcast(tokens, shape, (0, 1)), numbers, "EQ")

    def loss(
        self, x: Value, labels: Value, norm: Value, head: Value
    ) -> tuple[Value, Value, dict[str, Value]]:
        """The mean over all tokens, and the gradients of what comes in, of the final norm and of the head."""
        b, n = self.b, self.n
        h, r = self.norm(x, norm)
        logits = h @ head
        if self.ranked:
            logits = b.all_gather(logits, "tp", dim=2, seq=next(self.numbers))
        e = b.exponential(logits - b.reduce(logits, (2,), "max").like(logits, 0, 1))
        total = e.sum(2)
        hot = b.convert(self.embedding(labels), "f32")
        tokens = n.batch * n.sequence
        top = b.reduce(logits, (2,), "max")
        part = (b.log(total) + top - (hot * logits).sum(2)).sum(0, 1) / tokens
        g = (e / total.like(e, 0, 1) - hot) / tokens
        if self.ranked:
            own = n.vocabulary // n.tensor
            g = b.slice(g, (0, 0, b.axis_index("tp").scale(own)), (self.rows, n.sequence, own))
        inner, dn = self.norm_back(self.add_up(g @ head.T), x, r, norm)
        grads = {"norm": dn, "head": self.gradient(h, g)}
        return self.over_batch(part), inner, {k: self.over_batch(v) for k, v in grads.items()}

    # The bodies of the functions

    def ahead(self) -> Program:
        x = self.b.input("x", _f32((self.rows, self.n.sequence, self.n.width)))
        w, (cos, sin) = self.weights(), self.angles()
        self.b.output("y", self.forward(x, w, cos, sin)[0])
        return self.b.build()

    def back(self) -> Program:
        g, x = (self.b.input(c, _f32((self.rows, self.n.sequence, self.n.width))) for c in "gx")
        w, (cos, sin) = self.weights(), self.angles()
        g, grads = self.backward(g, self.forward(x, w, cos, sin)[1], w, cos, sin)
        self.b.output("g", g)
        for name, grad in grads.items():
            self.b.output(name, grad)
        self.b.output("squares", self.squares(grads, CUTS))
        return self.b.build()

    def step(self) -> Program:
        sets = [self.weights(what=what) for what in ("", ".g", ".m", ".v")]
        h = {k: self.b.input(k, "f32[]") for k in ("scale", "lr", "c1", "c2")}
        for name in CUTS:
            for what, value in zip(("", ".m", ".v"), self.adam(*(s[name] for s in sets), h), strict=True):
                self.b.output(f"{name}{what}", value)
        return self.b.build()

    def angles(self) -> tuple[Value, Value]:
        cos, sin = (self.b.input(c, _f32((self.n.sequence, self.n.head // 2))) for c in ("cos", "sin"))
        return cos, sin


def _f32(shape: tuple[int, ...]) -> str:
    return f"f32[{','.join(map(str, shape))}]"


def _sum(values: list[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


class Llama:
    """The plan."""

    def __init__(self, sizes: Sizes, bug: str = "") -> None:
        self.n, self.bug = sizes, bug
        self.mesh = {"pp": sizes.stages, "dp": sizes.replicas, "tp": sizes.tensor}
        self.time = {"mb": sizes.microbatches}
        inner = {a: n for a, n in self.mesh.items() if a != "pp"}
        self.functions = {
            name: Function(
                getattr(Side(ProgramBuilder(), sizes, False), name)(),
                {"r": getattr(Side(ProgramBuilder(inner, time=self.time), sizes, True), name)()},
                ("pp",),
                {"r": {}},
            )
            for name in ("ahead", "back", "step")
        }

    def plan(self) -> Plan:
        classes = {
            f"c{s}": ({"pp": (s, s + 1)}, self._program(s, {"pp": (s, s + 1)})) for s in range(self.n.stages)
        }
        inputs, outputs = self._relations(True), self._relations(False)
        return build_plan(
            name=f"llama-{self.n.layers}l-pp{self.n.stages}-tp{self.n.tensor}-dp{self.n.replicas}",
            mesh=self.mesh,
            time=self.time,
            specification=self._program(None, None),
            classes=classes,
            inputs=inputs,
            outputs=outputs,
            ranges={f"batch.{name}": (0, self.n.vocabulary) for name in ("tokens", "labels")},
            given=["batch.labels", "batch.tokens", *(f"hyper.{k}" for k in ("lr", "c1", "c2"))],
            constants=["buffers.cos", "buffers.sin"],
            functions=self.functions,
        )

    def _program(self, stage: int | None, box: Mapping[str, tuple[int, int]] | None) -> Program:
        ranked = stage is not None
        b = ProgramBuilder(self.mesh, time=self.time, box=box) if ranked else ProgramBuilder()
        side, n = Side(b, self.n, ranked, stage or 0), self.n
        first, last = stage in (None, 0), stage in (None, n.stages - 1)
        layers = range(n.layers) if stage is None else n.own(stage)
        bodies = {f: g.classes["r"] if ranked else g.specification for f, g in self.functions.items()}
        rate = {k: b.input(f"hyper.{k}", "f32[]") for k in ("lr", "c1", "c2")}
        angles = [b.input(f"buffers.{c}", _f32((n.sequence, n.head // 2))) for c in ("cos", "sin")]
        ends = {k: b.input(f"params.{k}", _f32(side.local(n.ends()[k], ENDS[k])))
                for k in ENDS if (first if k == "embed" else last)}  # fmt: skip
        weights = {i: side.weights(f"params.{i}.") for i in layers}
        xs: dict[int, Value] = {}
        if first:
            hot = b.convert(side.embedding(self._tokens(side, "batch.tokens")), "f32")
            x = b.gather(ends["embed"], self.tokens)
        else:
            x = b.recv(_f32((n.rows, n.sequence, n.width)), 1, pp=BEFORE)
        for i in layers:
            xs[i] = x
            (x,) = b.call("ahead", bodies["ahead"], i, x, *weights[i].values(), *angles)
        grads: dict[str, Value] = {}
        if last:
            labels = self._tokens(side, "batch.labels")
            loss, g, grads = side.loss(x, labels, ends["norm"], ends["head"])
            b.output("loss", loss)
        else:
            b.send(x, 1, pp=AFTER)
            g = b.recv(x.type, 2, pp=AFTER)
        squares, own = [], dict[int, tuple[Value, ...]]()
        for i in reversed(layers):
            g, *found = b.call("back", bodies["back"], i, g, xs[i], *weights[i].values(), *angles)
            own[i] = tuple(found[:-1])
            squares.append(found[-1])
        if first:
            grads["embed"] = side.over_batch(b.dot(hot, g, contract=((0, 1), (0, 1))))
        else:
            b.send(g, 2, pp=BEFORE)
        if grads:
            squares.append(side.squares(grads, ENDS))
        total = _sum(squares)
        if ranked and self.bug != "norm clipped per stage":
            total = b.all_reduce(total, "pp", seq=9000)
        h = {"scale": side.scale(total), **rate}
        for k, p in ends.items():
            moments = [b.input(f"opt.{k}.{what}", p.type) for what in MOMENTS]
            new = side.adam(p, grads[k], *moments, h)
            for name, value in zip((f"params.{k}", *(f"opt.{k}.{w}" for w in MOMENTS)), new, strict=True):
                b.output(name, value)
        for i in layers:
            moments = [
                b.input(f"opt.{i}.{k}.{what}", w.type) for what in MOMENTS for k, w in weights[i].items()
            ]
            results = b.call("step", bodies["step"], i, *weights[i].values(), *own[i], *moments, *h.values())
            for j, name in enumerate(_names(i)):
                b.output(name, results[j])
        return b.build()

    def _tokens(self, side: Side, name: str) -> Value:
        """The token numbers of this microbatch, of those that the replica has."""
        n, b = self.n, side.b
        if not side.ranked:
            self.tokens = b.input(name, f"i64[{n.batch},{n.sequence}]")
            return self.tokens
        whole = b.input(name, f"i64[{n.rows * n.microbatches},{n.sequence}]")
        self.tokens = b.slice(whole, (b.axis_index("mb").scale(n.rows), 0), (n.rows, n.sequence))
        return self.tokens

    def _relations(self, given: bool) -> list[Relation]:
        n, stages = self.n, range(self.n.stages)
        axes = ProgramBuilder(self.mesh, time=self.time)._mesh
        assert axes is not None
        every = [RankClass(f"c{s}", {"mb": (0, n.microbatches), "pp": (s, s + 1), "dp": (0, n.replicas),
                                     "tp": (0, n.tensor)}, Program({}, (), {})) for s in stages]  # fmt: skip
        found: list[Relation] = []

        def lies(name: str, shape: tuple[int, ...], cut: int | None, at: list[int]) -> None:
            placement = {} if cut is None else {"tp": Shard(cut)}
            found.append(relate(name, shape, placement, axes, tuple(every[s] for s in at)))

        for k, shape in n.ends().items():
            at = [0] if k == "embed" else [n.stages - 1]
            for name in (f"params.{k}", *(f"opt.{k}.{w}" for w in MOMENTS)):
                lies(name, shape, ENDS[k], at)
        for s in stages:
            for i in n.own(s):
                for k, shape in n.shapes().items():
                    for name in (f"params.{i}.{k}", *(f"opt.{i}.{k}.{w}" for w in MOMENTS)):
                        lies(name, shape, CUTS[k], [s])
        if not given:
            return [*found, Relation("loss", "loss", (Piece(f"c{n.stages - 1}", (), (), ()),))]
        for k in ("lr", "c1", "c2"):
            lies(f"hyper.{k}", (), None, list(stages))
        for c in ("cos", "sin"):
            lies(f"buffers.{c}", (n.sequence, n.head // 2), None, list(stages))
        rows = n.rows * n.microbatches
        z = (Affine.symbol("z0"), Affine.symbol("z1"))
        at = (Affine.of(0, {"dp": rows, "z0": 1}), z[1])
        for name, s in (("batch.tokens", 0), ("batch.labels", n.stages - 1)):
            found.append(Relation(name, name, (Piece(f"c{s}", (rows, n.sequence), z, at),)))
        return found


def _names(i: int) -> list[str]:
    """The results of a layer's step."""
    return [n for k in CUTS for n in (f"params.{i}.{k}", *(f"opt.{i}.{k}.{w}" for w in MOMENTS))]


def llama(
    layers: int = 4, stages: int = 4, microbatches: int = 4, model: str = "small", bug: str = ""
) -> Plan:
    return Llama(Sizes(layers, stages, microbatches, **LLAMA[model]), bug).plan()
