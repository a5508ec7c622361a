"""Right plans around values that are one number, or alike on all ranks; each with a wrong twin."""

from __future__ import annotations

from fractions import Fraction

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.placements import Shard
from certificates.plan.plan import Plan

from ..orchestrator.plans import pair
from .kit import COLUMNS, GRID, ROWS, TP, WHOLE, Twins, by_rank


def _loss(b: ProgramBuilder, rows: int) -> Value:
    x = b.input("x", f"f32[{rows},3]")
    return (x * x).sum()


def largest_of_equal_sums(right: bool) -> Plan:
    """A loss that every rank has in full goes through another all-reduce, of the largest one."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8))

    def plan(b: ProgramBuilder) -> None:
        whole = _loss(b, 4)
        whole = b.all_reduce(whole, "tp") if right else whole
        b.output("loss", b.all_reduce(whole, "tp", "max"))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def largest_count(right: bool) -> Plan:
    """The largest number of rows on any rank, where all have as many."""

    def spec(b: ProgramBuilder) -> None:
        b.output("mean", _loss(b, 8) / 8)

    def plan(b: ProgramBuilder) -> None:
        ones = b.constant(1, "f32[4]")
        rows = b.all_reduce(ones.sum(), "tp", "max")
        b.output("mean", b.all_reduce(_loss(b, 4), "tp") / (rows * 2 if right else rows))

    return pair(TP, spec, plan, {"x": ROWS}, {"mean": WHOLE})


def sum_of_zeros(right: bool) -> Plan:
    """A term without members is added: a sum over ranks of literal zeros."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8))

    def plan(b: ProgramBuilder) -> None:
        nothing = b.constant(0 if right else 1, "f32[]")
        b.output("loss", b.all_reduce(_loss(b, 4), "tp") + b.all_reduce(nothing, "tp"))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def gradient_of_zeros(right: bool) -> Plan:
    """A frozen branch contributes a matrix of zeros, contracted and reduced."""

    def spec(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[5,8]"), b.input("w", "f32[8,3]")
        b.output("y", x @ w)

    def plan(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[5,4]"), b.input("w", "f32[4,3]")
        nothing = b.constant(0 if right else 1, "f32[5,4]") @ w
        b.output("y", b.all_reduce(x @ w, "tp") + b.all_reduce(nothing, "tp"))

    return pair(TP, spec, plan, {"x": COLUMNS, "w": ROWS}, {"y": WHOLE})


def root_of_a_count(right: bool) -> Plan:
    """Scaled by the root of a number of rows that ranks count together."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8) / b.sqrt(b.constant(8, "f32[]")))

    def plan(b: ProgramBuilder) -> None:
        rows = b.all_reduce(b.constant(1, "f32[4]").sum(), "tp") if right else b.constant(4, "f32[]")
        b.output("loss", b.all_reduce(_loss(b, 4), "tp") / b.sqrt(rows))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def root_of_two_counts(right: bool) -> Plan:
    """Both programs count, in another way."""

    def spec(b: ProgramBuilder) -> None:
        rows = b.constant(1, "f32[8]").sum()
        b.output("loss", _loss(b, 8) * b.rsqrt(rows))

    def plan(b: ProgramBuilder) -> None:
        rows = b.constant(1, "f32[4]").sum() * (2 if right else 1)
        b.output("loss", b.all_reduce(_loss(b, 4) * b.rsqrt(rows), "tp"))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def chosen_by_a_count(right: bool) -> Plan:
    """A loss is kept if any row is left: a truth value made from a number."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8))

    def plan(b: ProgramBuilder) -> None:
        rows = b.all_reduce(b.constant(1, "i64[4]").sum(), "tp")
        any_left = b.convert(rows, "i1")
        whole = b.all_reduce(_loss(b, 4), "tp")
        zero = b.constant(0, "f32[]")
        b.output("loss", b.select(any_left, whole, zero) if right else b.select(any_left, zero, whole))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def chosen_by_a_real_count(right: bool) -> Plan:
    """The same with a real number, compared."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8))

    def plan(b: ProgramBuilder) -> None:
        rows = b.all_reduce(b.constant(1, "f32[4]").sum(), "tp")
        factor = b.convert(b.compare(rows, 0 if right else 8, "GT"), "f32")
        b.output("loss", b.all_reduce(_loss(b, 4), "tp") * factor)

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def gathered_then_averaged(right: bool) -> Plan:
    """Every rank's mean, gathered into a vector that is averaged."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8) / 24)

    def plan(b: ProgramBuilder) -> None:
        own = (_loss(b, 4) / 12).reshape(1)
        b.output("loss", b.all_gather(own, "tp").sum() / (2 if right else 1))

    return pair(TP, spec, plan, {"x": ROWS}, {"loss": WHOLE})


def gathered_gradients_averaged(right: bool) -> Plan:
    """Gradients of all ranks, gathered and averaged, in place of an all-reduce."""

    def spec(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[8,5]"), b.input("d", "f32[8,3]")
        b.output("g", b.dot(x, d, contract=((0,), (0,))) / 8)

    def plan(b: ProgramBuilder) -> None:
        x, d = b.input("x", "f32[4,5]"), b.input("d", "f32[4,3]")
        own = b.dot(x, d, contract=((0,), (0,))) / 4
        every = b.all_gather(own.reshape(1, 5, 3), "tp")
        b.output("g", every.sum(0) / 2 if right else every[0:1].reshape(5, 3))

    return pair(TP, spec, plan, {"x": ROWS, "d": ROWS}, {"g": WHOLE})


def gathered_on_a_grid(right: bool) -> Plan:
    """Sums over one axis that are gathered and added along the other."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8))

    def plan(b: ProgramBuilder) -> None:
        own = b.all_reduce(_loss(b, 2), "tp") if right else _loss(b, 2)
        b.output("loss", b.all_gather(own.reshape(1), "dp").sum())

    return pair(GRID, spec, plan, {"x": {"dp": Shard(0), "tp": Shard(0)}}, {"loss": {}})


def one_class_fills(right: bool) -> Plan:
    """The first rank's value, and zeros of all others: a broadcast by a sum."""

    def spec(b: ProgramBuilder) -> None:
        w = b.input("w", "f32[4,3]")
        b.output("y", b.tanh(w) * 2)

    def plan(b: ProgramBuilder, rank: int) -> None:
        w = b.tanh(b.input("w", "f32[4,3]"))
        own = w if rank == 0 else b.constant(0 if right else 1, w.type)
        b.output("y", b.all_reduce(own, "tp") * 2)

    return by_rank(spec, plan, {"w": WHOLE}, {"y": WHOLE})


def one_class_fills_by_a_factor(right: bool) -> Plan:
    """A loss that only the last rank has; the others multiply theirs by zero."""

    def spec(b: ProgramBuilder) -> None:
        b.output("loss", _loss(b, 8))

    def plan(b: ProgramBuilder, rank: int) -> None:
        factor = Fraction(rank) if right else Fraction(1)
        b.output("loss", b.all_reduce(_loss(b, 8) * factor, "tp"))

    return by_rank(spec, plan, {"x": WHOLE}, {"loss": WHOLE})


def one_class_computes(right: bool) -> Plan:
    """A product that one rank alone computes, zeros elsewhere; the result is used by all."""

    def spec(b: ProgramBuilder) -> None:
        x, w, v = b.input("x", "f32[5,8]"), b.input("w", "f32[8,6]"), b.input("v", "f32[6,3]")
        b.output("y", b.tanh(x @ w) @ v)

    def plan(b: ProgramBuilder, rank: int) -> None:
        x, w, v = b.input("x", "f32[5,8]"), b.input("w", "f32[8,6]"), b.input("v", "f32[6,3]")
        own = x @ w if rank == 1 else b.constant(0 if right else 1, "f32[5,6]")
        b.output("y", b.tanh(b.all_reduce(own, "tp")) @ v)

    return by_rank(spec, plan, {"x": WHOLE, "w": WHOLE, "v": WHOLE}, {"y": WHOLE})


def halves_filled(right: bool) -> Plan:
    """Each rank fills its rows of a buffer of zeros, which are added."""

    def spec(b: ProgramBuilder) -> None:
        x, w = b.input("x", "f32[8,3]"), b.input("w", "f32[3,2]")
        b.output("y", b.tanh(x) @ w)

    def plan(b: ProgramBuilder, rank: int) -> None:
        own, w = b.tanh(b.input("x", "f32[4,3]")), b.input("w", "f32[3,2]")
        zeros = b.constant(0, own.type)
        first = (rank == 0) is right
        whole = b.concatenate([own, zeros] if first else [zeros, own], 0)
        b.output("y", b.all_reduce(whole, "tp") @ w)

    return by_rank(spec, plan, {"x": ROWS, "w": WHOLE}, {"y": WHOLE})


def labels_made_by_the_rank(right: bool) -> Plan:
    """The label of a row is its number in the whole batch: ranks add where their rows begin."""

    def spec(b: ProgramBuilder) -> None:
        x = b.input("x", "f32[8,8]")
        b.output("y", b.gather(x, b.iota("i64[8,1]", 0), 1, 1))

    def plan(b: ProgramBuilder) -> None:
        x, first = b.input("x", "f32[4,8]"), b.axis_index("tp").scale(4 if right else 3)
        labels = b.iota("i64[4,1]", 0) + b.constant(first, "i64[4,1]")
        b.output("y", b.gather(x, labels, 1, 1))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS})


def mask_of_the_sequence(right: bool) -> Plan:
    """A causal mask where queries are pieces of the sequence: their places are counted from its start."""

    def masked(b: ProgramBuilder, x: Value, rows: Value) -> Value:
        late = b.compare(b.iota(rows.type, 1), rows, "GT")
        return b.reduce(b.select(late, b.constant(0, x.type), b.exponential(x)), (1,))

    def spec(b: ProgramBuilder) -> None:
        b.output("y", masked(b, b.input("x", "f32[8,8]"), b.iota("i64[8,8]", 0)))

    def plan(b: ProgramBuilder) -> None:
        first = b.constant(b.axis_index("tp").scale(4), "i64[4,8]")
        rows = b.iota("i64[4,8]", 0)
        b.output("y", masked(b, b.input("x", "f32[4,8]"), rows + first if right else rows))

    return pair(TP, spec, plan, {"x": ROWS}, {"y": ROWS})


def label_in_a_part(right: bool) -> Plan:
    """The logit of a label, by a one-hot over columns that lie on several ranks."""

    def picked(b: ProgramBuilder, columns: int) -> tuple[Value, Value]:
        x, labels = b.input("x", f"f32[5,{columns}]"), b.input("labels", "i64[5]")
        here = b.broadcast(b.iota(f"i64[{columns}]", 0), x.shape, (1,))
        return x, b.compare(b.broadcast(labels, x.shape, (0,)), here, "EQ")

    def spec(b: ProgramBuilder) -> None:
        x, hot = picked(b, 8)
        b.output("y", (x * b.convert(hot, "f32")).sum(1))

    def plan(b: ProgramBuilder) -> None:
        x, labels = b.input("x", "f32[5,4]"), b.input("labels", "i64[5]")
        first = b.axis_index("tp").scale(4 if right else 5)
        own = b.broadcast(labels - b.constant(first, "i64[5]"), x.shape, (0,))
        here = b.broadcast(b.iota("i64[4]", 0), x.shape, (1,))
        b.output("y", b.all_reduce((x * b.convert(b.compare(own, here, "EQ"), "f32")).sum(1), "tp"))

    return pair(TP, spec, plan, {"x": COLUMNS, "labels": WHOLE}, {"y": WHOLE}, {"labels": (0, 8)})


COUNTS: dict[str, Twins] = {
    twins.__name__: twins
    for twins in (
        largest_of_equal_sums, largest_count, sum_of_zeros, gradient_of_zeros, root_of_a_count,
        root_of_two_counts, chosen_by_a_count, chosen_by_a_real_count, gathered_then_averaged,
        gathered_gradients_averaged, gathered_on_a_grid, one_class_fills, one_class_fills_by_a_factor,
        one_class_computes, halves_filled, labels_made_by_the_rank, mask_of_the_sequence, label_in_a_part,
    )
}  # fmt: skip
