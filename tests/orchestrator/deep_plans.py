"""Plans of many equal layers: sequence of Megatron blocks over ``tp``, data parallel over ``dp``."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Piece, Plan, Relation

MESH = {"dp": 2, "tp": 2}
BATCH, WIDTH, INNER = 4, 3, 6


def _block(b: ProgramBuilder, x: Value, w: Value, v: Value, summed: str | None) -> Value:
    """``x + f(x w) v`` with a function of several ops, so that a layer is worth a function."""
    h = x @ w
    for _ in range(14):
        h = b.tanh(h) * b.logistic(h)
    out = h @ v
    return x + (b.all_reduce(out, summed) if summed else out)


def deep(layers: int, wrong: int | None = None, cast: str = "") -> Plan:
    """``layers`` blocks and the sum of the last one; block ``wrong`` of the plan lacks its reduction.

    ``cast``: the first block is given a cast of its input, in the ``plan`` or in ``both`` programs.
    """
    spec, b = ProgramBuilder(), ProgramBuilder(MESH, {"tp": ("tp",), "dp": ("dp",)})
    for p, rows, inner in ((spec, BATCH, INNER), (b, BATCH // 2, INNER // 2)):
        lower = cast == "both" or (cast == "plan" and p is b)
        x = p.input("batch.x", f"{'bf16' if lower else 'f32'}[{rows},{WIDTH}]")
        x = p.convert(x, "f32") if lower else x
        for k in range(layers):
            w = p.input(f"params.layers.{k}.w", f"f32[{WIDTH},{inner}]")
            v = p.input(f"params.layers.{k}.v", f"f32[{inner},{WIDTH}]")
            x = _block(p, x, w, v, "tp" if p is b and k != wrong else None)
            p.output(f"norms.layers.{k}", p.all_reduce(x.sum(0, 1), "dp") if p is b else x.sum(0, 1))
        p.output("y", x)
    rows = {"dp": Shard(0), "tp": Replicate()}
    inputs = {"batch.x": rows}
    outputs = {"y": rows}
    for k in range(layers):
        inputs |= {f"params.layers.{k}.w": {"dp": Replicate(), "tp": Shard(1)}}
        inputs |= {f"params.layers.{k}.v": {"dp": Replicate(), "tp": Shard(0)}}
        outputs |= {f"norms.layers.{k}": {"dp": Replicate(), "tp": Replicate()}}
    return build_plan(
        name=f"deep-{layers}", mesh=MESH, specification=spec.build(), classes=b.build(), inputs=inputs,
        outputs=outputs,
    )  # fmt: skip


def ragged(layers: int) -> Plan:
    """Features of 6 as 4 and 2 over ``tp``: the two rank classes gather over ``dp``, each by itself."""
    spec, features = ProgramBuilder(), {"c0": 4, "c1": 2}
    classes = {c: ProgramBuilder(MESH, {"dp": ("dp",)}) for c in features}
    for n, p in enumerate((spec, *classes.values())):
        whole = [*features.values()][n - 1] if n else sum(features.values())
        x = p.input("batch.x", f"f32[{BATCH},{whole}]")
        for k in range(layers):
            w = p.input(f"params.layers.{k}.w", f"f32[{whole // 2 if n else whole}]")
            x = x * p.broadcast(p.all_gather(w, "dp", seq=2 * k + n) if n else w, x.shape, (1,))
            for _ in range(14):
                x = p.tanh(x) * p.logistic(x)
        p.output("y", x)
    row, column = Affine.symbol("z0"), Affine.symbol("z1")
    rows = tuple(
        Piece(c, (BATCH, n), (row, column), (row, column + before))
        for (c, n), before in zip(features.items(), (0, 4), strict=True)
    )
    parts = tuple(
        Piece(c, (n // 2,), (row,), (row + Affine.symbol("dp").scale(n // 2) + before,))
        for (c, n), before in zip(features.items(), (0, 4), strict=True)
    )
    names = [f"params.layers.{k}.w" for k in range(layers)]
    return build_plan(
        name=f"ragged-{layers}", mesh=MESH, specification=spec.build(),
        classes={c: ({"tp": (i, i + 1)}, p.build()) for i, (c, p) in enumerate(classes.items())},
        inputs=[Relation("batch.x", "batch.x", rows), *(Relation(n, n, parts) for n in names)],
        outputs=[Relation("y", "y", rows)],
    )  # fmt: skip


def clipped(layers: int, wrong: str = "", order: str = "as the specification") -> Plan:
    """An update of two parameters a layer, scaled by the norm of all; ``w`` is sharded, ``g`` is not.

    The plan stacks the norms of all shards; ``g`` counts on every rank, and so a half there on each.
    ``wrong`` leaves something out: the half in layer 1, the sum over ``tp``, or layer 1's norm of ``w``, for
    which it takes the one of layer 0.
    """
    spec, b = ProgramBuilder(), ProgramBuilder({"tp": 2}, {"tp": ("tp",)})
    for p, columns in ((spec, INNER), (b, INNER // 2)):
        params = [
            (
                p.input(f"params.layers.{k}.w", f"f32[{WIDTH},{columns}]"),
                p.input(f"params.layers.{k}.g", f"f32[{WIDTH}]"),
            )
            for k in range(layers)
        ]
        grads = [tuple(_gradient(p, x) for x in pair) for pair in params]
        squares, root = [[(g * g).sum(*range(len(g.shape))) for g in pair] for pair in grads], p.sqrt
        norms = []
        for k, (of_w, of_g) in enumerate(squares):
            half = p is b and not (wrong == "half" and k == 1)
            norms.append(root(squares[0][0] if p is b and wrong == "layer" and k == 1 else of_w))
            norms.append(root(of_g) / root(p.constant(2, "f32[]")) if half else root(of_g))
        if p is b and order == "reversed":
            norms.reverse()
        stack = p.concatenate([n.reshape(1) for n in norms], 0)
        total = stack * stack
        if p is b and wrong != "sum":
            total = p.all_reduce(total, "tp")
        total = root(total) * root(total)
        scale = p.minimum(1 / (root(total.sum(0)) + 1), p.constant(1, "f32[]"))
        for k, (pair, of_pair) in enumerate(zip(params, grads, strict=True)):
            for name, x, g in zip(("w", "g"), pair, of_pair, strict=True):
                p.output(f"params.layers.{k}.{name}", x - g * p.broadcast(scale, g.shape))
    names = [f"params.layers.{k}.{name}" for k in range(layers) for name in ("w", "g")]
    placed = {n: {"tp": Shard(1) if n.endswith("w") else Replicate()} for n in names}
    return build_plan(
        name=f"clipped-{layers}", mesh={"tp": 2}, specification=spec.build(), classes=b.build(),
        inputs=placed, outputs=placed,
    )  # fmt: skip


def _gradient(b: ProgramBuilder, x: Value) -> Value:
    for _ in range(9):
        x = b.tanh(x) * b.logistic(x)
    return x


def rooted(layers: int) -> Plan:
    """The sum of what ``layers`` exponentials give; the plan squares its root."""
    spec, b = ProgramBuilder(), ProgramBuilder({"tp": 2}, {"tp": ("tp",)})
    names = [f"params.layers.{k}.w" for k in range(layers)]
    for p in (spec, b):
        parts = [p.exponential(_update(p, p.input(name, f"f32[{WIDTH}]"))) for name in names]
        total = sum(parts[1:], parts[0])
        root = p.sqrt(total)
        p.output("y", root * root if p is b else total)
    whole = {"tp": Replicate()}
    return build_plan(
        name=f"rooted-{layers}", mesh={"tp": 2}, specification=spec.build(), classes=b.build(),
        inputs=dict.fromkeys(names, whole), outputs={"y": whole},
    )  # fmt: skip


VOCABULARY = 8


def framed(layers: int, late: bool = True) -> Plan:
    """Blocks between a vocabulary-parallel embedding and a masked loss, then an update of each block.

    The tokens are inputs with a range, without which the embedding has no proof. ``late``: the loss is summed
    over ``dp`` at the end of the step.
    """
    spec, b = ProgramBuilder(), ProgramBuilder(MESH, {"tp": ("tp",), "dp": ("dp",)})
    for p, rows, inner in ((spec, BATCH, INNER), (b, BATCH // 2, INNER // 2)):
        tokens = p.input("batch.tokens", f"i64[{rows}]")
        part = VOCABULARY // (2 if p is b else 1)
        table = p.input("params.table", f"f32[{part},{WIDTH}]")
        if p is b:
            start = p.constant(p.axis_index("tp").scale(part), tokens.type)
            here = p.logical_and(p.compare(tokens, start, "GE"), p.compare(tokens - start, part, "LT"))
            place = p.select(here, tokens - start, p.constant(0, tokens.type))
            own = p.gather(table, place) * p.broadcast(p.convert(here, "f32"), (rows, WIDTH), (0,))
            x = p.all_reduce(own, "tp")
        else:
            x = p.gather(table, tokens)
        weights = [p.input(f"params.layers.{k}.w", f"f32[{WIDTH},{inner}]") for k in range(layers)]
        for k, w in enumerate(weights):
            v = p.input(f"params.layers.{k}.v", f"f32[{inner},{WIDTH}]")
            x = _block(p, x, w, v, "tp" if p is b else None)
        counted = p.compare(tokens, 3, "NE")
        loss = p.select(counted, p.log(p.exponential(x).sum(1)), p.constant(0, f"f32[{rows}]")).sum(0)
        if p is b and not late:
            loss = p.all_reduce(loss, "dp")
        for k, w in enumerate(weights):
            p.output(f"params.layers.{k}.w", _update(p, w))
        p.output("loss", p.all_reduce(loss, "dp") if p is b and late else loss)
    return build_plan(
        name=f"framed-{layers}", mesh=MESH, specification=spec.build(), classes=b.build(),
        inputs={
            "batch.tokens": {"dp": Shard(0), "tp": Replicate()},
            "params.table": {"dp": Replicate(), "tp": Shard(0)},
            **{f"params.layers.{k}.w": {"dp": Replicate(), "tp": Shard(1)} for k in range(layers)},
            **{f"params.layers.{k}.v": {"dp": Replicate(), "tp": Shard(0)} for k in range(layers)},
        },
        outputs={
            "loss": {"dp": Replicate(), "tp": Replicate()},
            **{f"params.layers.{k}.w": {"dp": Replicate(), "tp": Shard(1)} for k in range(layers)},
        },
        ranges={"batch.tokens": (0, VOCABULARY)},
    )  # fmt: skip


def _update(b: ProgramBuilder, x: Value) -> Value:
    """Ops that do not repeat among themselves."""
    for digit in "31415926535897932384626433832795028841971":
        x = (b.tanh, b.logistic, b.sine, b.cosine)[int(digit) % 4](x)
    return x
