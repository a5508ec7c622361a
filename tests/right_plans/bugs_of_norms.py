"""Gradient norms and clipping that leave out a part, or count one twice; optimizers of pieces."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..orchestrator.plans import pair
from .kit import COLUMNS, ROWS, TP, WHOLE


def _square(x: Value) -> Value:
    return (x * x).sum()


def _clip(b: ProgramBuilder, norm: Value, **grads: Value) -> None:
    scale = b.minimum(1 / (norm + 0.001), b.constant(1, "f32[]"))
    b.output("norm", norm)
    for name, g in grads.items():
        b.output(name, b.input(name, g.type) - g * b.broadcast(scale, g.shape) * 0.1)


def sinks_without_a_tag(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 7452 (8): attention sinks lie on the tensor-parallel ranks, their norm is a sum."""

    def spec(b: ProgramBuilder) -> None:
        dw, ds, dn = b.input("dw", "f32[4,6]"), b.input("ds", "f32[6]"), b.input("dn", "f32[4]")
        _clip(b, b.sqrt(_square(dw) + _square(ds) + _square(dn)), w=dw, s=ds, n=dn)

    def plan(b: ProgramBuilder) -> None:
        dw, ds, dn = b.input("dw", "f32[4,3]"), b.input("ds", "f32[3]"), b.input("dn", "f32[4]")
        sharded = _square(dw) + _square(ds) if right else _square(dw)  # <-
        total = b.all_reduce(sharded, "tp") + _square(dn)
        _clip(b, b.sqrt(total), w=dw, s=ds, n=dn)

    return pair(
        TP, spec, plan,
        {"dw": COLUMNS, "ds": ROWS, "dn": WHOLE, "w": COLUMNS, "s": ROWS, "n": WHOLE},
        {"norm": WHOLE, "w": COLUMNS, "s": ROWS, "n": WHOLE},
    )  # fmt: skip


