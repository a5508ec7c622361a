"""Mistakes that tests at tiny or equal sizes overlook, each with its correct twin."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Shard
from certificates.plan.plan import Group, Plan

from .plans import Body, Trap, plan, trap

B = ProgramBuilder
ROWS, COLUMNS = {"dp": Shard(0)}, {"dp": Shard(1)}
SQUARE = {"x": ("f32[4,4]", {}), "w": ("f32[4,4]", COLUMNS)}


def _softmax(b: B, x: Value, dim: int) -> Value:
    kept = 1 - dim
    e = b.exponential(x - b.reduce(x, (dim,), "max").like(x, kept))
    return e / e.sum(dim).like(x, kept)


def _heads(b: B, x: Value, perm: tuple[int, ...]) -> Value:
    """Heads split off and moved to the front, as before attention: [row, head, unit]."""
    return b.tanh(x.reshape(x.shape[0], 4, 4).transpose(*perm))


def _rotated(b: B, q: Value, angle: Value, swapped: bool) -> Value:
    """Rotary embedding of pairs (first half, second half)."""
    half = q.shape[1] // 2
    cosine, sine = b.cosine(angle), b.sine(angle)
    if swapped:
        cosine, sine = sine, cosine
    one, two = q[:, :half], q[:, half:]
    return b.concatenate([one * cosine - two * sine, two * cosine + one * sine], 1)


def _masked(b: B, x: Value, v: Value, direction: str) -> Value:
    rows, columns = b.iota("i64[4,4]", 0), b.iota("i64[4,4]", 1)
    kept = b.select(b.compare(rows, columns, direction), x, b.constant("-inf", x.type))
    return _softmax(b, kept, 1) @ v


def _lookup(b: B, table: Value, tokens: Value, late: int) -> Value:
    """A vocabulary-parallel lookup; rank r holds the rows from 5 r, and believes from 5 (r + late)."""
    first = b.constant(b.axis_index("dp").scale(5) + 5 * late, tokens.type)
    own = tokens - first
    inside = b.logical_and(b.compare(own, 0, "GE"), b.compare(own, 5, "LT"))
    rows = b.gather(table, b.select(inside, own, b.constant(0, own.type)))
    kept = b.select(b.broadcast(inside, rows.shape, (0,)), rows, b.constant(0, rows.type))
    return b.all_reduce(kept, "dp")


def _unequal(weighted: bool) -> Plan:
    """The mean over ten rows, of which three ranks hold 4, 4 and 2."""
    mesh = {"dp": 3}
    specification = B()
    specification.output("y", specification.input("x", "f32[10,3]").sum(0) / 10)
    classes = {}
    for name, box, rows in (("full", (0, 2), 4), ("last", (2, 3), 2)):
        b = B(mesh, box={"dp": box})
        total = b.input("x", f"f32[{rows},3]").sum(0)
        part = total / 10 if weighted else total / rows / 3
        b.output("y", b.all_reduce(part, "dp"))
        classes[name] = ({"dp": box}, b.build())
    return build_plan(name="trap", mesh=mesh, specification=specification.build(), classes=classes,
                      inputs={"x": ROWS}, outputs={"y": {}})  # fmt: skip


def _interleaved(minor: str) -> Plan:
    """Rows `3 rep + dp`, each weighted with a number of its own; the ranks of the last dp hold fewer columns.

    So the rows of a rank class are no range: 0, 1, 3 and 4, or 2 and 5. A rank takes the weight of row
    `2 dp + rep` if `minor` is rep.
    """
    mesh = {"rep": 2, "dp": 3}
    specification = B()
    x, w, c = (specification.input(n, t) for n, t in (("x", "f32[6,4]"), ("w", "f32[4,5]"), ("c", "f32[6]")))
    h = specification.tanh(x @ w)
    specification.output("y", (h * c.like(h, 0)).sum(0))
    classes = {}
    for name, box, columns in (("full", (0, 2), 2), ("last", (2, 3), 1)):
        b = B(mesh, {"all": ("rep", "dp"), "shards": ("dp",)}, box={"dp": box})
        x, w, c = (b.input(n, t) for n, t in (("x", "f32[1,4]"), ("w", f"f32[4,{columns}]"), ("c", "f32[6]")))
        padded = w if columns == 2 else b.pad(w, (0, 0), (0, 1))
        h = b.tanh(x @ b.all_gather(padded, "shards", 1)[:, :5])
        rep, dp = b.axis_index("rep"), b.axis_index("dp")
        row = rep.scale(3) + dp if minor == "dp" else dp.scale(2) + rep
        b.output("y", b.all_reduce((h * b.slice(c, (row,), (1,)).like(h, 0)).sum(0), "all"))
        classes[name] = ({"dp": box}, b.build())
    return build_plan(name="trap", mesh=mesh, specification=specification.build(), classes=classes,
                      inputs={"x": {"rep": Shard(0), "dp": Shard(0)}, "w": {"dp": Shard(1)}, "c": {}},
                      outputs={"y": {}}, groups={"all": ("rep", "dp"), "shards": ("dp",)})  # fmt: skip


def _gathered(group: Group) -> Plan:
    return plan(
        {"x": ("f32[4,3]", ROWS)},
        lambda b, x: b.tanh(x),
        lambda b, x: b.tanh(b.all_gather(x, "g")),
        groups={"g": group},
    )


def _twice_sharded(groups: dict[str, Group | tuple[str, ...]]) -> Plan:
    """Rows over dp, then over tp; gathered back over one group of all ranks."""
    return plan(
        {"x": ("f32[8,3]", {"dp": Shard(0), "tp": Shard(0)})},
        lambda b, x: b.tanh(x),
        lambda b, x: b.tanh(b.all_gather(x, "g")),
        mesh={"dp": 2, "tp": 2},
        groups=groups,
    )


def _summed(group: Group | tuple[str, ...]) -> Plan:
    """A sum over tp; one group is wrong at a single rank of each list."""
    return plan(
        {"x": ("f32[8,3]", {"dp": Shard(0), "tp": Shard(0)})},
        lambda b, x: b.tanh(x).reshape(2, 4, 3).sum(1),
        lambda b, x: b.all_reduce(b.tanh(x).sum(0), "g").reshape(1, 3),
        mesh={"dp": 2, "tp": 2},
        out={"dp": Shard(0)},
        groups={"g": group},
    )


def _commutator(x: Value, y: Value) -> Value:
    z = x @ y - y @ x
    return z @ z


def _rms(b: B, x: Value, divisor: int) -> Value:
    return x * b.rsqrt((x * x).sum(1) / divisor + 0.001).like(x, 0)


def _column(b: B, bias: Value, dim: int) -> Value:
    """A bias of shape [1, 4] added to a square: along its columns, or squeezed and along its rows."""
    if dim == 1:
        return b.broadcast(bias, (4, 4), (0, 1))
    return b.broadcast(bias.reshape(4), (4, 4), (0,))


def _matmul(b: B, x: Value, w: Value) -> Value:
    return x @ w


BOTH = {"dp": Shard(0), "tp": Shard(1)}


def _square(x: Value) -> Value:
    return (x * x).sum()


def _stacked_norm(b: B, g: Value, h: Value, c: Value) -> Value:
    """The norm of three tensors as the norm of their norms, as PyTorch has it."""
    norms = b.concatenate([b.sqrt(_square(x)).reshape(1) for x in (g, h, c)], 0)
    return b.sqrt(_square(norms))


def _reduced_norm(b: B, g: Value, h: Value, c: Value, *, counted: bool) -> Value:
    """The same with one reduction; `c`, which all ranks hold, is added after it, or before."""
    cut, whole = _square(g) + _square(h), _square(c)
    if counted:
        cut, whole = cut + whole, b.constant(0, whole.type)
    return b.sqrt(b.all_reduce(b.all_reduce(cut, "tp"), "dp") + whole)


def _clipped(b: B, g: Value, *, bounded: bool, reduced: bool) -> Value:
    """`g` times the lesser of 1 and 1 / norm."""
    square = _square(g)
    scale = 1 / b.sqrt(b.all_reduce(square, "dp") if reduced else square)
    return g * (b.minimum(b.constant(1, scale.type), scale) if bounded else scale).like(g)


def _decayed(b: B, x: Value, lr: Value, first: int, second: int) -> Value:
    """Elements of a flat, padded chunk that decay, or do not."""
    ones = [b.constant(n, "f32[3]") for n in (first, second)]
    mask = b.concatenate([*ones, b.constant(0, "f32[2]")], 0)
    padded = b.pad(x, (0,), (2,))
    return (padded * (1 - lr.like(padded) * mask))[:6]


def _decayed_in_two(b: B, x: Value, lr: Value) -> Value:
    return b.concatenate([x[:3] * (1 - lr * 1).like(x[:3]), x[3:] * (1 - lr * 0).like(x[3:])], 0)


HALL: dict[str, Body] = {
    "left": lambda b, x, y, z: _commutator(x, y) @ z,
    "right": lambda b, x, y, z: b.all_gather(z, "dp") @ _commutator(x, y),
}

TRAPS: dict[str, Trap] = {
    "a dropped transpose": trap(
        SQUARE,
        lambda b, x, w: x.T @ w,
        lambda b, x, w: x @ w,
        lambda b, x, w: x.T @ w,
        out=COLUMNS,
    ),
    "a wrong pair of transposed axes": trap(
        {"x": ("f32[4,16]", ROWS)},
        lambda b, x: _heads(b, x, (0, 2, 1)),
        lambda b, x: _heads(b, x, (0, 1, 2)),
        lambda b, x: _heads(b, x, (0, 2, 1)),
        out=ROWS,
    ),
    "a bias along the wrong axis": trap(
        {"x": ("f32[4,4]", {}), "c": ("f32[4]", {})},
        lambda b, x, c: b.tanh(x + c.like(x, 1)),
        lambda b, x, c: b.tanh(x + c.like(x, 0)),
        lambda b, x, c: b.tanh(x + c.like(x, 1)),
    ),
    "factors in the wrong order": trap(
        {"x": ("f32[4,4]", {}), "w": ("f32[4,4]", {})},
        lambda b, x, w: x @ w,
        lambda b, x, w: w @ x,
        lambda b, x, w: x @ w,
    ),
    "a transposed square weight": trap(
        {"x": ("f32[8,4]", ROWS), "w": ("f32[4,4]", {})},
        _matmul,
        lambda b, x, w: x @ w.T,
        _matmul,
        out=ROWS,
    ),
    "softmax over the wrong axis": trap(
        {"x": ("f32[4,4]", {})},
        lambda b, x: _softmax(b, x, 1),
        lambda b, x: _softmax(b, x, 0),
        lambda b, x: _softmax(b, x, 1),
    ),
    "mean of means over unequal shards": Trap(lambda: _unequal(False), lambda: _unequal(True)),
    "interleaved rows of rank classes counted in the other order": Trap(
        lambda: _interleaved("rep"), lambda: _interleaved("dp")
    ),
    "a literal that equals a reduced size": trap(
        {"x": ("f32[4,8]", ROWS)},
        lambda b, x: _rms(b, x, 8),
        lambda b, x: _rms(b, x, 2),
        lambda b, x: _rms(b, x, 8),
        out=ROWS,
    ),
    "sine and cosine swapped": trap(
        {"q": ("f32[4,8]", {}), "angle": ("f32[4,4]", {})},
        lambda b, q, angle: _rotated(b, q, angle, False),
        lambda b, q, angle: _rotated(b, q, angle, True),
        lambda b, q, angle: _rotated(b, q, angle, False),
    ),
    "a mask off by one": trap(
        {"x": ("f32[4,4]", {}), "v": ("f32[4,6]", COLUMNS)},
        lambda b, x, v: _masked(b, x, v, "GE"),
        lambda b, x, v: _masked(b, x, v, "GT"),
        lambda b, x, v: _masked(b, x, v, "GE"),
        out=COLUMNS,
    ),
    "vocabulary offsets off by one rank": trap(
        {"e": ("f32[10,3]", ROWS), "t": ("i64[6]", {})},
        lambda b, e, t: b.gather(e, t),
        lambda b, e, t: _lookup(b, e, t, 1),
        lambda b, e, t: _lookup(b, e, t, 0),
        ranges={"t": (0, 10)},
    ),
    "shards gathered in the wrong order": Trap(
        lambda: _gathered(Group((), ((1, 0),))), lambda: _gathered(Group(("dp",), ((0, 1),)))
    ),
    "a process group that is a permutation": Trap(
        lambda: _twice_sharded({"g": ("tp", "dp")}), lambda: _twice_sharded({"g": ("dp", "tp")})
    ),
    "a process group wrong at a single rank": Trap(
        lambda: _summed(Group((), ((0, 3), (2, 1)))), lambda: _summed(("tp",))
    ),
    "dimensions of size one": trap(
        {"x": ("f32[4,4]", {}), "c": ("f32[1,4]", {})},
        lambda b, x, c: b.tanh(x * _column(b, c, 1)),
        lambda b, x, c: b.tanh(x * _column(b, c, 0)),
        lambda b, x, c: b.tanh(x * _column(b, c, 1)),
    ),
    "replicated squares reduced with the others": trap(
        {"g": ("f32[8,4]", BOTH), "h": ("f32[4,6]", BOTH), "c": ("f32[5]", {})},
        _stacked_norm,
        lambda b, g, h, c: _reduced_norm(b, g, h, c, counted=True),
        lambda b, g, h, c: _reduced_norm(b, g, h, c, counted=False),
        mesh={"dp": 2, "tp": 2},
    ),
    "clipping that also scales up": trap(
        {"g": ("f32[8,4]", ROWS)},
        lambda b, g: _clipped(b, g, bounded=True, reduced=False),
        lambda b, g: _clipped(b, g, bounded=False, reduced=True),
        lambda b, g: _clipped(b, g, bounded=True, reduced=True),
        out=ROWS,
    ),
    "one summand on each rank": trap(
        {"x": ("f32[4,2,3]", {"dp": Shard(1)}), "w": ("f32[3,5]", {})},
        lambda b, x, w: b.tanh(x).sum(1) @ w,
        lambda b, x, w: b.all_reduce(b.tanh(x).reshape(4, 3) @ w, "dp") / 2,
        lambda b, x, w: b.all_reduce(b.tanh(x).reshape(4, 3) @ w, "dp"),
    ),
    "a factor zero on the wrong half of a chunk": trap(
        {"x": ("f32[6]", {}), "lr": ("f32[]", {})},
        _decayed_in_two,
        lambda b, x, lr: _decayed(b, x, lr, 0, 1),
        lambda b, x, lr: _decayed(b, x, lr, 1, 0),
    ),
    "an identity of two by two matrices": trap(
        {"x": ("f32[4,4]", {}), "y": ("f32[4,4]", {}), "z": ("f32[4,4]", ROWS)},
        HALL["left"],
        HALL["right"],
        lambda b, x, y, z: _commutator(x, y) @ b.all_gather(z, "dp"),
    ),
}
