"""Training steps in small, written by hand with their gradients: what the rewritings start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..orchestrator.plans import pair
from .kit import COLUMNS, GRID, ROWS, TP, WHOLE

DP = {"dp": 2}


def _loss_gradient(b: ProgramBuilder, y: Value, t: Value, count: int) -> tuple[Value, Value]:
    """Half of the squared error, by a number, and its gradient."""
    d = (y - t) / count
    return ((y - t) * d).sum() / 2, d


def _relu(b: ProgramBuilder, x: Value) -> tuple[Value, Value]:
    """The result, and where it passes gradients."""
    on = b.convert(b.compare(x, 0, "GT"), "f32")
    return x * on, on


def tensor_parallel_mlp() -> Plan:
    """Column and row parallel, with SGD."""

    def write(b: ProgramBuilder, hidden: int, sums: bool) -> None:
        x, t = b.input("x", "f32[6,4]"), b.input("t", "f32[6,4]")
        up, down = b.input("up", f"f32[4,{hidden}]"), b.input("down", f"f32[{hidden},4]")
        h, on = _relu(b, x @ up)
        y = h @ down
        y = b.all_reduce(y, "tp") if sums else y
        loss, d = _loss_gradient(b, y, t, 24)
        dh = (d @ down.T) * on
        b.output("loss", loss)
        b.output("down", down - h.T @ d * 0.1)
        b.output("up", up - x.T @ dh * 0.1)
        dx = dh @ up.T
        b.output("dx", b.all_reduce(dx, "tp") if sums else dx)

    return pair(
        TP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
        {"x": WHOLE, "t": WHOLE, "up": COLUMNS, "down": ROWS},
        {"loss": WHOLE, "up": COLUMNS, "down": ROWS, "dx": WHOLE},
    )  # fmt: skip


def data_parallel() -> Plan:
    """Gradients in one bucket, averaged, with momentum."""

    def write(b: ProgramBuilder, rows: int, ranks: int) -> None:
        x, t = b.input("x", f"f32[{rows},3]"), b.input("t", f"f32[{rows},5]")
        w, c, m = b.input("w", "f32[3,5]"), b.input("c", "f32[5]"), b.input("m", "f32[3,5]")
        y = x @ w + b.broadcast(c, (rows, 5), (1,))
        loss, d = _loss_gradient(b, y, t, rows * 5)
        dw, dc = x.T @ d, d.sum(0)
        if ranks > 1:
            bucket = b.all_reduce(b.concatenate([dw.reshape(15), dc], 0), "dp") / ranks
            dw, dc = bucket[0:15].reshape(3, 5), bucket[15:20]
            loss = b.all_reduce(loss, "dp") / ranks
        m = m * 0.9 + dw
        b.output("loss", loss)
        b.output("w", w - m * 0.1)
        b.output("c", c - dc * 0.1)
        b.output("m", m)

    rows, whole = {"dp": Shard(0)}, dict[str, Shard]()
    return pair(
        DP, lambda b: write(b, 8, 1), lambda b: write(b, 4, 2),
        {"x": rows, "t": rows, "w": whole, "c": whole, "m": whole},
        {"loss": whole, "w": whole, "c": whole, "m": whole},
    )  # fmt: skip


def sequence_parallel_norm() -> Plan:
    """A norm on pieces of the sequence, gathered for a column parallel layer."""

    def write(b: ProgramBuilder, rows: int, columns: int, sums: bool) -> None:
        x, g = b.input("x", f"f32[{rows},4]"), b.input("g", "f32[4]")
        w, d = b.input("w", f"f32[4,{columns}]"), b.input("d", f"f32[8,{columns}]")
        root = b.rsqrt((x * x).sum(1) / 4 + 0.001)
        normed = x * b.broadcast(root, x.shape, (0,))
        scaled = normed * b.broadcast(g, x.shape, (1,))
        whole = b.all_gather(scaled, "tp", 0) if sums else scaled
        b.output("y", whole @ w)
        b.output("dw", whole.T @ d)
        ds = d @ w.T
        ds = b.reduce_scatter(ds, "tp", 0) if sums else ds
        dg = (ds * normed).sum(0)
        b.output("dg", b.all_reduce(dg, "tp") if sums else dg)

    return pair(
        TP, lambda b: write(b, 8, 6, False), lambda b: write(b, 4, 3, True),
        {"x": ROWS, "g": WHOLE, "w": COLUMNS, "d": COLUMNS}, {"y": COLUMNS, "dw": COLUMNS, "dg": WHOLE},
    )  # fmt: skip


def attention_by_heads() -> Plan:
    """A softmax over keys, heads over ranks, the output projection summed."""

    def write(b: ProgramBuilder, heads: int, sums: bool) -> None:
        x = b.input("x", "f32[5,6]")
        q, k, v = (b.input(n, f"f32[6,{heads},2]") for n in "qkv")
        o = b.input("o", f"f32[{heads},2,6]")
        made = [b.dot(x, w, ([1], [0])) for w in (q, k, v)]
        scores = b.dot(made[0], made[1], ([2], [2]), ([1], [1])) * 0.5
        top = b.broadcast(b.reduce(scores, (2,), "max"), scores.shape, (0, 1))
        e = b.exponential(scores - top)
        p = e / b.broadcast(e.sum(2), e.shape, (0, 1))
        mixed = b.dot(p, made[2], ([2], [0]), ([0], [1]))
        y = b.dot(mixed, o, ([0, 2], [0, 1]))
        b.output("y", b.all_reduce(y, "tp") if sums else y)

    return pair(
        TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
        {"x": WHOLE, "q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "o": ROWS}, {"y": WHOLE},
    )  # fmt: skip


def vocabulary_parallel_loss() -> Plan:
    """Cross-entropy of logits that lie on the ranks by columns, and the gradient of the weight."""

    def write(b: ProgramBuilder, columns: int, sums: bool) -> None:
        x, w, label = b.input("x", "f32[5,3]"), b.input("w", f"f32[3,{columns}]"), b.input("label", "i64[5]")
        logits = x @ w
        shape = logits.shape

        def summed(v: Value, kind: str = "add") -> Value:
            return b.all_reduce(v, "tp", kind) if sums else v

        top = summed(b.reduce(logits, (1,), "max"), "max")
        e = b.exponential(logits - b.broadcast(top, shape, (0,)))
        total = summed(e.sum(1))
        offset = b.axis_index("tp").scale(columns) if sums else 0
        first = b.constant(offset, "i64[5]") if offset else b.constant(0, "i64[5]")
        own = b.broadcast(label - first, shape, (0,))
        hit = b.convert(b.compare(own, b.iota(own.type, 1), "EQ"), "f32")
        chosen = summed((logits * hit).sum(1))
        b.output("loss", (b.log(total) + top - chosen).sum() / 5)
        d = (e / b.broadcast(total, shape, (0,)) - hit) / 5
        b.output("dw", x.T @ d)
        b.output("dx", summed(d @ w.T))

    return pair(
        TP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
        {"x": WHOLE, "w": COLUMNS, "label": WHOLE}, {"loss": WHOLE, "dw": COLUMNS, "dx": WHOLE},
        {"label": (0, 8)},
    )  # fmt: skip


def experts() -> Plan:
    """Every expert on its ranks, tokens gathered, weighted by a router on all ranks."""

    def write(b: ProgramBuilder, mine: int, sums: bool) -> None:
        x, w, gate = b.input("x", "f32[4,3]"), b.input("w", f"f32[{mine},3,5]"), b.input("gate", "f32[4,4]")
        own = b.slice(gate, [0, b.axis_index("tp").scale(mine)], [4, mine]) if sums else gate
        h = b.dot(w, x, ([1], [1]))
        y = b.dot(h, own, ([0], [1]), ([2], [0]))
        y = b.all_reduce(y, "tp") if sums else y
        d = b.input("d", "f32[4,5]")
        b.output("y", y)
        dgate = b.dot(h, d, ([1], [1]), ([2], [0]))
        b.output("dgate", b.all_gather(dgate, "tp", 1) if sums else dgate)
        weighted = b.dot(own, d, ([], []), ([0], [0]))
        b.output("dw", b.dot(weighted, x, ([0], [0])).transpose(0, 2, 1))

    return pair(
        TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
        {"x": WHOLE, "w": ROWS, "gate": WHOLE, "d": WHOLE}, {"y": WHOLE, "dgate": WHOLE, "dw": ROWS},
    )  # fmt: skip


def sharded_optimizer() -> Plan:
    """Adam's moments in pieces: scattered gradients, gathered weights."""

    def write(b: ProgramBuilder, rows: int, ranks: int) -> None:
        x, t = b.input("x", f"f32[{rows},4]"), b.input("t", f"f32[{rows},6]")
        w = b.input("w", "f32[4,6]")
        m, v = (b.input(n, f"f32[{4 // ranks},6]") for n in ("opt.exp_avg.w", "opt.exp_avg_sq.w"))
        _, d = _loss_gradient(b, x @ w, t, rows)
        g, piece = x.T @ d, w
        if ranks > 1:
            g = b.reduce_scatter(g, "dp", 0) / ranks
            piece = b.slice(w, [b.axis_index("dp").scale(2), 0], [2, 6])
        m = m * 0.9 + g * 0.1
        v = v * 0.99 + g * g * 0.01
        piece = piece - m / (b.sqrt(v) + 0.001)
        b.output("opt.exp_avg.w", m)
        b.output("opt.exp_avg_sq.w", v)
        b.output("w", b.all_gather(piece, "dp", 0) if ranks > 1 else piece)

    rows, whole = {"dp": Shard(0)}, dict[str, Shard]()
    return pair(
        DP, lambda b: write(b, 6, 1), lambda b: write(b, 3, 2),
        {"x": rows, "t": rows, "w": whole, "opt.exp_avg.w": rows, "opt.exp_avg_sq.w": rows},
        {"opt.exp_avg.w": rows, "opt.exp_avg_sq.w": rows, "w": whole},
    )  # fmt: skip


