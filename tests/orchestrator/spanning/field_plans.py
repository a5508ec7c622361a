"""Right plans that need laws of ``exp``, ``log`` and quotients, each with a wrong twin."""

from __future__ import annotations

from collections.abc import Callable

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Replicate, Shard
from certificates.plan.plan import Plan

from ..plans import pair

Twins = Callable[[bool], Plan]
TP = {"tp": 2}
ROWS, COLUMNS, WHOLE = {"tp": Shard(0)}, {"tp": Shard(1)}, {"tp": Replicate()}


def _over(b: ProgramBuilder, x: Value, like: Value) -> Value:
    return b.broadcast(x, like.shape, (0,))


def cross_entropy(right: bool) -> Plan:
    """Megatron's: the gradient is ``exp(x - max) / sum``; the specification's ``exp`` of the log-softmax."""

    def spec(b: ProgramBuilder) -> None:
        x, hit = b.input("x", "f32[5,8]"), b.input("hit", "f32[5,8]")
        shifted = x - _over(b, b.reduce(x, (1,), "max"), x)
        logp = shifted - _over(b, b.log(b.exponential(shifted).sum(1)), x)
        b.output("loss", -(logp * hit).sum(1))
        b.output("dx", b.exponential(logp) * 0.1 - hit)

    def plan(b: ProgramBuilder) -> None:
        x, hit = b.input("x", "f32[5,4]"), b.input("hit", "f32[5,4]")
        top = b.all_reduce(b.reduce(x, (1,), "max"), "tp", "max")
        e = b.exponential(x - _over(b, top, x))
        own = e.sum(1)
        total = b.all_reduce(own, "tp")
        by = total if right else own
        chosen = b.all_reduce(((x - _over(b, top, x)) * hit).sum(1), "tp")
        mass = b.all_reduce(hit.sum(1), "tp")
        b.output("loss", b.log(total) * mass - chosen)
        b.output("dx", e / _over(b, by, x) * 0.1 - hit)

    return pair(TP, spec, plan, {"x": COLUMNS, "hit": COLUMNS}, {"loss": WHOLE, "dx": COLUMNS})


def log_of_softmax(right: bool) -> Plan:
    """``log(softmax)`` on one device, ``x - logsumexp`` on the ranks."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[6,3]")
        e = b.exponential(x)
        b.output("y", b.log(e / _over(b, e.sum(1), x)))

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[3,3]")
        norm = b.log(b.exponential(x).sum(1))
        b.output("y", x - _over(b, norm if right else norm * 2, x))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS})


def sigmoid_written_out(right: bool) -> Plan:
    """``1 / (1 + exp(-x))``, and a gate of it."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[6]")
        b.output("y", x * b.logistic(x))

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[3]")
        b.output("y", x / (1 + b.exponential(-x if right else x)))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS})


def sigmoid_of_exponentials(right: bool) -> Plan:
    """``exp(x) / (exp(x) + 1)``, and ``1 - sigmoid(x)`` as ``sigmoid(-x)``."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[6]")
        b.output("y", b.logistic(x))
        b.output("z", b.logistic(-x))

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[3]")
        e = b.exponential(x)
        b.output("y", e / (e + (1 if right else 2)))
        b.output("z", 1 - b.logistic(x))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS, "z": ROWS})


def merged_by_sigmoid(right: bool) -> Plan:
    """Two blocks of keys merged as torch's ring attention does: ``out -= sigmoid(l2 - l1) (out - out2)``."""

    def blocks(b: ProgramBuilder, rows: int) -> list[tuple[Value, Value]]:
        made = []
        for n in "ab":
            s, v = b.input(f"s{n}", f"f32[{rows},4]"), b.input(f"v{n}", f"f32[{rows},4]")
            e = b.exponential(s)
            made.append((e.sum(1), (e * v).sum(1)))
        return made

    def spec(b: ProgramBuilder) -> None:
        (p1, n1), (p2, n2) = blocks(b, 6)
        b.output("out", (n1 + n2) / (p1 + p2))
        b.output("lse", b.log(p1 + p2))

    def plan(b: ProgramBuilder) -> None:
        (p1, n1), (p2, n2) = blocks(b, 3)
        out1, l1, out2, l2 = n1 / p1, b.log(p1), n2 / p2, b.log(p2)
        gate = b.logistic(l2 - l1) if right else b.logistic(l1 - l2)
        b.output("out", out1 - gate * (out1 - out2))
        b.output("lse", l1 - b.log(b.logistic(l1 - l2)))

    inputs = {n: ROWS for n in ("sa", "va", "sb", "vb")}
    return pair(TP, spec, plan, inputs, {"out": ROWS, "lse": ROWS})


def log_add_exp(right: bool) -> Plan:
    """``log(exp x + exp y)`` with the largest taken out, which cancels whatever it is."""

    def spec(b: ProgramBuilder) -> None:
        x, y = b.input("x", "f32[6]"), b.input("y", "f32[6]")
        b.output("z", b.log(b.exponential(x) + b.exponential(y)))

    def plan(b: ProgramBuilder) -> None:
        x, y = b.input("x", "f32[3]"), b.input("y", "f32[3]")
        top = b.maximum(x, y)
        rest = b.log(b.exponential(x - top) + b.exponential(y - top))
        b.output("z", rest + top if right else rest)

    return pair(TP, spec, plan, {"x": ROWS, "y": ROWS}, {"z": ROWS})


def divided_again(right: bool) -> Plan:
    """A norm with a small number added is divided out again: it cannot be zero."""

    def norm(b: ProgramBuilder, x: Value, more: float, sums: bool) -> Value:
        square = (x * x).sum()
        return b.sqrt(b.all_reduce(square, "tp") if sums else square) + more

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[6]")
        n = norm(b, x, 0.001, False)
        b.output("y", x * b.broadcast(1 / n, (6,)))
        b.output("z", x * 2)

    def plan(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[3]")
        n = b.broadcast(norm(b, x, 0.001, True), (3,))
        y = x / n
        b.output("y", y)
        b.output("z", y * n * (2 if right else 3))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS, "z": ROWS})


ALL: dict[str, Twins] = {
    twins.__name__: twins
    for twins in (
        cross_entropy, log_of_softmax, sigmoid_written_out, sigmoid_of_exponentials, merged_by_sigmoid,
        log_add_exp, divided_again,
    )
}  # fmt: skip
