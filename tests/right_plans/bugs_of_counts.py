"""Losses and gradients divided by a wrong number of tokens, ranks or steps."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..orchestrator.plans import pair
from .kit import COLUMNS, TP, WHOLE

CP = {"cp": 2}
ROWS = {"cp": Shard(0)}


def _errors(b: ProgramBuilder, rows: int, mask: str = "on") -> tuple[Value, Value, Value]:
    """Inputs of a linear model, its masked errors, and the mask."""
    x, t, w = b.input("x", f"f32[{rows},3]"), b.input("t", f"f32[{rows}]"), b.input("w", "f32[3]")
    on = b.input(mask, f"f32[{rows}]")
    return x, (b.dot(x, w, ([1], [0])) - t) * on, on


def _over(b: ProgramBuilder, x: Value, count: Value) -> Value:
    return x / b.broadcast(count, x.shape)


INPUTS = {"x": ROWS, "t": ROWS, "on": ROWS, "w": {}}


def prediction_by_local_counts(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 7452 (3): the gradient of multi-token prediction by the tokens of all ranks."""

    def spec(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 8)
        b.output("dw", b.dot(x, _over(b, e, on.sum()), ([0], [0])))

    def plan(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 4)
        count = b.all_reduce(on.sum(), "cp") if right else on.sum() * 2  # <-
        b.output("dw", b.all_reduce(b.dot(x, _over(b, e, count), ([0], [0])), "cp"))

    return pair(CP, spec, plan, INPUTS, {"dw": {}})


