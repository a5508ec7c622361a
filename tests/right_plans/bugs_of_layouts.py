"""Pieces cut, gathered or placed in a wrong way."""

from __future__ import annotations

from certificates.authoring.build import ProgramBuilder
from certificates.plan.affine import Affine
from certificates.plan.placements import Shard
from certificates.plan.plan import Piece, Plan, Relation

from ..orchestrator.plans import pair
from .kit import COLUMNS, GRID, ROWS, TP, WHOLE, placed

BATCH = {"dp": Shard(0)}


def padding_mask_of_another_group(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 7452 (5): the padding mask is gathered over tp, as the tokens are."""
    both = {"dp": Shard(0), "tp": Shard(1)}

    def spec(b: ProgramBuilder) -> None:
        x, on, w = b.input("x", "f32[4,6,3]"), b.input("on", "f32[4,6]"), b.input("w", "f32[3,4]")
        p = b.logistic(b.dot(x, w, ([2], [0])))
        b.output("y", p * b.broadcast(on, p.shape, (0, 1)))
        b.output("load", (p * b.broadcast(on, p.shape, (0, 1))).sum(0, 1))

    def plan(b: ProgramBuilder) -> None:
        x, on, w = b.input("x", "f32[2,3,3]"), b.input("on", "f32[2,3]"), b.input("w", "f32[3,4]")
        whole = b.all_gather(x, "tp", 1)
        mask = b.all_gather(on, "tp" if right else "dp", 1)  # <-
        p = b.logistic(b.dot(whole, w, ([2], [0])))
        kept = p * b.broadcast(mask, p.shape, (0, 1))
        b.output("y", kept)
        b.output("load", b.all_reduce(kept.sum(0, 1), "dp"))

    return pair(GRID, spec, plan, {"x": both, "on": both, "w": {}}, {"y": BATCH, "load": {}})


def scattered_without_a_group(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 7452 (7): a rank keeps its piece of the sequence by its number in tp."""

    def spec(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[8,3]"), b.input("w", "f32[3,3]")
        b.output("y", b.tanh(x @ w))

    def plan(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[8,3]"), b.input("w", "f32[3,3]")
        own = b.axis_index("tp" if right else "dp").scale(4)  # <-
        b.output("y", b.tanh(b.slice(x, [own, 0], [4, 3]) @ w))

    return pair(GRID, spec, plan, {"x": {}, "w": {}}, {"y": {"tp": Shard(0)}})


def packed_projection_split_evenly(right: bool) -> Plan:
    """NVIDIA/Megatron-LM 1989: of a packed projection every rank has its heads' queries, keys and values."""

    def write(b: ProgramBuilder, heads: int, cuts: tuple[int, int], sums: bool) -> None:
        x, w = b.input("x", "f32[5,4]"), b.input("w", f"f32[4,{heads * 8}]")
        packed = x @ w
        parts = packed[:, : cuts[0]], packed[:, cuts[0] : cuts[1]], packed[:, cuts[1] :]
        q, k, v = ((part * part).sum(1) for part in parts)
        y = q + k * 2 + v * 3
        b.output("y", b.all_reduce(y, "tp") if sums else y)

    def plan(b: ProgramBuilder) -> None:
        write(b, 2, (4, 8) if right else (5, 10), True)  # <-

    pieces = []
    for start, size, local in ((0, 4, 0), (8, 4, 4), (16, 8, 8)):
        spec = (Affine.symbol("z0"), Affine.of(start, {"z1": 1, "tp": size}))
        pieces.append(Piece("c0", (4, size), (Affine.symbol("z0"), Affine.of(local, {"z1": 1})), spec))
    inputs = [placed("x", (5, 4), WHOLE, TP), Relation("w", "w", tuple(pieces))]
    return pair(TP, lambda b: write(b, 4, (8, 16), False), plan, inputs, {"y": WHOLE})


def view_of_a_sharded_dimension(right: bool) -> Plan:
    """pytorch/pytorch 179502: columns that are sharded are gathered before rows and columns become one."""

    def spec(b: ProgramBuilder) -> None:
        x, c = b.input("x", "f32[4,6]"), b.input("c", "f32[24]")
        b.output("y", b.tanh(x).reshape(24) * c)

    def plan(b: ProgramBuilder) -> None:
        x, c = b.input("x", "f32[4,3]"), b.input("c", "f32[24]")
        h = b.tanh(x)
        whole = b.all_gather(h, "tp", 1).reshape(24) if right else b.all_gather(h.reshape(12), "tp", 0)  # <-
        b.output("y", whole * c)

    return pair(TP, spec, plan, {"x": COLUMNS, "c": WHOLE}, {"y": WHOLE})


def gradient_of_a_convolution(right: bool) -> Plan:
    """pytorch/pytorch 191926: the gradient of an image that lies by columns lies by columns."""

    def write(b: ProgramBuilder, width: int, sums: bool) -> None:
        d, w = b.input("d", f"f32[3,5,{width}]"), b.input("w", "f32[3,4]")
        out = b.dot(w, d, ([0], [0]))
        if sums and not right:
            out = b.slice(b.all_gather(out, "tp", 2), [b.axis_index("tp").scale(2), 0, 0], [2, 5, 8])  # <-
        elif sums:
            out = b.all_gather(out, "tp", 2)
            out = b.slice(out, [0, 0, b.axis_index("tp").scale(4)], [4, 5, 4])
        b.output("dx", out.reshape(80) if sums else out)

    def spec(b: ProgramBuilder) -> None:
        write(b, 8, False)

    def plan(b: ProgramBuilder) -> None:
        write(b, 4, True)

    z = [Affine.symbol(f"z{i}") for i in range(3)]
    flat = Affine.of(0, {"z0": 20, "z1": 4, "z2": 1})
    piece = Piece("c0", (4, 5, 4), (flat,), (z[0], z[1], Affine.of(0, {"z2": 1, "tp": 4})))
    return pair(
        TP, spec, plan, {"d": {"tp": Shard(2)}, "w": WHOLE}, [Relation("dx", "dx", (piece,))]
    )  # fmt: skip


def order_of_the_contraction(right: bool) -> Plan:
    """pytorch/pytorch 166598: both operands of a product are cut over two axes in the same order."""
    inner, outer = {"dp": Shard(0), "tp": Shard(0)}, {"dp": Shard(1), "tp": Shard(1)}

    def spec(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[5,8]"), b.input("w", "f32[8,3]")
        b.output("y", x @ b.tanh(w))

    def plan(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[5,2]"), b.input("w", "f32[2,3]")
        whole = b.all_gather(b.all_gather(b.tanh(w), "tp", 0), "dp", 0)
        at = Affine.of(0, {"dp": 4, "tp": 2} if right else {"dp": 2, "tp": 4})  # <-
        y = x @ b.slice(whole, [at, 0], [2, 3])
        b.output("y", b.all_reduce(b.all_reduce(y, "tp"), "dp"))

    return pair(GRID, spec, plan, {"x": outer, "w": inner}, {"y": {}})


def weights_of_another_expert(right: bool) -> Plan:
    """huggingface/transformers 45473: scores are scattered to experts in the order of the experts."""

    def write(b: ProgramBuilder, mine: int, sums: bool) -> None:
        x, w, s = b.input("x", "f32[6,3]"), b.input("w", f"f32[{mine},3,5]"), b.input("s", "f32[6,4]")
        if sums:
            first = b.axis_index("tp").scale(mine)
            s = b.slice(s, [0, first], [6, mine])
            s = s if right else b.concatenate([s[:, 1:2], s[:, 0:1]], 1)  # <-
        h = b.dot(x, w, ([1], [1]))
        y = (h * b.broadcast(s, h.shape, (0, 1))).sum(1)
        b.output("y", b.all_reduce(y, "tp") if sums else y)

    return pair(TP, lambda b: write(b, 4, False), lambda b: write(b, 2, True),
                {"x": WHOLE, "w": ROWS, "s": WHOLE}, {"y": WHOLE})  # fmt: skip


def shared_expert_of_a_piece(right: bool) -> Plan:
    """vllm-project/vllm 37856: a shared expert in pieces reads the tokens of all ranks."""

    def spec(b: ProgramBuilder) -> None:
        x, up, down = b.input("x", "f32[8,3]"), b.input("up", "f32[3,6]"), b.input("down", "f32[6,3]")
        b.output("y", b.tanh(x @ up) @ down)

    def plan(b: ProgramBuilder) -> None:
        x, up, down = b.input("x", "f32[4,3]"), b.input("up", "f32[3,3]"), b.input("down", "f32[3,3]")
        if right:
            b.output("y", b.reduce_scatter(b.tanh(b.all_gather(x, "tp", 0) @ up) @ down, "tp", 0))
        else:
            b.output("y", b.all_reduce(b.tanh(x @ up) @ down, "tp"))  # <-

    return pair(TP, spec, plan, {"x": ROWS, "up": COLUMNS, "down": ROWS}, {"y": ROWS})


def batch_and_sequence_exchanged(right: bool) -> Plan:
    """aws-neuron/transformers-neuronx 106, 107: batch and sequence come apart in the order they had."""

    def spec(b: ProgramBuilder) -> None:
        x, w, p = b.input("x", "f32[4,6,3]"), b.input("w", "f32[3,8]"), b.input("p", "f32[6,8]")
        y = b.dot(x, w, ([2], [0]))
        b.output("y", y * b.broadcast(p, y.shape, (1, 2)))

    def plan(b: ProgramBuilder) -> None:
        x, w, p = b.input("x", "f32[4,6,3]"), b.input("w", "f32[3,4]"), b.input("p", "f32[6,4]")
        flat = (x if right else x.transpose(1, 0, 2)).reshape(24, 3)  # <-
        y = (flat @ w).reshape(4, 6, 4)
        b.output("y", y * b.broadcast(p, y.shape, (1, 2)))

    return pair(TP, spec, plan, {"x": WHOLE, "w": COLUMNS, "p": COLUMNS}, {"y": {"tp": Shard(2)}})
