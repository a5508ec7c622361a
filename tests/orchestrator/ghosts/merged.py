"""Attention on blocks of keys that are merged, each right plan with a wrong twin.

Rows of scores ``x`` are sharded; the values ``v`` of keys are on every rank.
"""

from __future__ import annotations

from collections.abc import Callable

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan
from certificates.plan.program import Program

from ..plans import pair

Twins = Callable[[bool], Plan]
TP = {"tp": 2}
ROWS, WHOLE = {"tp": Shard(0)}, {"tp": Replicate()}
KEYS, WIDTH = 6, 3


def over(b: ProgramBuilder, x: Value, like: Value) -> Value:
    """A number for each row, along the row."""
    return b.broadcast(x, like.shape, (0,))


def softmax(b: ProgramBuilder, x: Value) -> Value:
    e = b.exponential(x - over(b, b.reduce(x, (1,), "max"), x))
    return e / over(b, e.sum(1), x)


def inputs(b: ProgramBuilder, rows: int) -> tuple[Value, Value]:
    return b.input("x", f"f32[{rows},{KEYS}]"), b.input("v", f"f32[{KEYS},{WIDTH}]")


def attention(b: ProgramBuilder) -> None:
    x, v = inputs(b, 4)
    b.output("y", softmax(b, x) @ v)


def parts(x: Value, v: Value) -> list[tuple[Value, Value]]:
    """Two blocks of keys of three each."""
    return [(x[:, i : i + 3], v[i : i + 3, :]) for i in (0, 3)]


def block(b: ProgramBuilder, x: Value, v: Value) -> tuple[Value, Value]:
    """What a block gives, and the logarithm of its sum."""
    top = b.reduce(x, (1,), "max")
    lse = top + b.log(b.exponential(x - over(b, top, x)).sum(1))
    return b.exponential(x - over(b, lse, x)) @ v, lse


def by_logarithms(right: bool) -> Plan:
    """As flash attention's blocks are merged; wrong: by the other block's weight."""

    def plan(b: ProgramBuilder) -> None:
        (one, first), (two, second) = (block(b, *p) for p in parts(*inputs(b, 2)))
        gate = b.logistic(second - first if right else first - second)
        b.output("y", one - over(b, gate, one) * (one - two))

    return pair(TP, attention, plan, {"x": ROWS, "v": WHOLE}, {"y": ROWS})


def by_running_maxima(right: bool) -> Plan:
    """As textbooks have it; wrong: the sum is not scaled to the new maximum."""

    def plan(b: ProgramBuilder) -> None:
        (x, v), (z, w) = parts(*inputs(b, 2))
        top = b.reduce(x, (1,), "max")
        e = b.exponential(x - over(b, top, x))
        total, out = e.sum(1), e @ v
        new = b.maximum(top, b.reduce(z, (1,), "max"))
        e, scale = b.exponential(z - over(b, new, z)), b.exponential(top - new)
        total = (total * scale if right else total) + e.sum(1)
        out = out * over(b, scale, out) + e @ w
        b.output("y", out / over(b, total, out))

    return pair(TP, attention, plan, {"x": ROWS, "v": WHOLE}, {"y": ROWS})


def masked(right: bool) -> Plan:
    """A causal mask: the first rank's rows see one block only. Wrong: the second rank leaves out one, too."""

    def causal(b: ProgramBuilder, x: Value) -> Value:
        shape = ",".join(map(str, x.shape))
        seen = b.compare(b.iota(f"i64[{shape}]", 0), b.iota(f"i64[{shape}]", 1), "GE")
        return b.select(seen, x, b.constant("-inf", f"f32[{shape}]"))

    def spec(b: ProgramBuilder) -> None:
        x, v = b.input("x", f"f32[6,{KEYS}]"), b.input("v", f"f32[{KEYS},{WIDTH}]")
        b.output("y", softmax(b, causal(b, x)) @ v)

    def plan(b: ProgramBuilder, rank: int) -> None:
        (x, v), (z, w) = parts(b.input("x", f"f32[3,{KEYS}]"), b.input("v", f"f32[{KEYS},{WIDTH}]"))
        if rank == 0 or not right:
            b.output("y", block(b, causal(b, x), v)[0])
            return
        (one, first), (two, second) = block(b, x, v), block(b, causal(b, z), w)
        gate = b.logistic(second - first)
        b.output("y", one - over(b, gate, one) * (one - two))

    return by_rank(spec, plan)


def cut_and_joined(right: bool) -> Plan:
    """Blocks are merged for half of the rows at a time, and what they give is multiplied and summed behind
    that, as in a zigzag's backward pass. Wrong: the halves change places."""

    def spec(b: ProgramBuilder) -> None:
        x, v = b.input("x", f"f32[8,{KEYS}]"), b.input("v", f"f32[{KEYS},{WIDTH}]")
        g = b.input("g", f"f32[8,{WIDTH}]")
        b.output("y", (g * (softmax(b, x) @ v)).sum(1))

    def plan(b: ProgramBuilder) -> None:
        x, v = inputs(b, 4)
        g = b.input("g", f"f32[4,{WIDTH}]")
        (one, first), (two, second) = (block(b, *p) for p in parts(x, v))
        halves = []
        for rows in (slice(0, 2), slice(2, 4)):
            gate = b.logistic(second[rows] - first[rows])
            halves.append(one[rows, :] - over(b, gate, one[rows, :]) * (one[rows, :] - two[rows, :]))
        out = b.concatenate(halves if right else halves[::-1], 0)
        b.output("y", (g * out).sum(1))

    return pair(TP, spec, plan, {"x": ROWS, "v": WHOLE, "g": ROWS}, {"y": ROWS})


def by_rank(spec: Callable[[ProgramBuilder], None], plan: Callable[[ProgramBuilder, int], None]) -> Plan:
    """A plan whose two ranks run different programs; rows are sharded."""
    specification, classes = ProgramBuilder(), dict[str, tuple[dict[str, tuple[int, int]], Program]]()
    spec(specification)
    for rank in range(2):
        b = ProgramBuilder(TP)
        plan(b, rank)
        classes[f"c{rank}"] = {"tp": (rank, rank + 1)}, b.build()
    return build_plan(
        name="masked", mesh=TP, specification=specification.build(), classes=classes,
        inputs={"x": ROWS, "v": WHOLE}, outputs={"y": ROWS},
    )  # fmt: skip


MERGED: dict[str, Twins] = {f.__name__: f for f in (by_logarithms, by_running_maxima, masked, cut_and_joined)}
