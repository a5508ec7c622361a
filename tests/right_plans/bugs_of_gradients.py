"""Gradients that are not reduced, reduced twice, or in part."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..orchestrator.plans import pair
from .kit import COLUMNS, GRID, ROWS, TP, WHOLE

DP = {"dp": 2}
SHARDED = {"dp": Shard(0)}


def tied_head(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 1548: a tied weight has the gradient of the embedding and that of the head."""

    def write(b: ProgramBuilder, rows: int, sums: bool, both: bool) -> None:
        token, w = b.input("token", f"i64[{rows}]"), b.input("w", "f32[6,4]")
        label = b.input("d", f"f32[{rows},6]")
        h = b.gather(w, token)
        d = (h @ w.T - label) / 8
        head = d.T @ h
        hot = b.compare(b.broadcast(token, (rows, 6), (0,)), b.iota(f"i64[{rows},6]", 1), "EQ")
        embedding = b.convert(hot, "f32").T @ (d @ w)
        g = head + embedding if both else embedding
        b.output("w", w - (b.all_reduce(g, "dp") if sums else g))

    def plan(b: ProgramBuilder) -> None:
        write(b, 4, True, right)  # <-

    return pair(
        DP, lambda b: write(b, 8, False, True), plan, {"token": SHARDED, "d": SHARDED, "w": {}}, {"w": {}},
        {"token": (0, 6)},
    )  # fmt: skip


def one_key_for_all_heads(right: bool) -> Plan:
    """bigcode-project/Megatron-LM 37: with multi-query attention all ranks' heads share keys and values."""

    def write(b: ProgramBuilder, heads: int, sums: bool) -> None:
        x, q = b.input("x", "f32[5,4]"), b.input("q", f"f32[4,{heads},3]")
        k, d = b.input("k", "f32[4,3]"), b.input("d", f"f32[{heads},5,5]")
        queries = b.dot(x, q, ([1], [0]))
        b.output("y", b.dot(queries, x @ k, ([2], [1])).transpose(1, 0, 2))
        keys = b.dot(d, queries, ([0, 1], [1, 0]))
        g = x.T @ keys
        b.output("dk", b.all_reduce(g, "tp") if sums and right else g)  # <-

    heads = {"tp": Shard(1)}
    return pair(
        TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
        {"x": WHOLE, "q": heads, "k": WHOLE, "d": ROWS}, {"y": ROWS, "dk": WHOLE},
    )  # fmt: skip


def norm_under_sequence_parallelism(right: bool) -> Plan:
    """EleutherAI/gpt-neox 1257: a norm sees a piece of the sequence, its gradient is a sum over tp."""

    def write(b: ProgramBuilder, rows: int, sums: bool) -> None:
        x, d, g = b.input("x", f"f32[{rows},4]"), b.input("d", f"f32[{rows},4]"), b.input("g", "f32[4]")
        mean = b.broadcast(x.sum(1) / 4, x.shape, (0,))
        centred = x - mean
        root = b.rsqrt((centred * centred).sum(1) / 4 + 0.001)
        normed = centred * b.broadcast(root, x.shape, (0,))
        b.output("y", normed * b.broadcast(g, x.shape, (1,)))
        for name, grad in (("dg", (d * normed).sum(0)), ("dc", d.sum(0))):
            b.output(name, b.all_reduce(grad, "tp") if sums and right else grad)  # <-

    return pair(
        TP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
        {"x": ROWS, "d": ROWS, "g": WHOLE}, {"y": ROWS, "dg": WHOLE, "dc": WHOLE},
    )  # fmt: skip


def router_of_gathered_scores(right: bool) -> Plan:
    """huggingface/transformers 48687: every rank has its experts' part of the router's gradient."""

    def write(b: ProgramBuilder, mine: int, sums: bool) -> None:
        x, r, w = b.input("x", "f32[6,3]"), b.input("r", "f32[3,4]"), b.input("w", f"f32[{mine},3,5]")
        d = b.input("d", "f32[6,5]")
        scores = b.logistic(x @ r)
        first = b.axis_index("tp").scale(mine) if sums else 0
        own = b.slice(scores, [0, first], [6, mine])
        h = b.dot(w, x, ([1], [1]))
        y = b.dot(h, own, ([0], [1]), ([2], [0]))
        b.output("y", b.all_reduce(y, "tp") if sums else y)
        ds = b.dot(h, d, ([1], [1]), ([2], [0]))
        if sums and right:
            ds = b.all_gather(ds, "tp", 1)
        elif sums:
            ds = b.concatenate([ds, ds], 1)  # <-
        b.output("dr", x.T @ (ds * scores * (1 - scores)))

    return pair(
        TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
        {"x": WHOLE, "r": WHOLE, "w": ROWS, "d": WHOLE}, {"y": WHOLE, "dr": WHOLE},
    )  # fmt: skip


def raw_all_reduce(right: bool) -> Plan:
    """modelscope/ms-swift 9947: the gradient of a sum over vocabulary shards is passed on as it is."""

    def write(b: ProgramBuilder, columns: int, sums: bool) -> None:
        logits, d = b.input("logits", f"f32[5,{columns}]"), b.input("d", "f32[5]")
        e = b.exponential(logits)
        total = b.all_reduce(e.sum(1), "tp") if sums else e.sum(1)
        b.output("z", b.log(total))
        dz = d / total
        dz = dz if right or not sums else b.all_reduce(dz, "tp")  # <-
        b.output("dlogits", e * b.broadcast(dz, e.shape, (0,)))

    return pair(TP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
                {"logits": COLUMNS, "d": WHOLE}, {"z": WHOLE, "dlogits": COLUMNS})  # fmt: skip