def experts_left_out(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 5916: with ep and tp, the norm has the experts of all ranks."""
    mesh = {"ep": 2, "tp": 2}
    both, columns = {"ep": Shard(0), "tp": Shard(1)}, {"tp": Shard(0)}

    def spec(b: ProgramBuilder) -> None:
        de, dw = b.input("de", "f32[4,6]"), b.input("dw", "f32[6]")
        _clip(b, b.sqrt(_square(de) + _square(dw)), e=de, w=dw)

    def plan(b: ProgramBuilder) -> None:
        de, dw = b.input("de", "f32[2,3]"), b.input("dw", "f32[3]")
        experts = b.all_reduce(_square(de), "ep") if right else _square(de)  # <-
        _clip(b, b.sqrt(b.all_reduce(experts + _square(dw), "tp")), e=de, w=dw)

    return pair(mesh, spec, plan, {"de": both, "dw": columns, "e": both, "w": columns},
                {"norm": {}, "e": both, "w": columns})  # fmt: skip


def clipped_on_one_rank(right: bool) -> Plan:
    """BLOOM-176B, microsoft/DeepSpeed 1801: all tensor-parallel ranks scale a replicated gradient alike."""

    def spec(b: ProgramBuilder) -> None:
        dw, dn = b.input("dw", "f32[6]"), b.input("dn", "f32[4]")
        _clip(b, b.sqrt(_square(dw) + _square(dn)), w=dw, n=dn)

    def plan(b: ProgramBuilder) -> None:
        dw, dn = b.input("dw", "f32[3]"), b.input("dn", "f32[4]")
        total = b.all_reduce(_square(dw), "tp") if right else _square(dw)  # <-
        _clip(b, b.sqrt(total + _square(dn)), w=dw, n=dn)

    return pair(TP, spec, plan, {"dw": ROWS, "dn": WHOLE, "w": ROWS, "n": WHOLE},
                {"norm": WHOLE, "w": ROWS, "n": WHOLE})  # fmt: skip


def divisor_under_ulysses(right: bool) -> Plan:
    """deepspeedai/DeepSpeed 5248, 5555: gradients that sequence ranks sum are divided by data ranks only."""
    mesh, rows = {"dp": 2, "sp": 2}, {"dp": Shard(0), "sp": Shard(1)}

    def spec(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[4,6,3]"), b.input("d", "f32[4,6,5]")
        g = b.dot(x, d, ([0, 1], [0, 1])) / 4
        b.output("norm", b.sqrt(_square(g)))

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[2,3,3]"), b.input("d", "f32[2,3,5]")
        g = b.dot(x, d / 2, ([0, 1], [0, 1]))
        g = b.all_reduce(b.all_reduce(g, "sp"), "dp") / (2 if right else 4)  # <-
        b.output("norm", b.sqrt(_square(g)))

    return pair(mesh, spec, plan, {"x": rows, "d": rows}, {"norm": {}})


def norm_of_one_stage(right: bool) -> Plan:
    """pytorch/torchtitan 649: the norm of all layers, which lie on the stages."""
    mesh, stages = {"pp": 2, "dp": 2}, {"pp": Shard(0), "dp": Shard(1)}

    def spec(b: ProgramBuilder) -> None:
        g = b.input("g", "f32[4,6,5]")
        _clip(b, b.sqrt(_square(g)), w=g)

    def plan(b: ProgramBuilder) -> None:
        g = b.input("g", "f32[2,3,5]")
        total = b.all_reduce(_square(g), "dp")
        total = b.all_reduce(total, "pp") if right else total  # <-
        _clip(b, b.sqrt(total), w=g)

    return pair(mesh, spec, plan, {"g": stages, "w": stages}, {"norm": {}, "w": stages})


def experts_not_summed(right: bool) -> Plan:
    """hpcaitech/ColossalAI 2192: the norm of experts is the same number on all ranks."""

    def spec(b: ProgramBuilder) -> None:
        de, dw = b.input("de", "f32[4,3]"), b.input("dw", "f32[5]")
        first, second = b.sqrt(_square(de)), b.sqrt(_square(dw))
        _clip(b, b.sqrt(first * first + second * second), e=de, w=dw)

    def plan(b: ProgramBuilder) -> None:
        de, dw = b.input("de", "f32[2,3]"), b.input("dw", "f32[5]")
        first, second = b.sqrt(_square(de)), b.sqrt(_square(dw))
        experts = b.all_reduce(first * first, "tp") if right else first * first * 2  # <-
        _clip(b, b.sqrt(experts + second * second), e=de, w=dw)

    return pair(TP, spec, plan, {"de": ROWS, "dw": WHOLE, "e": ROWS, "w": WHOLE},
                {"norm": WHOLE, "e": ROWS, "w": WHOLE})  # fmt: skip


def _grouped(right: bool, specification: int, factor: int, wrong: int) -> Plan:
    """Gradients of experts: over expert-data ranks only, by the tokens of all ranks."""
    mesh = {"edp": 2, "ep": 2}

    def spec(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[4,8,3]"), b.input("d", "f32[4,8,5]")
        b.output("dw", b.dot(x, d, ([1], [1]), ([0], [0])) / specification)

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[2,4,3]"), b.input("d", "f32[2,4,5]")
        g = b.dot(x, d, ([1], [1]), ([0], [0]))
        g = b.all_reduce(g, "edp")
        b.output("dw", g / (factor if right else wrong))  # the mark is at the entries

    rows = {"edp": Shard(1), "ep": Shard(0)}
    return pair(mesh, spec, plan, {"x": rows, "d": rows}, {"dw": {"ep": Shard(0)}})


def averaged_over_a_wrong_group(right: bool) -> Plan:
    """deepspeedai/DeepSpeed 5618: expert gradients are averaged over all ranks that have seen tokens."""
    return _grouped(right, 4, 4, 2)  # <-


def divide_factor_of_experts(right: bool) -> Plan:
    """pytorch/pytorch 160285, torchtitan 1551: FSDP's factor is that of the whole mesh."""
    return _grouped(right, 1, 1, 2)  # <-


def factor_at_shard_size_one(right: bool) -> Plan:
    """pytorch/pytorch 167178: a factor is applied on a mesh dimension of one rank too."""
    mesh, rows = {"shard": 1, "dp": 2}, {"dp": Shard(0)}

    def spec(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[8,3]"), b.input("d", "f32[8,5]")
        b.output("dw", x.T @ d / 8)

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[4,3]"), b.input("d", "f32[4,5]")
        g = b.reduce_scatter(x.T @ d, "shard", 0)
        g = b.all_reduce(g, "dp") / (8 if right else 4)  # <-
        b.output("dw", b.all_gather(g, "shard", 0))

    return pair(mesh, spec, plan, {"x": rows, "d": rows}, {"dw": {}})


def experts_on_the_dense_group(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 1628, 1622: expert gradients are reduced over the ranks that share the expert."""
    mesh = {"edp": 2, "ep": 2}

    def spec(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[2,8,3]"), b.input("d", "f32[2,8,3]")
        b.output("dw", b.dot(x, d, ([1], [1]), ([0], [0])))

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[1,4,3]"), b.input("d", "f32[1,4,3]")
        g = b.dot(x, d, ([1], [1]), ([0], [0]))
        b.output("dw", b.all_reduce(g, "edp" if right else "ep"))  # <-

    rows = {"edp": Shard(1), "ep": Shard(0)}
    return pair(mesh, spec, plan, {"x": rows, "d": rows}, {"dw": {"ep": Shard(0)}})
