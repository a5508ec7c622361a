"""Right plans that no single op shows to be right, each with a wrong twin that differs in one place."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value, build_plan
from certificates.plan.placements import Partial, Replicate, Shard
from certificates.plan.plan import Plan

from ..plans import Layout, Write, pair

#: The right plan, or the wrong one.
Twins = Callable[[bool], Plan]
TP = {"tp": 2}


def _splat(b: ProgramBuilder, n: Value, like: Value) -> Value:
    return b.broadcast(n, like.shape)


def _by_rank(
    specification: Write, write: Callable[[ProgramBuilder, int], None], inputs: Layout, outputs: Layout
) -> Plan:
    """The two ranks of ``tp`` run programs of their own."""
    spec, classes = ProgramBuilder(), {}
    specification(spec)
    for rank in range(2):
        b = ProgramBuilder(TP, box={"tp": (rank, rank + 1)})
        write(b, rank)
        classes[f"c{rank}"] = ({"tp": (rank, rank + 1)}, b.build())
    return build_plan(
        name="by-rank", mesh=TP, specification=spec.build(), classes=classes, inputs=inputs, outputs=outputs
    )


ROWS, COLUMNS, WHOLE = {"tp": Shard(0)}, {"tp": Shard(1)}, {"tp": Replicate()}


def _contraction(b: ProgramBuilder, k: int, *, inside: bool, sums: bool, twice: bool = False) -> None:
    """``(x @ d) / n``, or with the division inside."""
    x, d, n = b.input("x", f"f32[5,{k}]"), b.input("d", f"f32[{k},3]"), b.input("n", "f32[]")
    if inside:
        d = d / _splat(b, n, d)
    y = x @ d
    y = b.all_reduce(y, "tp") if sums else y
    b.output("y", y / _splat(b, n, y) if not inside or twice else y)


def divided_operand(right: bool) -> Plan:
    """Each rank divides its share of an operand; the specification divides the product."""
    return pair(
        TP, lambda b: _contraction(b, 8, inside=False, sums=False),
        lambda b: _contraction(b, 4, inside=True, sums=True, twice=not right),
        {"x": COLUMNS, "d": ROWS, "n": WHOLE}, {"y": WHOLE},
    )  # fmt: skip


def divided_product(right: bool) -> Plan:
    """The specification divides an operand; the plan divides after its sum over ranks."""

    def write(b: ProgramBuilder) -> None:
        _contraction(b, 4, inside=not right, sums=True, twice=True)

    return pair(
        TP, lambda b: _contraction(b, 8, inside=True, sums=False), write,
        {"x": COLUMNS, "d": ROWS, "n": WHOLE}, {"y": WHOLE},
    )  # fmt: skip


def scattered(right: bool) -> Plan:
    """A row factor that is applied to one operand, before a sum that leaves each rank its rows."""

    def spec(b: ProgramBuilder) -> None:
        x, w, c = b.input("x", "f32[6,8]"), b.input("w", "f32[8,6]"), b.input("c", "f32[6]")
        y = x @ w
        b.output("y", y * b.broadcast(c, y.shape, (0,)))

    def plan(b: ProgramBuilder) -> None:
        x, w, c = b.input("x", "f32[6,4]"), b.input("w", "f32[4,6]"), b.input("c", "f32[6]")
        scaled = x * b.broadcast(c, x.shape, (0,)) if right else x
        w = w if right else w * b.broadcast(c, w.shape, (1,))
        b.output("y", b.reduce_scatter(scaled @ w, "tp", 0))

    return pair(TP, spec, plan, {"x": COLUMNS, "w": ROWS, "c": WHOLE}, {"y": ROWS})


def mean_of_parts(right: bool) -> Plan:
    """Every term is divided by a count that is itself a sum over ranks."""

    def spec(b: ProgramBuilder) -> None:
        x, m = b.input("x", "f32[8,3]"), b.input("m", "f32[8,3]")
        b.output("loss", (x * m).sum() / m.sum())

    def plan(b: ProgramBuilder) -> None:
        x, m = b.input("x", "f32[4,3]"), b.input("m", "f32[4,3]")
        n = b.all_reduce(m.sum(), "tp") if right else m.sum()
        b.output("loss", b.all_reduce((x * m / _splat(b, n, m)).sum(), "tp"))

    return pair(TP, spec, plan, {"x": ROWS, "m": ROWS}, {"loss": WHOLE})


def bias_on_one_rank(right: bool) -> Plan:
    """A bias that one rank adds before the sum over ranks."""

    def spec(b: ProgramBuilder) -> None:
        y = b.input("x", "f32[5,8]") @ b.input("w", "f32[8,3]")
        b.output("y", y + b.broadcast(b.input("b", "f32[3]"), y.shape, (1,)))

    def plan(b: ProgramBuilder, rank: int) -> None:
        y = b.input("x", "f32[5,4]") @ b.input("w", "f32[4,3]")
        bias = b.input("b", "f32[3]")
        if rank == 0 or not right:
            y = y + b.broadcast(bias, y.shape, (1,))
        b.output("y", b.all_reduce(y, "tp"))

    return _by_rank(spec, plan, {"x": COLUMNS, "w": ROWS, "b": WHOLE}, {"y": WHOLE})


def _weight_gradient(b: ProgramBuilder, x: Value, d: Value) -> Value:
    return b.dot(x, d, contract=((0,), (0,)))


def _gradient(b: ProgramBuilder) -> None:
    b.output("g", _weight_gradient(b, b.input("x", "f32[8,5]"), b.input("d", "f32[8,3]")))


def microbatches(right: bool) -> Plan:
    """A rank's rows in two halves, whose gradients are added before the sum over ranks."""

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[4,5]"), b.input("d", "f32[4,3]")
        halves = _weight_gradient(b, x[:2], d[:2]) + _weight_gradient(b, x[2:], d[2:] if right else d[:2])
        b.output("g", b.all_reduce(halves, "tp"))

    return pair(TP, _gradient, plan, {"x": ROWS, "d": ROWS}, {"g": WHOLE})