def reduced_twice_in_part(right: bool) -> Plan:
    """inclusionAI/AReno 496: of latent attention's keys, one part is a sum over ranks and one is not."""

    def write(b: ProgramBuilder, heads: int, sums: bool) -> None:
        x, down = b.input("x", "f32[5,4]"), b.input("down", "f32[4,5]")
        up, d = b.input("up", f"f32[3,{heads},2]"), b.input("d", f"f32[5,{heads},4]")
        latent = x @ down
        c, rope = latent[:, 0:3], latent[:, 3:5]
        nope = b.dot(c, up, ([1], [0]))
        b.output("k", b.concatenate([nope, b.broadcast(rope, (5, heads, 2), (0, 2))], 2))
        dc = b.dot(d[:, :, 0:2], up, ([1, 2], [1, 2]))
        dr = d[:, :, 2:4].sum(1)
        dc = b.all_reduce(dc, "tp") if sums else dc
        dr = b.all_reduce(dr, "tp") if sums else dr
        dl = b.pad(dc, (0, 0), (0, 2)) + b.pad(dr, (0, 3), (0, 0))
        b.output("ddown", x.T @ dl if right or not sums else b.all_reduce(x.T @ dl, "tp"))  # <-

    heads = {"tp": Shard(1)}
    return pair(
        TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
        {"x": WHOLE, "down": WHOLE, "up": heads, "d": heads}, {"k": heads, "ddown": WHOLE},
    )  # fmt: skip


def replicas_differ(right: bool) -> Plan:
    """openxla/xla 40034: the all-reduce over replicas is inserted for every gradient."""

    def write(b: ProgramBuilder, rows: int, sums: bool) -> None:
        x, d = b.input("x", f"f32[{rows},3]"), b.input("d", f"f32[{rows},5]")
        w, c = b.input("w", "f32[3,5]"), b.input("c", "f32[5]")
        dw, dc = x.T @ d / 8, d.sum(0) / 8
        b.output("w", w - (b.all_reduce(dw, "dp") if sums else dw))
        b.output("c", c - (b.all_reduce(dc, "dp") if sums and right else dc))  # <-

    return pair(DP, lambda b: write(b, 8, False), lambda b: write(b, 4, True),
                {"x": SHARDED, "d": SHARDED, "w": {}, "c": {}}, {"w": {}, "c": {}})  # fmt: skip


def added_before_the_reduction(right: bool) -> Plan:
    """openxla/xla 42481: what rows are scattered into is added once, after the sum over ranks."""

    def write(b: ProgramBuilder, rows: int) -> tuple[Value, Value]:
        token, d, base = (
            b.input("token", f"i64[{rows}]"),
            b.input("d", f"f32[{rows},3]"),
            b.input("base", "f32[6,3]"),
        )
        hot = b.compare(b.broadcast(token, (rows, 6), (0,)), b.iota(f"i64[{rows},6]", 1), "EQ")
        return base, b.convert(hot, "f32").T @ d

    def spec(b: ProgramBuilder) -> None:
        base, more = write(b, 8)
        b.output("out", base + more)

    def plan(b: ProgramBuilder) -> None:
        base, more = write(b, 4)
        out = base + b.all_reduce(more, "dp") if right else b.all_reduce(base + more, "dp")  # <-
        b.output("out", out)

    return pair(DP, spec, plan, {"token": SHARDED, "d": SHARDED, "base": {}}, {"out": {}},
                {"token": (0, 6)})  # fmt: skip


def shared_expert_not_reduced(right: bool) -> Plan:
    """vllm-project/tpu-inference 3435: the shared expert's partial result joins the sum over ranks."""

    def write(b: ProgramBuilder, hidden: int, mine: int, sums: bool) -> None:
        x, w = b.input("x", "f32[6,3]"), b.input("w", f"f32[{mine},3,3]")
        gate = b.input("gate", f"f32[6,{mine}]")
        up, down = b.input("up", f"f32[3,{hidden}]"), b.input("down", f"f32[{hidden},3]")
        routed = b.dot(b.dot(w, x, ([1], [1])), gate, ([0], [1]), ([2], [0]))
        h = x @ up
        shared = (h * b.logistic(h)) @ down
        if sums and right:
            y = b.all_reduce(routed + shared, "tp")
        elif sums:
            y = b.all_reduce(routed, "tp") + shared  # <-
        else:
            y = routed + shared
        b.output("y", y)

    return pair(
        TP, lambda b: write(b, 8, 4, False), lambda b: write(b, 4, 2, True),
        {"x": WHOLE, "w": ROWS, "gate": COLUMNS, "up": COLUMNS, "down": ROWS}, {"y": WHOLE},
    )  # fmt: skip


def recomputed_over_another_group(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 7452 (4): recomputation gathers over tp, not over the replicas."""

    def write(b: ProgramBuilder, rows: int, columns: int, sums: bool) -> None:
        x, w, d = (
            b.input("x", f"f32[{rows},3]"),
            b.input("w", f"f32[3,{columns}]"),
            b.input("d", f"f32[{rows * (2 if sums else 1)},{columns}]"),
        )
        whole = b.all_gather(x, "tp", 0) if sums else x
        b.output("y", b.tanh(whole @ w))
        again = b.all_gather(x, "tp" if right else "dp", 0) if sums else x  # <-
        y = b.tanh(again @ w)
        dw = again.T @ (d * (1 - y * y))
        b.output("dw", b.all_reduce(dw, "dp") if sums else dw)

    rows = {"dp": Shard(0), "tp": Shard(0)}
    both = {"dp": Shard(0), "tp": Shard(1)}
    return pair(
        GRID, lambda b: write(b, 8, 6, False), lambda b: write(b, 2, 3, True),
        {"x": rows, "w": COLUMNS, "d": both}, {"y": both, "dw": COLUMNS},
    )  # fmt: skip
