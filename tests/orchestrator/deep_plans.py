"""Plans of many equal layers: sequence of Megatron blocks over ``tp``, data parallel over ``dp``."""

from __future__ import annotations

from certificates.build import ProgramBuilder, Value, build_plan
from certificates.plan import Plan
from certificates.relation import Replicate, Shard

MESH = {"dp": 2, "tp": 2}
BATCH, WIDTH, INNER = 4, 3, 6


def _block(b: ProgramBuilder, x: Value, w: Value, v: Value, summed: str | None) -> Value:
    """``x + f(x w) v`` with a function of several ops, so that a layer is worth a function."""
    h = x @ w
    for _ in range(14):
        h = b.tanh(h) * b.logistic(h)
    out = h @ v
    return x + (b.all_reduce(out, summed) if summed else out)


def deep(layers: int, wrong: int | None = None) -> Plan:
    """``layers`` blocks and the sum of the last one; block ``wrong`` of the plan lacks its reduction."""
    spec, b = ProgramBuilder(), ProgramBuilder(MESH, {"tp": ("tp",), "dp": ("dp",)})
    for p, rows, inner in ((spec, BATCH, INNER), (b, BATCH // 2, INNER // 2)):
        x = p.input("batch.x", f"f32[{rows},{WIDTH}]")
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