def microbatches_reduced(right: bool) -> Plan:
    """The same, with a sum over ranks for each half."""

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[4,5]"), b.input("d", "f32[4,3]")
        first = b.all_reduce(_weight_gradient(b, x[:2], d[:2]), "tp")
        second = _weight_gradient(b, x[2:], d[2:])
        b.output("g", first + (b.all_reduce(second, "tp") if right else second))

    return pair(TP, _gradient, plan, {"x": ROWS, "d": ROWS}, {"g": WHOLE})


def microbatches_of_one_rank(right: bool) -> Plan:
    """Three uneven microbatches where nothing is summed over ranks; columns are sharded."""

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[8,5]"), b.input("d", "f32[8,2]")
        parts = [_weight_gradient(b, x[i:j], d[i:j]) for i, j in ((0, 3), (3, 6), (6 if right else 5, 8))]
        b.output("g", parts[0] + parts[1] + parts[2])

    def spec(b: ProgramBuilder) -> None:
        b.output("g", _weight_gradient(b, b.input("x", "f32[8,5]"), b.input("d", "f32[8,4]")))

    return pair(TP, spec, plan, {"x": WHOLE, "d": COLUMNS}, {"g": COLUMNS})


def experts(right: bool) -> Plan:
    """A rank adds up its two experts, then ranks are summed."""

    def spec(b: ProgramBuilder) -> None:
        x, w, p = b.input("x", "f32[5,6]"), b.input("w", "f32[4,6,3]"), b.input("p", "f32[5,4]")
        h = b.tanh(b.dot(x, w, contract=((1,), (1,))))
        b.output("y", (h * b.broadcast(p, h.shape, (0, 1))).sum(1))

    def plan(b: ProgramBuilder) -> None:
        x, w, p = b.input("x", "f32[5,6]"), b.input("w", "f32[2,6,3]"), b.input("p", "f32[5,2]")
        parts = []
        for e in range(2):
            h = b.tanh(x @ w[e : e + 1].reshape(6, 3))
            k = e if right else 0
            parts.append(h * b.broadcast(p[:, k : k + 1].reshape(5), h.shape, (0,)))
        b.output("y", b.all_reduce(parts[0] + parts[1], "tp"))

    return pair(TP, spec, plan, {"x": WHOLE, "w": ROWS, "p": COLUMNS}, {"y": WHOLE})