def clipped() -> Plan:
    """Two gradients over two axes, scaled by their common norm."""

    def write(b: ProgramBuilder, rows: int, columns: int, sums: bool) -> None:
        x, d = b.input("x", f"f32[{rows},3]"), b.input("d", f"f32[{rows},{columns}]")
        w, c = b.input("w", f"f32[3,{columns}]"), b.input("c", f"f32[{columns}]")
        dw, dc = x.T @ d, d.sum(0)
        if sums:
            dw, dc = b.all_reduce(dw, "dp"), b.all_reduce(dc, "dp")
        square = (dw * dw).sum() + (dc * dc).sum()
        norm = b.sqrt(b.all_reduce(square, "tp") if sums else square)
        scale = b.minimum(b.constant(1, "f32[]"), 1 / (norm + 0.001))
        b.output("norm", norm)
        b.output("w", w - dw * b.broadcast(scale, dw.shape))
        b.output("c", c - dc * b.broadcast(scale, dc.shape))

    grid = {"dp": Shard(0), "tp": Shard(1)}
    return pair(
        GRID, lambda b: write(b, 8, 6, False), lambda b: write(b, 4, 3, True),
        {"x": {"dp": Shard(0)}, "d": grid, "w": COLUMNS, "c": ROWS},
        {"norm": {}, "w": COLUMNS, "c": ROWS},
    )  # fmt: skip