def auxiliary_count_overwritten(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 7452 (10): an all-reduce in place leaves the sum where the local count is read."""

    def spec(b: ProgramBuilder) -> None:
        p, m = b.input("p", "f32[8,4]"), b.input("m", "f32[8,4]")
        count = m.sum(0)
        b.output("aux", (p.sum(0) * count).sum() / 64)
        b.output("load", count)
        b.output("dp", b.broadcast(count, (8, 4), (1,)) / 64)

    def plan(b: ProgramBuilder) -> None:
        p, m = b.input("p", "f32[4,4]"), b.input("m", "f32[4,4]")
        own = m.sum(0)
        count = b.all_reduce(own, "cp")
        again = b.all_reduce(own if right else count, "cp")  # <-
        b.output("aux", b.all_reduce((p.sum(0) * count).sum() / 64, "cp"))
        b.output("load", count)
        b.output("dp", b.broadcast(again, (4, 4), (1,)) / 64)

    return pair(CP, spec, plan, {"p": ROWS, "m": ROWS}, {"aux": {}, "load": {}, "dp": ROWS})


def auxiliary_loss_by_local_tokens(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 1652: the load-balancing loss under context parallelism by all tokens."""

    def write(b: ProgramBuilder, rows: int, sums: bool, tokens: int) -> None:
        p, m = b.input("p", f"f32[{rows},4]"), b.input("m", f"f32[{rows},4]")
        load, chance = m.sum(0), p.sum(0)
        if sums:
            load, chance = b.all_reduce(load, "cp"), b.all_reduce(chance, "cp")
        b.output("aux", (load / tokens * (chance / 8)).sum() * 4)

    def plan(b: ProgramBuilder) -> None:
        write(b, 4, True, 8 if right else 4)  # <-

    return pair(CP, lambda b: write(b, 8, False, 8), plan, {"p": ROWS, "m": ROWS}, {"aux": {}})


def prediction_divided_again(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 3959: a mean over cp that the main loss is scaled for, the second head not."""

    def spec(b: ProgramBuilder) -> None:
        x, e, _ = _errors(b, 8)
        b.output("dw", b.dot(x, e + e * e / 10, ([0], [0])) / 8)

    def plan(b: ProgramBuilder) -> None:
        x, e, _ = _errors(b, 4)
        main = e * 2
        second = e * e / 10 * (2 if right else 1)  # <-
        b.output("dw", b.all_reduce(b.dot(x, (main + second) / 8, ([0], [0])), "cp") / 2)

    return pair(CP, spec, plan, INPUTS, {"dw": {}})


def rolled_mask(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 2417, 3159: a mask that is moved by one has a count of its own."""

    def spec(b: ProgramBuilder) -> None:
        x, e, _ = _errors(b, 8)
        rolled = b.input("rolled", "f32[8]")
        e = e * rolled
        b.output("loss", (e * e).sum() / rolled.sum())
        b.output("dw", b.dot(x, _over(b, e * rolled, rolled.sum()), ([0], [0])))

    def plan(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 4)
        rolled = b.input("rolled", "f32[4]")
        e = e * rolled
        counted = rolled if right else on  # <-
        count = b.all_reduce(counted.sum(), "cp")
        b.output("loss", b.all_reduce((e * e).sum(), "cp") / count)
        b.output("dw", b.all_reduce(b.dot(x, e * rolled, ([0], [0])), "cp") / b.broadcast(count, (3,)))

    return pair(CP, spec, plan, {**INPUTS, "rolled": ROWS}, {"loss": {}, "dw": {}})


def loss_scaled_by_ranks(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 906, 673: a loss per token is not scaled by cp, as its gradients are added."""

    def spec(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 8)
        count = on.sum()
        b.output("loss", (e * e).sum() / count)
        b.output("dw", _over(b, b.dot(x, e, ([0], [0])), count))

    def plan(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 4)
        count = b.all_reduce(on.sum(), "cp")
        d = e if right else e * 2  # <-
        b.output("loss", b.all_reduce((e * e).sum(), "cp") / count)
        b.output("dw", _over(b, b.all_reduce(b.dot(x, d, ([0], [0])), "cp"), count))

    return pair(CP, spec, plan, INPUTS, {"loss": {}, "dw": {}})


def mean_on_a_sum(right: bool) -> Plan:
    """pytorch/torchtune 2172: FSDP's mean of gradients of a sum over tokens is scaled back by the ranks."""

    def spec(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 8)
        b.output("dw", _over(b, b.dot(x, e, ([0], [0])), on.sum()))

    def plan(b: ProgramBuilder) -> None:
        x, e, on = _errors(b, 4)
        count = b.all_reduce(on.sum(), "cp")
        mean = b.all_reduce(b.dot(x, e, ([0], [0])) / 2, "cp")
        scale = (2 if right else 1) / count  # <-
        b.output("dw", mean * b.broadcast(scale, (3,)))

    return pair(CP, spec, plan, INPUTS, {"dw": {}})


def factor_of_a_group(right: bool) -> Plan:
    """verl-project/verl 4250: the loss of a rank times the ranks that average it."""
    mesh, rows = {"dp": 2, "cp": 3}, {"dp": Shard(0), "cp": Shard(1)}

    def write(b: ProgramBuilder, n: int, m: int) -> tuple[Value, Value]:
        x, on = b.input("x", f"f32[{n},{m}]"), b.input("on", f"f32[{n},{m}]")
        return (x * on).sum(), on.sum()

    def spec(b: ProgramBuilder) -> None:
        total, count = write(b, 4, 6)
        b.output("loss", total / count)

    def plan(b: ProgramBuilder) -> None:
        total, count = write(b, 2, 2)
        count = b.all_reduce(b.all_reduce(count, "cp"), "dp")
        own = total / count * (6 if right else 2)  # <-
        b.output("loss", b.all_reduce(b.all_reduce(own, "cp") / 3, "dp") / 2)

    return pair(mesh, spec, plan, {"x": rows, "on": rows}, {"loss": {}})


def _chunks(b: ProgramBuilder) -> list[tuple[Value, Value, Value]]:
    """Two microbatches of a linear model: inputs, errors, mask."""
    x, t = b.input("x", "f32[2,4,3]"), b.input("t", "f32[2,4]")
    on, w = b.input("on", "f32[2,4]"), b.input("w", "f32[3]")
    out = []
    for i in range(2):
        xi, ti, oi = (
            v[i : i + 1].reshape(*v.shape[1:]) for v in (x, t, on)
        )  # fmt: skip
        out.append((xi, (b.dot(xi, w, ([1], [0])) - ti) * oi, oi))
    return out


def _whole(b: ProgramBuilder) -> None:
    x, t = b.input("x", "f32[2,8,3]"), b.input("t", "f32[2,8]")
    on, w = b.input("on", "f32[2,8]"), b.input("w", "f32[3]")
    e = (b.dot(x, w, ([2], [0])) - t) * on
    b.output("loss", (e * e).sum() / on.sum())
    b.output("dw", _over(b, b.dot(x, e, ([0, 1], [0, 1])), on.sum()))


SECOND = {"cp": Shard(1)}
CHUNKED = {"x": SECOND, "t": SECOND, "on": SECOND, "w": {}}


def mean_of_microbatches(right: bool) -> Plan:
    """huggingface/transformers 34191, 35203, 37766: gradients by the tokens of all microbatches."""

    def plan(b: ProgramBuilder) -> None:
        chunks = _chunks(b)
        count = b.all_reduce(chunks[0][2].sum() + chunks[1][2].sum(), "cp")
        loss = dw = None
        for x, e, on in chunks:
            by = count if right else b.all_reduce(on.sum(), "cp") * 2  # <-
            part, grad = (e * e).sum() / by, b.dot(x, _over(b, e, by), ([0], [0]))
            loss, dw = (part, grad) if loss is None or dw is None else (loss + part, dw + grad)
        assert loss is not None and dw is not None
        b.output("loss", b.all_reduce(loss, "cp"))
        b.output("dw", b.all_reduce(dw, "cp"))

    return pair(CP, _whole, plan, CHUNKED, {"loss": {}, "dw": {}})


def gradients_rescaled_each_time(right: bool) -> Plan:
    """pytorch/torchtitan 1733: what is accumulated is scaled once, at the end."""

    def plan(b: ProgramBuilder) -> None:
        (x0, e0, on0), (x1, e1, on1) = _chunks(b)
        count = b.all_reduce(on0.sum() + on1.sum(), "cp")
        first = b.dot(x0, e0, ([0], [0]))
        first = first if right else _over(b, first, count)  # <-
        dw = _over(b, first + b.dot(x1, e1, ([0], [0])), count)
        b.output("loss", b.all_reduce(((e0 * e0).sum() + (e1 * e1).sum()) / count, "cp"))
        b.output("dw", b.all_reduce(dw, "cp"))

    return pair(CP, _whole, plan, CHUNKED, {"loss": {}, "dw": {}})


def divided_after_the_backward(right: bool) -> Plan:
    """pytorch/torchtitan 2972: gradients are divided by the tokens that are valid, as the loss is."""

    def plan(b: ProgramBuilder) -> None:
        chunks = _chunks(b)
        count = b.all_reduce(chunks[0][2].sum() + chunks[1][2].sum(), "cp")
        loss = (chunks[0][1] * chunks[0][1]).sum() + (chunks[1][1] * chunks[1][1]).sum()
        dw = b.dot(chunks[0][0], chunks[0][1], ([0], [0])) + b.dot(chunks[1][0], chunks[1][1], ([0], [0]))
        b.output("loss", b.all_reduce(loss, "cp") / count)
        dw = b.all_reduce(dw, "cp")
        b.output("dw", _over(b, dw, count) if right else dw)  # <-

    return pair(CP, _whole, plan, CHUNKED, {"loss": {}, "dw": {}})


def only_the_last_microbatch(right: bool) -> Plan:
    """NVIDIA-NeMo/Automodel 3530: a stage made anew forgets the gradients of earlier microbatches."""

    def plan(b: ProgramBuilder) -> None:
        (x0, e0, on0), (x1, e1, on1) = _chunks(b)
        count = b.all_reduce(on0.sum() + on1.sum(), "cp")
        last = b.dot(x1, _over(b, e1, count), ([0], [0]))
        dw = b.dot(x0, _over(b, e0, count), ([0], [0])) + last if right else last  # <-
        b.output("loss", b.all_reduce((e0 * e0).sum() + (e1 * e1).sum(), "cp") / count)
        b.output("dw", b.all_reduce(dw, "cp"))

    return pair(CP, _whole, plan, CHUNKED, {"loss": {}, "dw": {}})


def divisor_per_stage(right: bool) -> Plan:
    """deepspeedai/DeepSpeed 8152, 8154: the number of microbatches divides the last stage's gradient only."""

    def spec(b: ProgramBuilder) -> None:
        x, u, w = b.input("x", "f32[8,3]"), b.input("u", "f32[3,5]"), b.input("w", "f32[5,2]")
        h = b.tanh(x @ u)
        d = h @ w / 8
        b.output("dw", h.T @ d)
        b.output("du", x.T @ ((d @ w.T) * (1 - h * h)))

    def plan(b: ProgramBuilder) -> None:
        x, u, w = b.input("x", "f32[4,3]"), b.input("u", "f32[3,5]"), b.input("w", "f32[5,2]")
        du, dw = b.constant(0, "f32[3,5]"), b.constant(0, "f32[5,2]")
        for i in range(2):
            xi = x[2 * i : 2 * i + 2]
            h = b.tanh(xi @ u)
            d = h @ w / 2 / 2
            back = d @ w.T if right else d @ w.T / 2  # <-
            dw, du = dw + h.T @ d, du + xi.T @ (back * (1 - h * h))
        b.output("dw", b.all_reduce(dw, "cp") / 2)
        b.output("du", b.all_reduce(du, "cp") / 2)

    return pair(CP, spec, plan, {"x": ROWS, "u": {}, "w": {}}, {"dw": {}, "du": {}})


def smoothed_by_local_classes(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 737, 7464: smoothed labels are spread over the whole vocabulary."""

    def write(b: ProgramBuilder, columns: int, sums: bool) -> None:
        logits, label = b.input("logits", f"f32[5,{columns}]"), b.input("label", "i64[5]")

        def over(v: Value, kind: str = "add") -> Value:
            return b.all_reduce(v, "tp", kind) if sums else v

        shape = logits.shape
        top = over(b.reduce(logits, (1,), "max"), "max")
        shifted = logits - b.broadcast(top, shape, (0,))
        norm = b.log(over(b.exponential(shifted).sum(1)))
        first = b.constant(b.axis_index("tp").scale(columns), "i64[5]") if sums else b.constant(0, "i64[5]")
        own = b.broadcast(label - first, shape, (0,))
        hit = b.convert(b.compare(own, b.iota(own.type, 1), "EQ"), "f32")
        nll = norm - over((shifted * hit).sum(1))
        total = shifted.sum(1)
        total = over(total) if right or not sums else total * 2  # <-
        b.output("loss", nll * 0.9 + (norm - total / 8) * 0.1)

    return pair(
        TP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
        {"logits": COLUMNS, "label": WHOLE}, {"loss": WHOLE}, {"label": (0, 8)},
    )  # fmt: skip


def packed_lengths(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 4495, 6205: packed sequences end where padded lengths say."""

    def write(b: ProgramBuilder, rows: int, sums: bool) -> None:
        q, k = b.input("q", f"f32[{rows},3]"), b.input("k", f"f32[{rows},3]")
        end, short = b.input("end", "i64[]"), b.input("short", "i64[]")
        first = b.axis_index("cp").scale(rows) if sums else 0
        whole = b.all_gather(k, "cp", 0) if sums else k
        scores = b.dot(q, whole, ([1], [1]))
        shape = f"i64[{rows},8]"
        bound = end if right or not sums else short  # <-
        at = b.iota(shape, 0)
        at = at + b.constant(first, shape) if sums else at
        mine = b.compare(at, b.broadcast(bound, (rows, 8)), "LT")
        theirs = b.compare(b.iota(shape, 1), b.broadcast(bound, (rows, 8)), "LT")
        alike = b.logical_or(b.logical_and(mine, theirs),
                             b.logical_and(b.logical_not(mine), b.logical_not(theirs)))  # fmt: skip
        b.output("y", b.select(alike, scores, b.constant(0, scores.type)))
        b.output("n", short)

    return pair(
        CP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
        {"q": ROWS, "k": ROWS, "end": {}, "short": {}}, {"y": ROWS, "n": {}},
        {"end": (0, 9), "short": (0, 9)},
    )  # fmt: skip