def _rotated(b: ProgramBuilder, heads: int, *, sums: bool, swapped: bool = False) -> None:
    """The gradient of two halves of each head, contracted with a weight over heads and columns."""
    p, q = b.input("p", f"f32[5,{heads},2]"), b.input("q", f"f32[5,{heads},2]")
    w = b.input("w", f"f32[{heads * 4},3]")
    low, high = ((0, 0, 2), (0, 0, 0)) if swapped else ((0, 0, 0), (0, 0, 2))
    g = b.pad(b.tanh(p), low, high) + b.pad(b.tanh(q), high, low)
    y = g.reshape(5, heads * 4) @ w
    b.output("y", b.all_reduce(y, "tp") if sums else y)


def padded_halves(right: bool) -> Plan:
    """Padded halves are added, then contracted along a dimension that is sharded."""
    return pair(
        TP, lambda b: _rotated(b, 4, sums=False),
        lambda b: _rotated(b, 2, sums=True, swapped=not right),
        {"p": COLUMNS, "q": COLUMNS, "w": ROWS}, {"y": WHOLE},
    )  # fmt: skip


def pieces_with_zeros(right: bool) -> Plan:
    """Ranks pad their rows with zeros and sum, in place of an all-gather."""

    def spec(b: ProgramBuilder) -> None:
        b.output("y", b.tanh(b.input("x", "f32[8,3]")))

    def plan(b: ProgramBuilder, rank: int) -> None:
        here = 4 * rank if right else 4 * (1 - rank)
        y = b.pad(b.tanh(b.input("x", "f32[4,3]")), (here, 0), (4 - here, 0))
        b.output("y", b.all_reduce(y, "tp"))

    return _by_rank(spec, plan, {"x": ROWS}, {"y": WHOLE})


def one_head(right: bool) -> Plan:
    """One head on each rank, whose dimension the plan leaves out."""

    def spec(b: ProgramBuilder) -> None:
        h, w, n = b.input("h", "f32[5,2,4]"), b.input("w", "f32[2,4,3]"), b.input("n", "f32[]")
        y = b.dot(h, w, contract=((1, 2), (0, 1)))
        b.output("y", y * _splat(b, n, y))

    def plan(b: ProgramBuilder) -> None:
        h, w, n = b.input("h", "f32[5,1,4]"), b.input("w", "f32[1,4,3]"), b.input("n", "f32[]")
        h = h.reshape(5, 4)
        y = (h * _splat(b, n, h)) @ w.reshape(4, 3)
        b.output("y", b.all_reduce(y if right else y * 2, "tp"))

    return pair(TP, spec, plan, {"h": COLUMNS, "w": ROWS, "n": WHOLE}, {"y": WHOLE})


def distributed(right: bool) -> Plan:
    """``(x + y) @ w``, as two products, each summed over ranks."""

    def spec(b: ProgramBuilder) -> None:
        x, y, w = b.input("x", "f32[5,8]"), b.input("y", "f32[5,8]"), b.input("w", "f32[8,3]")
        b.output("out", (x + y) @ w)

    def plan(b: ProgramBuilder) -> None:
        x, y, w = b.input("x", "f32[5,4]"), b.input("y", "f32[5,4]"), b.input("w", "f32[4,3]")
        other = b.all_reduce((y if right else x) @ w, "tp")
        b.output("out", b.all_reduce(x @ w, "tp") + other)

    return pair(TP, spec, plan, {"x": COLUMNS, "y": COLUMNS, "w": ROWS}, {"out": WHOLE})


def uneven_gradient(right: bool) -> Plan:
    """Ranks with 4 and 3 rows scale an operand by a symbol; the specification scales the sum."""

    def spec(b: ProgramBuilder) -> None:
        g = _weight_gradient(b, b.input("x", "f32[7,5]"), b.input("d", "f32[7,3]"))
        b.output("g", g / _splat(b, b.input("n", "f32[]"), g))

    def plan(b: ProgramBuilder, rank: int) -> None:
        rows = 4 - rank
        x, d, n = b.input("x", f"f32[{rows},5]"), b.input("d", f"f32[{rows},3]"), b.input("n", "f32[]")
        if rank == 0:
            g = _weight_gradient(b, x[:1], d[:1] / _splat(b, n, d[:1]))
            g = g + _weight_gradient(b, x[1:], d[1:]) / _splat(b, n, g)
        else:
            g = _weight_gradient(b, x, d / _splat(b, n, d))
            g = g if right else g / _splat(b, n, g)
        b.output("g", b.all_reduce(g, "tp"))

    return _by_rank(spec, plan, {"x": ROWS, "d": ROWS, "n": WHOLE}, {"g": WHOLE})