def heads_exchanged() -> Plan:
    """Ulysses: from pieces of the sequence to heads and back, around scores without softmax."""

    def write(b: ProgramBuilder, rows: int, sums: bool) -> None:
        x, w, o = b.input("x", f"f32[{rows},4]"), b.input("w", "f32[4,2,6]"), b.input("o", "f32[2,3,4]")
        all_ = b.dot(x, w, ([1], [0]))
        all_ = b.all_to_all(all_, "tp", 1, 0) if sums else all_
        q, k = all_[:, :, 0:3], all_[:, :, 3:6]
        scores = b.tanh(b.dot(q, k, ([2], [2]), ([1], [1])))
        mixed = b.dot(scores, k, ([2], [0]), ([0], [1])).transpose(1, 0, 2)
        mixed = b.all_to_all(mixed, "tp", 0, 1) if sums else mixed
        b.output("y", b.dot(mixed, o, ([1, 2], [0, 1])))

    return pair(
        TP, lambda b: write(b, 6, False), lambda b: write(b, 3, True),
        {"x": ROWS, "w": WHOLE, "o": WHOLE}, {"y": ROWS},
    )  # fmt: skip


def rotated() -> Plan:
    """Rotary embedding by halves, its gradient by pads, contracted over heads on the ranks."""

    def write(b: ProgramBuilder, heads: int, sums: bool) -> None:
        x, w = b.input("x", "f32[5,3]"), b.input("w", f"f32[3,{heads},4]")
        cos, sin = b.input("cos", "f32[5,4]"), b.input("sin", "f32[5,4]")
        d = b.input("d", f"f32[5,{heads},4]")
        q = b.dot(x, w, ([1], [0]))
        c, s = (b.broadcast(v, q.shape, (0, 2)) for v in (cos, sin))
        turned = b.concatenate([-q[:, :, 2:4], q[:, :, 0:2]], 2)
        b.output("y", q * c + turned * s)
        ds = d * s
        up = b.pad(-ds[:, :, 0:2], (0, 0, 2), (0, 0, 0)) + b.pad(ds[:, :, 2:4], (0, 0, 0), (0, 0, 2))
        dq = d * c + up
        b.output("dw", b.dot(x, dq, ([0], [0])))
        dx = b.dot(dq, w, ([1, 2], [1, 2]))
        b.output("dx", b.all_reduce(dx, "tp") if sums else dx)

    return pair(
        TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
        {"x": WHOLE, "w": COLUMNS, "cos": WHOLE, "sin": WHOLE, "d": COLUMNS},
        {"y": COLUMNS, "dw": COLUMNS, "dx": WHOLE},
    )  # fmt: skip


