"""Pairs that a weaker reduction rule calls equal (most agree with one or two representatives); all differ."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from .plans import Inputs, Trap, trap

ROWS = {"dp": Shard(0)}
B = ProgramBuilder


def _clipped(b: B, g: Value) -> Value:
    """Gradient clipping: `g` times the lesser of 1 and 1 / norm."""
    norm = b.sqrt((g * g).sum())
    return g * b.minimum(b.constant(1, norm.type), 1 / norm).like(g)


def _mean(x: Value, n: int) -> Value:
    return x.sum(0) / n


def _spread(b: B, x: Value, n: int) -> Value:
    return b.broadcast(x, (n,), ())


def _pairs(b: B, x: Value, n: int) -> tuple[Value, Value]:
    """x_i and x_j as matrices."""
    return b.broadcast(x, (n, n), (0,)), b.broadcast(x, (n, n), (1,))


def _same_tokens(b: B, t: Value, x: Value, y: Value) -> Value:
    """The sum over i, j of [t_i = t_j] x_i y_j."""
    same = b.compare(*_pairs(b, t, 4), "EQ").convert("f32")
    left, right = _pairs(b, x, 4)[0], _pairs(b, y, 4)[1]
    return (same * left * right).sum()


def _squares_over_sum(x: Value, n: int, power: int) -> Value:
    r = 1 / x.sum()
    y = x * r.like(x)
    return (y * y * y if power == 3 else y * y).sum() * (n * n if power == 3 else 3 * n)


def _rms(b: B, x: Value, divisor: int) -> Value:
    square = (x * x).sum(1) / divisor + 0.001
    return x * b.rsqrt(square).like(x, 0)


def _triangle(b: B, n: int, direction: str) -> Value:
    rows, columns = b.iota(f"i64[{n},{n}]", 0), b.iota(f"i64[{n},{n}]", 1)
    return b.compare(rows, columns, direction).convert("f32")


def _few(b: B, p: Value, x: Value, y: Value) -> Value:
    """x where the mask has between 1 and 3 positions, else y."""
    count = p.convert("f32").sum()
    few = b.logical_and(b.compare(count, 0, "GT"), b.compare(count, 4, "LT"))
    return b.select(few, x, y)


def _cancelled(b: B, a: Value, x: Value) -> Value:
    """x times p / p; p = sum exp(a) - 8 exp(a_i) is zero where all a are equal."""
    e = b.exponential(a)
    p = _spread(b, e.sum(), 8) - e * 8
    return x * (p / p)


def _one_hot_total(b: B, t: Value, x: Value) -> Value:
    """x_i times the number of v < 4 with t_i = v: zero for the tokens 4 to 7."""
    values = b.iota("i64[8,4]", 1)
    return x * b.compare(b.broadcast(t, (8, 4), (0,)), values, "EQ").convert("f32").sum(1)


def _hidden_power_sums(b: B, a: Value) -> Value:
    """24 e_4 of three variables, from power sums of ten; every sum hides in a maximum (ADR 0010)."""
    powers = [a, a * a, a * a * a, a * a * a * a]
    p1, p2, p3, p4 = (b.maximum(s, s) for s in (p.sum() * 3 / 10 for p in powers))
    return p1 * p1 * p1 * p1 - p1 * p1 * p2 * 6 + p2 * p2 * 3 + p1 * p3 * 8 - p4 * 6


def _other_class() -> Plan:
    """An all-reduce to which the last rank contributes twice its share."""
    mesh = {"dp": 4}
    specification = B()
    specification.output("y", specification.input("x", "f32[8,3]").sum(0))
    classes = {}
    for name, box, factor in (("most", (0, 3), 1), ("last", (3, 4), 2)):
        b = B(mesh, box={"dp": box})
        b.output("y", b.all_reduce(b.input("x", "f32[2,3]").sum(0) * factor, "dp"))
        classes[name] = ({"dp": box}, b.build())
    return build_plan(name="trap", mesh=mesh, specification=specification.build(), classes=classes,
                      inputs={"x": ROWS}, outputs={"y": {}})  # fmt: skip


def _offsets() -> Plan:
    """Slices that start at 5 r at the first ranks, and at 14 instead of 15 at the last."""
    mesh = {"dp": 4}
    specification = B()
    specification.output("y", specification.input("x", "f32[20]") * 2)
    classes = {}
    for name, box in (("traced", (0, 3)), ("last", (3, 4))):
        b = B(mesh, box={"dp": box})
        start = b.axis_index("dp").scale(5) if name == "traced" else Affine(14)
        b.output("y", b.slice(b.input("x", "f32[20]"), [start], [5]) * 2)
        classes[name] = ({"dp": box}, b.build())
    return build_plan(name="trap", mesh=mesh, specification=specification.build(), classes=classes,
                      inputs={"x": {}}, outputs={"y": ROWS})  # fmt: skip


def _indefinite(b: B, x: Value) -> Value:
    """x times exp(-inf - (-inf))."""
    low = b.constant("-inf", x.type)
    return x * b.exponential(low - low)


VECTOR: Inputs = {"a": ("f32[4]", {})}
SQUARE: Inputs = {"x": ("f32[4,4]", {})}

COUNTEREXAMPLES: dict[str, Trap] = {
    "clip per rank, then average": trap(
        {"g": ("f32[8,4]", ROWS)},
        lambda b, g: _clipped(b, _mean(g, 8)),
        lambda b, g: b.all_reduce(_clipped(b, _mean(g, 4)), "dp") / 2,
    ),
    "mean of a function": trap(
        {"a": ("f32[8]", {})},
        lambda b, a: b.exponential(a).sum() / 8,
        lambda b, a: b.exponential(a.sum() / 8),
    ),
    "maximum against mean": trap(
        {"a": ("f32[8,3]", ROWS)},
        lambda b, a: b.reduce(a, (0,), "max"),
        lambda b, a: b.all_reduce(a.sum(0), "dp") / 8,
    ),
    "sum of f(sum a - 2 a_i) against sum of f(2 a_j)": trap(
        VECTOR,
        lambda b, a: b.tanh(_spread(b, a.sum(), 4) - a * 2).sum(),
        lambda b, a: b.tanh(a * 2).sum(),
    ),
    "maximum of f(sum a - 2 a_i) against maximum of f(2 a_j)": trap(
        VECTOR,
        lambda b, a: b.reduce(b.tanh(_spread(b, a.sum(), 4) - a * 2), (0,), "max"),
        lambda b, a: b.reduce(b.tanh(a * 2), (0,), "max"),
    ),
    "maximum of sum a - 2 a_i against maximum of 2 a_j": trap(
        VECTOR,
        lambda b, a: b.reduce(_spread(b, a.sum(), 4) - a * 2, (0,), "max"),
        lambda b, a: b.reduce(a * 2, (0,), "max"),
    ),
    "8 exp(sum a) against sums of exp(2 a_i + 2 a_j)": trap(
        VECTOR,
        lambda b, a: b.exponential(a.sum()) * 8,
        lambda b, a: (
            b.exponential(_pairs(b, a * 2, 4)[0] + _pairs(b, a * 2, 4)[1]).sum()
            - b.exponential(a * 4).sum() * 2
        ),
    ),
    "equal tokens": trap(
        {"t": ("i64[4]", {}), "x": ("f32[4]", {}), "z": ("f32[4]", {})},
        lambda b, t, x, z: _same_tokens(b, t, x, z),
        lambda b, t, x, z: (x * z).sum() * 2,
        ranges={"t": (0, 10)},
    ),
    "a count of mask positions": trap(
        {"x": ("f32[]", {})},
        lambda b, x: x * _triangle(b, 8, "GE").sum(),
        lambda b, x: x * 48,
    ),
    "a select on a count": trap(
        {"p": ("i1[8]", {}), "x": ("f32[]", {}), "z": ("f32[]", {})},
        lambda b, p, x, z: z * 1,
        lambda b, p, x, z: _few(b, p, x, z),
    ),
    "p recip(p) for p = sum e - (n/m) e_0": trap(
        {"a": ("f32[8]", {}), "x": ("f32[8]", {})},
        lambda b, a, x: x * 1,
        lambda b, a, x: _cancelled(b, a, x),
    ),
    "a_i + a_j against the sum of two": trap(
        {"a": ("f32[2]", {})},
        lambda b, a: _pairs(b, a, 2)[0] + _pairs(b, a, 2)[1],
        lambda b, a: b.broadcast(a.sum(), (2, 2), ()),
    ),
    "a function of a flattened and of a flattened transposed tensor": trap(
        SQUARE,
        lambda b, x: b.tanh(x.reshape(16)),
        lambda b, x: b.tanh(x.T.reshape(16)),
    ),
    "exp of an indefinite form": trap(
        {"x": ("f32[4]", {})},
        lambda b, x: x * 1,
        lambda b, x: _indefinite(b, x),
    ),
    "sqrt(p)^4 against n sum x^4": trap(
        VECTOR,
        lambda b, a: b.power(b.sqrt((a * a).sum()), b.constant(4, "f32[]")),
        lambda b, a: (a * a * a * a).sum() * 4,
    ),
    "products of sqrt(p) against n sum x^4": trap(
        VECTOR,
        lambda b, a: b.sqrt((a * a).sum()) * b.sqrt((a * a).sum()) * (a * a).sum(),
        lambda b, a: (a * a * a * a).sum() * 4,
    ),
    "n^2 sum x^3 r^3 + 2 against 3 n sum x^2 r^2": trap(
        VECTOR,
        lambda b, a: _squares_over_sum(a, 4, 3) + 2,
        lambda b, a: _squares_over_sum(a, 4, 2),
    ),
    "squared before an all-reduce": trap(
        {"x": ("f32[8,4]", ROWS)},
        lambda b, x: x.sum(0) * x.sum(0),
        lambda b, x: b.all_reduce(x.sum(0) * x.sum(0), "dp"),
    ),
    "a one-hot total": trap(
        {"t": ("i64[8]", {}), "x": ("f32[8]", {})},
        lambda b, t, x: x * 1,
        lambda b, t, x: _one_hot_total(b, t, x),
        ranges={"t": (0, 8)},
    ),
    "p_ij p_ji = 0 at distinct indices": trap(
        {"a": ("f32[4]", {}), "c": ("f32[4]", {})},
        lambda b, a, c: (
            _triangle(b, 4, "LE") * _triangle(b, 4, "GE") * _pairs(b, a, 4)[0] * _pairs(b, c, 4)[1]
        ).sum(),
        lambda b, a, c: (a * c).sum() * 0,
    ),
    "RMSNorm without its mean": trap(
        {"x": ("f32[4,8]", ROWS)},
        lambda b, x: _rms(b, x, 8),
        lambda b, x: _rms(b, x, 1),
        out=ROWS,
    ),
    "power sums hidden in maxima": trap(
        {"a": ("f32[10]", {})},
        lambda b, a: _hidden_power_sums(b, a),
        lambda b, a: a.sum() * 0,
    ),
    "one rank class computes something else": Trap(_other_class),
    "offsets that fit the traced ranks": Trap(_offsets),
}