def one_hot(right: bool) -> Plan:
    """Logits less a one-hot, scaled before the product instead of after it."""

    def write(b: ProgramBuilder, rows: int, *, inside: bool, sums: bool, wrong: bool = False) -> None:
        p, x = b.input("p", f"f32[{rows},7]"), b.input("x", f"f32[{rows},5]")
        labels, n = b.input("labels", f"i64[{rows}]"), b.input("n", "f32[]")
        at = b.broadcast(labels, (rows, 7), (0,))
        hot = b.convert(b.compare(b.iota(f"i64[{rows},7]", 1), at, "EQ"), "f32")
        d = p + hot if wrong else p - hot
        g = _weight_gradient(b, d / _splat(b, n, d) if inside else d, x)
        g = b.all_reduce(g, "tp") if sums else g
        b.output("g", g if inside else g / _splat(b, n, g))

    return pair(
        TP, lambda b: write(b, 8, inside=False, sums=False),
        lambda b: write(b, 4, inside=True, sums=True, wrong=not right),
        {"p": ROWS, "x": ROWS, "labels": ROWS, "n": WHOLE}, {"g": WHOLE}, {"labels": (0, 7)},
    )  # fmt: skip


def gathered_product(right: bool) -> Plan:
    """A factor that is applied to a gathered operand in one program, to the product in the other."""

    def spec(b: ProgramBuilder) -> None:
        x, w, n = b.input("x", "f32[8,5]"), b.input("w", "f32[5,3]"), b.input("n", "f32[]")
        y = x @ w
        b.output("y", (y * _splat(b, n, y)).sum(0))

    def plan(b: ProgramBuilder) -> None:
        x, w, n = b.input("x", "f32[4,5]"), b.input("w", "f32[5,3]"), b.input("n", "f32[]")
        whole = b.all_gather(x * _splat(b, n, x), "tp", 0)
        b.output("y", ((whole if right else whole * whole) @ w).sum(0))

    return pair(TP, spec, plan, {"x": ROWS, "w": WHOLE, "n": WHOLE}, {"y": WHOLE})


GRID = {"dp": 2, "tp": 2}


def summed_operand(right: bool) -> Plan:
    """A divided operand that is itself summed over ``tp``, in a gradient summed over ``dp``."""

    def spec(b: ProgramBuilder) -> None:
        x, d, v = b.input("x", "f32[8,5]"), b.input("d", "f32[8,6]"), b.input("v", "f32[6,5]")
        g = _weight_gradient(b, x, d @ v)
        b.output("g", g / _splat(b, b.input("n", "f32[]"), g))

    def plan(b: ProgramBuilder) -> None:
        x, d, v = b.input("x", "f32[4,5]"), b.input("d", "f32[4,3]"), b.input("v", "f32[3,5]")
        e = (d / _splat(b, b.input("n", "f32[]"), d)) @ v
        e = b.all_reduce(e, "tp") if right else e
        b.output("g", b.all_reduce(_weight_gradient(b, x, e), "dp"))

    rows = {"dp": Shard(0)}
    inputs = {"x": rows, "d": {"dp": Shard(0), "tp": Shard(1)}, "v": ROWS, "n": WHOLE}
    return pair(GRID, spec, plan, inputs, {"g": {}})


def partial_output(right: bool) -> Plan:
    """Ranks keep their summands of a result that is divided in the specification."""

    def spec(b: ProgramBuilder) -> None:
        g = _weight_gradient(b, b.input("x", "f32[8,5]"), b.input("d", "f32[8,3]"))
        b.output("g", g / _splat(b, b.input("n", "f32[]"), g))

    def plan(b: ProgramBuilder) -> None:
        x, d, n = b.input("x", "f32[4,5]"), b.input("d", "f32[4,3]"), b.input("n", "f32[]")
        scaled = d / _splat(b, n, d) if right else d * _splat(b, n, d)
        b.output("g", _weight_gradient(b, x, scaled))

    return pair(TP, spec, plan, {"x": ROWS, "d": ROWS, "n": WHOLE}, {"g": {"tp": Partial()}})