def tokens_counted() -> Plan:
    """A loss by the number of tokens that count on all ranks, in two microbatches on each."""

    def write(b: ProgramBuilder, rows: int, sums: bool) -> None:
        x, t = b.input("x", f"f32[2,{rows},3]"), b.input("t", f"f32[2,{rows}]")
        on, w = b.input("on", f"f32[2,{rows}]"), b.input("w", "f32[3]")
        count = on.sum()
        count = b.all_reduce(count, "dp") if sums else count
        total, dw = b.constant(0, "f32[]"), b.constant(0, "f32[3]")
        for i in range(2):
            xi, ti, oi = (
                x[i : i + 1].reshape(rows, 3),
                t[i : i + 1].reshape(rows),
                on[i : i + 1].reshape(rows),
            )
            e = (b.dot(xi, w, ([1], [0])) - ti) * oi
            total = total + (e * e).sum() / count
            dw = dw + b.dot(xi, e / b.broadcast(count, e.shape), ([0], [0])) * 2
        if sums:
            total, dw = b.all_reduce(total, "dp"), b.all_reduce(dw, "dp")
        b.output("loss", total)
        b.output("w", w - dw * 0.1)

    rows = {"dp": Shard(1)}
    return pair(
        DP, lambda b: write(b, 6, False), lambda b: write(b, 3, True),
        {"x": rows, "t": rows, "on": rows, "w": {}}, {"loss": {}, "w": {}},
    )  # fmt: skip


def sharded_weights() -> Plan:
    """FSDP over dp of a weight that tp cuts too; gathered, used, its gradient scattered."""

    def write(b: ProgramBuilder, rows: int, outer: int, columns: int, sums: bool) -> None:
        x, d = b.input("x", f"f32[{rows},4]"), b.input("d", f"f32[{rows},{columns}]")
        w = b.input("w", f"f32[{outer},{columns}]")
        whole = b.all_gather(w, "dp", 0) if sums else w
        b.output("y", b.tanh(x @ whole))
        g = x.T @ d
        g = b.reduce_scatter(g, "dp", 0) / 2 if sums else g / 2
        b.output("w", w - g)

    return pair(
        GRID, lambda b: write(b, 6, 4, 6, False), lambda b: write(b, 3, 2, 3, True),
        {"x": {"dp": Shard(0)}, "d": {"dp": Shard(0), "tp": Shard(1)}, "w": {"dp": Shard(0), "tp": Shard(1)}},
        {"y": {"dp": Shard(0), "tp": Shard(1)}, "w": {"dp": Shard(0), "tp": Shard(1)}},
    )  # fmt: skip


def _named(define: Callable[[], Plan]) -> Plan:
    return replace(define(), name=define.__name__)


STEPS: dict[str, Callable[[], Plan]] = {
    define.__name__: partial(_named, define)
    for define in (
        tensor_parallel_mlp,
        data_parallel,
        sequence_parallel_norm,
        attention_by_heads,
        vocabulary_parallel_loss,
        experts,
        sharded_optimizer,
        clipped,
        heads_exchanged,
        rotated,
        tokens_counted,
        sharded_weights,
    )
}