def weighted_means(right: bool) -> Plan:
    """Means of uneven parts, weighted by their share."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[8,6]")
        b.output("loss", (x * x).sum() / 48)

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4,6]")
        one, three = (x[:1] * x[:1]).sum() / 6, (x[1:] * x[1:]).sum() / 18
        shares = (Fraction(1, 8), Fraction(3, 8)) if right else (Fraction(1, 4), Fraction(1, 4))
        b.output("loss", b.all_reduce(one * shares[0] + three * shares[1], "tp"))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def specification_in_parts(right: bool) -> Plan:
    """The specification adds up four microbatches; the plan's ranks know nothing of them."""

    def spec(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[8,5]"), b.input("d", "f32[8,3]")
        a, c, e, f = (_weight_gradient(b, x[i : i + 2], d[i : i + 2]) for i in range(0, 8, 2))
        b.output("g", a + c + e + f if right else a + c + e - f)

    def plan(b: ProgramBuilder) -> None:
        g = _weight_gradient(b, b.input("x", "f32[4,5]"), b.input("d", "f32[4,3]"))
        b.output("g", b.all_reduce(g, "tp"))

    return pair(TP, spec, plan, {"x": ROWS, "d": ROWS}, {"g": WHOLE})


def _halves(b: ProgramBuilder, rows: int) -> list[Value]:
    """Gradients of a tanh layer from two microbatches, and their losses."""
    x, w = b.input("x", f"f32[{rows},5]"), b.input("w", "f32[5,3]")
    gradients, losses = [], []
    for part in (x[: rows // 2], x[rows // 2 :]):
        h = b.tanh(part @ w)
        gradients.append(_weight_gradient(b, part, h))
        losses.append((h * h).sum())
    return [gradients[0] + gradients[1], losses[0] + losses[1]]


def microbatches_of_other_rows(right: bool) -> Plan:
    """Both programs halve their own batch, so a rank's halves are in one half of the specification's; the
    gradients are summed over ranks in one bucket.
    """

    def spec(b: ProgramBuilder) -> None:
        for name, value in zip("gl", _halves(b, 8), strict=True):
            b.output(name, value)

    def plan(b: ProgramBuilder) -> None:
        g, loss = _halves(b, 4)
        parts = [(g if right else g * Fraction(1, 2)).reshape(15), loss.reshape(1)]
        bucket = b.all_reduce(b.concatenate(parts, 0), "tp")
        b.output("g", bucket[:15].reshape(5, 3))
        b.output("l", bucket[15:].reshape())

    return pair(TP, spec, plan, {"x": ROWS, "w": WHOLE}, {"g": WHOLE, "l": WHOLE})


def chosen_number(right: bool) -> Plan:
    """The number that a truth value is made to, where the specification chooses between two numbers by it."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[8,3]")
        mask = b.compare(x, 0, "GT")
        b.output("y", b.tanh(x) + b.select(mask, b.constant(-1, "f32[8,3]"), b.constant(0, "f32[8,3]")))

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4,3]")
        mask = b.convert(b.compare(x, 0, "GT"), "f32")
        b.output("y", b.tanh(x) - (mask if right else mask * Fraction(1, 2)))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS})


def stacked_losses(right: bool) -> Plan:
    """Losses of microbatches are stacked and summed; the specification has a stack of one."""

    def loss(b: ProgramBuilder, x: Value) -> Value:
        h = b.tanh(x)
        return (h * h).sum().reshape(1)

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", loss(b, b.input("x", "f32[8,3]")).sum())

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[4,3]")
        parts = [loss(b, x[:2]), loss(b, x[2:] if right else x[:2])]
        b.output("loss", b.all_reduce(b.concatenate(parts, 0).sum(), "tp"))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def _rotary(b: ProgramBuilder, heads: int, *, sums: bool, sign: int = 1) -> None:
    """Rotary attention scores, and the gradient of the queries' projection through the rotation."""
    q, k = b.input("q", f"f32[{heads},6,4]"), b.input("k", f"f32[{heads},6,4]")
    c, s, w = b.input("c", "f32[6,4]"), b.input("s", "f32[6,4]"), b.input("w", f"f32[{heads * 4},3]")
    cosine, sine = (b.broadcast(v, q.shape, (1, 2)) for v in (c, s))

    def rotated(t: Value) -> Value:
        return t * cosine + b.concatenate([-t[:, :, 2:], t[:, :, :2]], 2) * sine

    scores = b.dot(rotated(q), rotated(k), contract=((2,), (2,)), batch=((0,), (0,)))
    d = b.dot(scores, rotated(k), contract=((2,), (1,)), batch=((0,), (0,)))
    low, high = b.pad(d[:, :, 2:] * sine[:, :, 2:], (0, 0, 0), (0, 0, 2)), d[:, :, :2] * sine[:, :, :2]
    g = d * cosine + low + b.pad(high * -sign, (0, 0, 2), (0, 0, 0))
    y = b.reshape(b.transpose(g, (1, 0, 2)), (6, heads * 4)) @ w
    b.output("y", b.all_reduce(y, "tp") if sums else y)


def rotary(right: bool) -> Plan:
    """Heads are sharded; the gradient of the rotation is contracted over them."""
    inputs = {"q": ROWS, "k": ROWS, "c": WHOLE, "s": WHOLE, "w": ROWS}
    return pair(
        TP, lambda b: _rotary(b, 4, sums=False),
        lambda b: _rotary(b, 2, sums=True, sign=1 if right else -1), inputs, {"y": WHOLE},
    )  # fmt: skip


def maximum_in_parts(right: bool) -> Plan:
    """The largest logit of a row: of halves of a rank's columns, gathered, and the largest of these."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[5,8]")
        b.output("y", x - b.broadcast(b.reduce(x, (1,), "max"), x.shape, (0,)))

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[5,4]")
        first, second = b.reduce(x[:, :1], (1,), "max"), b.reduce(x[:, 1:], (1,), "max")
        own = b.maximum(second, first) if right else b.minimum(second, first)
        top = b.reduce(b.all_gather(b.reshape(own, (1, 5)), "tp", 0), (0,), "max")
        b.output("y", x - b.broadcast(top, x.shape, (0,)))

    return pair(TP, spec, plan, {"x": COLUMNS}, {"y": COLUMNS})


def own_place_marked(right: bool) -> Plan:
    """Instead of an all-gather, a sum over ranks of tables in which each rank has set its own row."""

    def spec(b: ProgramBuilder) -> None:
        b.output("y", b.tanh(b.input("x", "f32[6,3]")))

    def plan(b: ProgramBuilder) -> None:
        x = b.tanh(b.input("x", "f32[2,3]"))
        row = b.iota("i64[3,2,3]", 0)
        own = b.constant(b.axis_index("tp") + (0 if right else 1), row.type)
        table = b.broadcast(x, (3, 2, 3), (1, 2))
        alone = b.select(b.compare(row, own, "EQ"), table, b.constant(0, table.type))
        b.output("y", b.reshape(b.all_reduce(alone, "tp"), (6, 3)))

    return pair({"tp": 3}, spec, plan, {"x": ROWS}, {"y": WHOLE})


def place_cut_from_zeros(right: bool) -> Plan:
    """The same, with each rank's piece cut out of zeros around it, at a place that runs downwards."""

    def spec(b: ProgramBuilder) -> None:
        b.output("y", b.tanh(b.input("x", "f32[6,3]")))

    def plan(b: ProgramBuilder) -> None:
        x = b.tanh(b.input("x", "f32[2,3]"))
        zeros = b.constant(0, "f32[4,3]")
        start = b.axis_index("tp").scale(-2) + 4 if right else b.axis_index("tp").scale(2)
        own = b.slice(b.concatenate([zeros, x, zeros], 0), [start, 0], [6, 3])
        b.output("y", b.all_reduce(own, "tp"))

    return pair({"tp": 3}, spec, plan, {"x": ROWS}, {"y": WHOLE})


def least_of_two(right: bool) -> Plan:
    """A clipping factor with its operands exchanged."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[6]")
        b.output("y", b.minimum(b.constant(1, "f32[]"), 1 / (x * x).sum()))

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[3]")
        other = b.constant(1 if right else 2, "f32[]")
        b.output("y", b.minimum(1 / b.all_reduce((x * x).sum(), "tp"), other))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": WHOLE})


def _attended(b: ProgramBuilder, keys: int) -> tuple[Value, Value, Value, Value, Value]:
    """Exponentials of rows and keys, their sum, values, their mean, and a gradient of that."""
    e, v = b.exponential(b.input("s", f"f32[5,{keys}]")), b.tanh(b.input("v", f"f32[{keys},3]"))
    total, g = e.sum(1), b.tanh(b.input("g", "f32[5,3]"))
    total = b.all_reduce(total, "tp") if keys < 8 else total
    mean = e / b.broadcast(total, e.shape, (0,)) @ v if keys == 8 else b.all_reduce(e @ v, "tp")
    mean = mean if keys == 8 else mean / b.broadcast(total, mean.shape, (0,))
    b.output("mean", b.tanh(mean))
    return e, total, v, mean, g


def softmax_over_ranks(right: bool) -> Plan:
    """What a softmax's gradient takes away: the specification sums over keys, the ranks use the mean."""

    def spec(b: ProgramBuilder) -> None:
        e, total, v, _, g = _attended(b, 8)
        p = e / b.broadcast(total, e.shape, (0,))
        h = g @ v.T
        b.output("y", b.tanh(h * p - p * b.broadcast((h * p).sum(1), p.shape, (0,))))

    def plan(b: ProgramBuilder) -> None:
        e, total, v, mean, g = _attended(b, 4)
        wide = b.broadcast(total, mean.shape, (0,))
        away = ((g * mean) / wide if right else g * mean).sum(1)
        b.output("y", b.tanh(((g / wide) @ v.T - b.broadcast(away, e.shape, (0,))) * e))

    return pair(TP, spec, plan, {"s": COLUMNS, "v": ROWS, "g": WHOLE}, {"mean": WHOLE, "y": COLUMNS})


def centred_product(right: bool) -> Plan:
    """A mean over ranks that one side takes of products, the other as a product with the mean."""

    def spec(b: ProgramBuilder) -> None:
        x, n = b.tanh(b.input("x", "f32[8,3]")), b.tanh(b.input("n", "f32[]"))
        mean = x.sum(0) / _splat(b, n, x.sum(0))
        b.output("mean", b.tanh(mean))
        away = (x * b.broadcast(mean, x.shape, (1,))).sum(0) / _splat(b, n, mean)
        b.output("y", b.tanh(x * b.broadcast(away, x.shape, (1,))))

    def plan(b: ProgramBuilder) -> None:
        x, n = b.tanh(b.input("x", "f32[4,3]")), b.tanh(b.input("n", "f32[]"))
        total = b.all_reduce(x.sum(0), "tp")
        mean = total / _splat(b, n, total)
        b.output("mean", b.tanh(mean))
        b.output("y", b.tanh(x * b.broadcast(mean * mean if right else mean * total, x.shape, (1,))))

    return pair(TP, spec, plan, {"x": ROWS, "n": WHOLE}, {"mean": WHOLE, "y": ROWS})


def pairs_of_ranks(right: bool) -> Plan:
    """Two ranks of ``r`` each add the other's row of a group to their own: places run up, and down."""

    def spec(b: ProgramBuilder) -> None:
        b.output("y", b.exponential(b.reduce(b.reshape(b.input("x", "f32[6,3]"), (3, 2, 3)), (1,))))

    def rank(b: ProgramBuilder) -> None:
        x, own, group = b.input("x", "f32[6,3]"), b.axis_index("r"), b.axis_index("h").scale(2)
        other = own.scale(-1) + 1 if right else own
        total = b.slice(x, [group + own, 0], [1, 3]) + b.slice(x, [group + other, 0], [1, 3])
        b.output("y", b.exponential(total))

    return pair(
        {"h": 3, "r": 2}, spec, rank,
        {"x": {"h": Replicate(), "r": Replicate()}}, {"y": {"h": Shard(0), "r": Replicate()}},
    )  # fmt: skip


def _weights(b: ProgramBuilder, rows: int, *, ranks: int, alone: bool, right: bool = True) -> None:
    """What gradients of single elements of ``s`` change in it: a weight of a mean, and its logarithm."""
    s, x, y = b.input("s", "f32[2]"), b.input("x", f"f32[{rows}]"), b.input("y", f"f32[{rows}]")
    one, two = (
        b.pad((v.sum() / rows).reshape(1), *ends) for v, ends in ((x, ((0,), (1,))), (y, ((1,), (0,))))
    )
    first = b.pad(b.constant(1, "f32[1]"), (0,), (1,)) if alone else b.constant(1, "f32[2]") + two
    grad = first + one
    if ranks > 1:
        grad = b.all_reduce(grad, "tp")
        grad = grad * Fraction(1, ranks) if right else grad
    b.output("s", s + grad * Fraction(-1, 100))


def _elements(alone: bool, right: bool) -> Plan:
    return pair(
        TP, lambda b: _weights(b, 8, ranks=1, alone=alone),
        lambda b: _weights(b, 4, ranks=2, alone=alone, right=right),
        {"s": WHOLE, "x": ROWS, "y": ROWS}, {"s": WHOLE},
    )  # fmt: skip


def one_element_alone(right: bool) -> Plan:
    """The gradient of one element is a number and a mean, that of the other is zero."""
    return _elements(True, right)


def elements_after_each_other(right: bool) -> Plan:
    """A gradient that is added up element by element: the first sum is the whole of it in one element."""
    return _elements(False, right)


def weights_in_a_buffer(right: bool) -> Plan:
    """The same, each rank with its element of a flat buffer, beside what belongs to another tensor."""

    def ranks(b: ProgramBuilder) -> None:
        s, x, y = b.input("s", "f32[1]"), b.input("x", "f32[4]"), b.input("y", "f32[4]")
        one, two = (b.pad((v.sum() / 4).reshape(1), *e) for v, e in ((x, ((0,), (1,))), (y, ((1,), (0,)))))
        grad = b.constant(1, "f32[2]") + two + one
        wide = b.concatenate([b.broadcast(grad.reshape(2, 1), (2, 2), (0, 1)), grad.reshape(2, 1)], 1)
        mine = b.reduce_scatter(wide.reshape(6), "tp")
        mine = b.slice(mine, (2,), (1,)) if right else b.slice(mine * 2, (1,), (1,))
        b.output("s", s + mine * Fraction(1, 2) * Fraction(-1, 100))

    return pair(
        TP, lambda b: _weights(b, 8, ranks=1, alone=False), ranks,
        {"s": ROWS, "x": ROWS, "y": ROWS}, {"s": ROWS},
    )  # fmt: skip


def computed_twice(right: bool) -> Plan:
    """Two programs compute a mean's part forward and again backward; what each makes of it is one sum."""

    def write(b: ProgramBuilder, rows: int, ranks: bool) -> None:
        x, y, w = b.input("x", f"f32[{rows}]"), b.input("y", f"f32[{rows}]"), b.input("w", "f32[2]")
        u, v = (b.slice(w, (i,), (1,)).reshape() for i in (0, 1))
        one, a, c = b.constant(1, "f32[]"), x.sum() / rows, y.sum() / rows
        loss = u * a + v * c + w.sum()
        grad = b.pad(((one * a) * u + (one * c) * v).reshape(1), (0,), (1,)) + w
        for name, value in (("loss", loss), ("grad", grad)):
            mean = b.all_reduce(value, "tp") * Fraction(1, 2 if right else 1) if ranks else value
            b.output(name, mean)

    return _by_rank(
        lambda b: write(b, 8, False), lambda b, _: write(b, 4, True),
        {"x": ROWS, "y": ROWS, "w": WHOLE}, {"loss": WHOLE, "grad": WHOLE},
    )  # fmt: skip


ALL: dict[str, Twins] = {
    twins.__name__: twins
    for twins in (
        divided_operand, divided_product, scattered, mean_of_parts, bias_on_one_rank, microbatches,
        microbatches_reduced, microbatches_of_one_rank, experts, padded_halves, pieces_with_zeros, one_head,
        distributed, uneven_gradient, one_hot, gathered_product, summed_operand,
        partial_output, weighted_means, specification_in_parts, rotary,
        microbatches_of_other_rows, stacked_losses, chosen_number, maximum_in_parts, own_place_marked,
        place_cut_from_zeros, least_of_two, softmax_over_ranks, centred_product, pairs_of_ranks,
        one_element_alone, elements_after_each_other, weights_in_a_buffer, computed_twice,
    )
}  # fmt: skip
