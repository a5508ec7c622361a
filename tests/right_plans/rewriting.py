"""Random rewritings of right plans into others that compute the same real numbers.

The programs of the ranks are written again op by op; with some chance an op becomes another way of saying it
(:data:`RULES`). A rewriting is a plan and a seed. ``spoiled`` makes one of its steps wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from certificates.authoring.build import ProgramBuilder, Value
from certificates.plan.affine import Affine
from certificates.plan.checking import check_plan
from certificates.plan.ops import COLLECTIVES, ELEMENTWISE
from certificates.plan.plan import Plan, RankClass
from certificates.plan.program import Op, Program
from certificates.plan.types import TensorType

from .kit import differs

#: A rewriting of one op, or nothing where it does not fit.
Rule = Callable[["Place"], Value | None]
#: By the op that it rewrites, or ``pointwise``.
RULES: dict[str, list[Rule]] = {}
#: Ops of a plan that are doubled in turn until an output differs.
MAX_SPOILED = 20


def rule(*ops: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        for op in ops:
            RULES.setdefault(op, []).append(function)
        return function

    return keep


@dataclass
class Place:
    """An op that is to be written in another way."""

    b: ProgramBuilder
    plan: Plan
    op: Op
    ins: list[Value]
    rng: random.Random
    made: dict[str, Op]
    values: dict[str, Value]

    @property
    def x(self) -> Value:
        return self.ins[0]

    @property
    def y(self) -> Value:
        return self.ins[1]

    @property
    def real(self) -> bool:
        return self.op.type.dtype.startswith(("f", "bf"))

    @property
    def size(self) -> int:
        """Ranks of the op's group."""
        return self.plan.groups[self.op.text("group")].size

    def position(self) -> Affine:
        """The rank's number in the op's group."""
        step, out = 1, Affine(0)
        for axis in reversed(self.plan.groups[self.op.text("group")].axes or ()):
            out = out + Affine.of(0, {axis: step})
            step *= self.plan.mesh.axes[axis]
        return out

    def again(self, *ins: Value, shape: Sequence[int] | None = None) -> Value:
        """The same op of other operands."""
        type_ = self.op.type if shape is None else TensorType(self.op.type.dtype, tuple(shape))
        return self.b.op(self.op.name, ins, type_, self.op.attrs)

    def source(self, value: str) -> tuple[Op, list[Value]] | None:
        """The op that made a value of the program as it was, and its operands as they are."""
        op = self.made.get(value)
        return None if op is None else (op, [self.values[v] for v in op.ins])

    def cut(self, x: Value, dim: int, low: int, high: int) -> Value:
        start, sizes = [0] * len(x.shape), list(x.shape)
        start[dim], sizes[dim] = low, high - low
        return self.b.slice(x, start, sizes)

    def edge(self, n: int) -> int | None:
        return self.rng.randrange(1, n) if n > 1 else None


def rewritten(plan: Plan, seed: int, rate: float = 0.35, spoiled: bool = False) -> Plan:
    """A plan of other programs; with ``spoiled``, one op of them is doubled."""
    rng = random.Random(f"{plan.name} {seed}")
    alone = len(plan.classes) == 1
    victim = rng.randrange(1 << 30) if spoiled else None
    classes = tuple(_class(plan, c, rng, rate, alone, victim) for c in plan.classes)
    new = replace(plan, name=f"{plan.name}-{seed}", classes=classes)
    check_plan(new)
    return new


def spoiled(plan: Plan) -> Plan:
    """A wrong twin of any plan: one op is doubled, and outputs differ for that."""
    seeds = (rewritten(plan, seed, rate=0, spoiled=True) for seed in range(MAX_SPOILED))
    found = next(filter(differs, seeds), None)
    if found is None:
        raise ValueError(f"{plan.name}: no output depends on the ops that were doubled")
    return found


def _class(
    plan: Plan, cls: RankClass, rng: random.Random, rate: float, alone: bool, victim: int | None
) -> RankClass:
    b = ProgramBuilder(plan.mesh.axes, plan.groups, cls.box)
    values = {name: b.input(name, type_) for name, type_ in cls.program.inputs.items()}
    made: dict[str, Op] = {}
    real = [o.out for o in cls.program.ops if o.type.dtype.startswith(("f", "bf")) and o.ins]
    wrong = real[victim % len(real)] if victim is not None else None
    for op in cls.program.ops:
        place = Place(b, plan, op, [values[v] for v in op.ins], rng, made, values)
        found = None
        if rng.random() < rate and (alone or op.name not in COLLECTIVES):
            rules = [*RULES.get(op.name, ()), *(RULES["pointwise"] if op.name in ELEMENTWISE else ())]
            for chosen in rng.sample(rules, len(rules)):
                found = chosen(place)
                if found is not None:
                    break
        if found is None:
            found = (
                collective(b, op, place.x) if alone and op.name in COLLECTIVES else place.again(*place.ins)
            )
        values[op.out] = found * 2 if op.out == wrong else found
        made[op.out] = op
    for name, value in cls.program.outputs.items():
        b.output(name, values[value])
    program = b.build()
    plain = tuple(replace(op, loc=None) for op in program.ops)
    return replace(cls, program=Program(program.inputs, plain, program.outputs))


def collective(b: ProgramBuilder, op: Op, x: Value) -> Value:
    """A collective as it was, with the next number of a rendezvous."""
    group = op.text("group")
    match op.name:
        case "all_reduce":
            return b.all_reduce(x, group, op.text("kind"))
        case "all_gather":
            return b.all_gather(x, group, op.integer("dim"))
        case "reduce_scatter":
            return b.reduce_scatter(x, group, op.integer("dim"))
    return b.all_to_all(x, group, op.integer("split_dim"), op.integer("concat_dim"))


# --- pointwise ops ----------------------------------------------------------------------------------------


@rule("pointwise")
def in_pieces(p: Place) -> Value | None:
    """Of two pieces along a dimension, put together again."""
    dims = [d for d, n in enumerate(p.op.type.shape) if n > 1]
    if not dims:
        return None
    dim = p.rng.choice(dims)
    n = p.op.type.shape[dim]
    at = p.rng.randrange(1, n)
    parts = []
    for low, high in ((0, at), (at, n)):
        shape = [high - low if d == dim else m for d, m in enumerate(p.op.type.shape)]
        parts.append(p.again(*(p.cut(x, dim, low, high) for x in p.ins), shape=shape))
    return p.b.concatenate(parts, dim)


@rule("pointwise")
def turned(p: Place) -> Value | None:
    """Of transposed operands, transposed back."""
    rank = len(p.op.type.shape)
    if rank < 2:
        return None
    perm = p.rng.sample(range(rank), rank)
    back = [perm.index(d) for d in range(rank)]
    inner = p.again(*(x.transpose(*perm) for x in p.ins), shape=[p.op.type.shape[d] for d in perm])
    return inner.transpose(*back)


@rule("pointwise")
def flat(p: Place) -> Value | None:
    """Of operands in one dimension."""
    n = math.prod(p.op.type.shape)
    return p.again(*(x.reshape(n) for x in p.ins), shape=(n,)).reshape(*p.op.type.shape)


@rule("pointwise")
def with_a_unit(p: Place) -> Value | None:
    """With another dimension, of size 1."""
    shape = list(p.op.type.shape)
    shape.insert(p.rng.randrange(len(shape) + 1), 1)
    return p.again(*(x.reshape(*shape) for x in p.ins), shape=shape).reshape(*p.op.type.shape)


@rule("add", "multiply", "maximum", "minimum")
def commuted(p: Place) -> Value | None:
    return p.again(p.y, p.x)


@rule("add", "multiply")
def associated(p: Place) -> Value | None:
    """``(p + q) + y`` as ``p + (q + y)``."""
    found = p.source(p.op.ins[0])
    if found is None or found[0].name != p.op.name:
        return None
    first, second = found[1]
    return p.again(first, p.again(second, p.y))


@rule("add")
def halved(p: Place) -> Value | None:
    return (p.x / 2 + p.y / 2) * 2 if p.real else None


@rule("subtract")
def minus_added(p: Place) -> Value | None:
    return p.x + (-p.y) if p.rng.random() < 0.5 else -(p.y - p.x)


@rule("multiply", "divide")
def distributed(p: Place) -> Value | None:
    """``(p + q) * y`` as ``p * y + q * y``."""
    found = p.source(p.op.ins[0])
    if found is None or found[0].name not in ("add", "subtract"):
        return None
    left, right = (p.again(v, p.y) for v in found[1])
    return left + right if found[0].name == "add" else left - right


@rule("divide")
def by_the_inverse(p: Place) -> Value | None:
    return p.x * (1 / p.y)


# --- contractions and sums --------------------------------------------------------------------------------


def _dims(p: Place) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """Batch, contracted and free dimensions of both operands."""
    lb, lc = list(p.op.ints("lhs_batch")), list(p.op.ints("lhs_contract"))
    rb, rc = list(p.op.ints("rhs_batch")), list(p.op.ints("rhs_contract"))
    lf = [d for d in range(len(p.x.shape)) if d not in lb + lc]
    rf = [d for d in range(len(p.y.shape)) if d not in rb + rc]
    return lb, lc, lf, rb, rc, rf


@rule("dot_general")
def contracted_in_parts(p: Place) -> Value | None:
    """Microbatches, or groups of columns: two contractions that are added."""
    _, lc, _, _, rc, _ = _dims(p)
    at = p.edge(p.x.shape[lc[0]]) if lc else None
    if at is None:
        return None
    n = p.x.shape[lc[0]]
    parts = [
        p.again(p.cut(p.x, lc[0], low, high), p.cut(p.y, rc[0], low, high))
        for low, high in ((0, at), (at, n))
    ]
    return parts[0] + parts[1]


@rule("dot_general")
def scaled_operand(p: Place) -> Value | None:
    """A number is moved through a contraction."""
    if not p.real:
        return None
    return p.again(p.x * 3, p.y) / 3 if p.rng.random() < 0.5 else p.again(p.x / 6, p.y * 2) * 3


@rule("dot_general")
def operands_exchanged(p: Place) -> Value | None:
    lb, lc, lf, rb, rc, rf = _dims(p)
    other = p.b.dot(p.y, p.x, (rc, lc), (rb, lb))
    k, m, n = len(lb), len(lf), len(rf)
    return other.transpose(*range(k), *range(k + n, k + n + m), *range(k, k + n))


@rule("dot_general")
def weights_apart(p: Place) -> Value | None:
    """A fused weight as two."""
    lb, _, lf, _, _, rf = _dims(p)
    at = p.edge(p.y.shape[rf[0]]) if rf else None
    if at is None:
        return None
    dim, n = len(lb) + len(lf), p.y.shape[rf[0]]
    parts = []
    for low, high in ((0, at), (at, n)):
        shape = [high - low if d == dim else m for d, m in enumerate(p.op.type.shape)]
        parts.append(p.again(p.x, p.cut(p.y, rf[0], low, high), shape=shape))
    return p.b.concatenate(parts, dim)


@rule("dot_general")
def rows_apart(p: Place) -> Value | None:
    """Rows in two chunks."""
    lb, _, lf, _, _, _ = _dims(p)
    at = p.edge(p.x.shape[lf[0]]) if lf else None
    if at is None:
        return None
    dim, n = len(lb), p.x.shape[lf[0]]
    parts = []
    for low, high in ((0, at), (at, n)):
        shape = [high - low if d == dim else m for d, m in enumerate(p.op.type.shape)]
        parts.append(p.again(p.cut(p.x, lf[0], low, high), p.y, shape=shape))
    return p.b.concatenate(parts, dim)


@rule("dot_general")
def weights_fused(p: Place) -> Value | None:
    """Two copies of a weight beside each other, of whose product one half is kept."""
    lb, _, lf, _, _, rf = _dims(p)
    if not rf:
        return None
    dim = len(lb) + len(lf)
    n = p.op.type.shape[dim]
    shape = [2 * n if d == dim else m for d, m in enumerate(p.op.type.shape)]
    both = p.again(p.x, p.b.concatenate([p.y * 2, p.y], rf[0]) if p.real else
                   p.b.concatenate([p.y, p.y], rf[0]), shape=shape)  # fmt: skip
    return p.cut(both, dim, n, 2 * n)


@rule("dot_general")
def with_a_unit_batch(p: Place) -> Value | None:
    """One head, one expert: a batch dimension of size 1."""
    lb, lc, _, rb, rc, _ = _dims(p)
    more = p.b.dot(
        p.x.reshape(1, *p.x.shape),
        p.y.reshape(1, *p.y.shape),
        ([d + 1 for d in lc], [d + 1 for d in rc]),
        ([0, *(d + 1 for d in lb)], [0, *(d + 1 for d in rb)]),
    )
    return more.reshape(*p.op.type.shape)


@rule("dot_general")
def dimensions_merged(p: Place) -> Value | None:
    """All batch dimensions in one, and the free ones of each side."""
    lb, lc, lf, rb, rc, rf = _dims(p)
    batch = math.prod(p.x.shape[d] for d in lb)
    inner = math.prod(p.x.shape[d] for d in lc)
    m, n = math.prod(p.x.shape[d] for d in lf), math.prod(p.y.shape[d] for d in rf)
    left = p.x.transpose(*lb, *lf, *lc).reshape(batch, m, inner)
    right = p.y.transpose(*rb, *rc, *rf).reshape(batch, inner, n)
    return p.b.dot(left, right, ([2], [1]), ([0], [0])).reshape(*p.op.type.shape)


@rule("reduce")
def reduced_in_parts(p: Place) -> Value | None:
    dims = p.op.ints("dims")
    kind = p.op.text("kind")
    at = p.edge(p.x.shape[dims[0]]) if dims and kind in ("add", "max", "min") else None
    if at is None:
        return None
    n = p.x.shape[dims[0]]
    first, second = (
        p.again(p.cut(p.x, dims[0], low, high), shape=p.op.type.shape) for low, high in ((0, at), (at, n))
    )
    if kind == "add":
        return first + second
    return p.b.maximum(first, second) if kind == "max" else p.b.minimum(first, second)


@rule("reduce")
def reduced_in_steps(p: Place) -> Value | None:
    dims = p.op.ints("dims")
    if len(dims) < 2:
        return None
    kind = p.op.text("kind")
    return p.b.reduce(p.b.reduce(p.x, dims[-1:], kind), dims[:-1], kind)


@rule("reduce")
def by_ones(p: Place) -> Value | None:
    """A sum as a product with ones."""
    dims = p.op.ints("dims")
    if p.op.text("kind") != "add" or not p.real or not dims:
        return None
    ones = p.b.constant(1, TensorType(p.op.type.dtype, tuple(p.x.shape[d] for d in dims)))
    return p.b.dot(p.x, ones, (list(dims), list(range(len(dims)))))


@rule("reduce")
def scaled_sum(p: Place) -> Value | None:
    if p.op.text("kind") != "add" or not p.real:
        return None
    return p.again(p.x * 3) / 3


# --- collectives ------------------------------------------------------------------------------------------


def _divisible(p: Place, shape: Sequence[int]) -> int | None:
    dims = [d for d, n in enumerate(shape) if n % p.size == 0]
    return p.rng.choice(dims) if dims else None


@rule("all_reduce")
def scattered_and_gathered(p: Place) -> Value | None:
    dim = _divisible(p, p.x.shape)
    if p.op.text("kind") != "add" or dim is None:
        return None
    group = p.op.text("group")
    return p.b.all_gather(p.b.reduce_scatter(p.x, group, dim), group, dim)


@rule("all_reduce")
def gathered_and_added(p: Place) -> Value | None:
    whole = p.b.all_gather(p.x.reshape(1, *p.x.shape), p.op.text("group"), 0)
    return p.b.reduce(whole, (0,), p.op.text("kind"))


@rule("all_reduce", "reduce_scatter")
def scaled_before(p: Place) -> Value | None:
    if p.op.text("kind") != "add" or not p.real:
        return None
    return collective(p.b, p.op, p.x * p.size) / p.size


@rule("all_reduce")
def in_two_buckets(p: Place) -> Value | None:
    n = math.prod(p.x.shape)
    at = p.edge(n)
    if at is None:
        return None
    flat, group = p.x.reshape(n), p.op.text("group")
    parts = [
        p.b.all_reduce(p.cut(flat, 0, low, high), group, p.op.text("kind"))
        for low, high in ((0, at), (at, n))
    ]
    return p.b.concatenate(parts, 0).reshape(*p.op.type.shape)


@rule("all_reduce")
def in_a_padded_bucket(p: Place) -> Value | None:
    """Flat, padded to a multiple of the ranks, reduced and scattered, gathered, cut out."""
    if p.op.text("kind") != "add":
        return None
    n, group = math.prod(p.x.shape), p.op.text("group")
    more = p.size - n % p.size
    bucket = p.b.pad(p.x.reshape(n), (0,), (more,))
    whole = p.b.all_gather(p.b.reduce_scatter(bucket, group, 0), group, 0)
    return p.cut(whole, 0, 0, n).reshape(*p.op.type.shape)


@rule("all_reduce", "reduce_scatter")
def summands_apart(p: Place) -> Value | None:
    """A sum of two terms, each reduced by itself."""
    found = p.source(p.op.ins[0])
    if found is None or found[0].name not in ("add", "subtract") or p.op.text("kind") != "add":
        return None
    left, right = (collective(p.b, p.op, v) for v in found[1])
    return left + right if found[0].name == "add" else left - right


@rule("all_gather")
def zeros_elsewhere(p: Place) -> Value | None:
    """An all-reduce of pieces with zeros elsewhere, cut out of zeros around the piece."""
    dim, k = p.op.integer("dim"), p.x.shape[p.op.integer("dim")]
    zeros = p.b.constant(0, TensorType(p.op.type.dtype, tuple(
        k * (p.size - 1) if d == dim else n for d, n in enumerate(p.x.shape))))  # fmt: skip
    if p.size == 1 or not p.real:
        return None
    around = p.b.concatenate([zeros, p.x, zeros], dim)
    start: list[int | Affine] = [0] * len(p.x.shape)
    start[dim] = Affine(k * (p.size - 1)) + p.position().scale(-k)
    return p.b.all_reduce(p.b.slice(around, start, p.op.type.shape), p.op.text("group"))


@rule("all_gather")
def masked_elsewhere(p: Place) -> Value | None:
    """An all-reduce of a row of pieces, of which each rank has set its own."""
    dim, group = p.op.integer("dim"), p.op.text("group")
    if not p.real:
        return None
    shape = [*p.x.shape[:dim], p.size, *p.x.shape[dim:]]
    kept = [d if d < dim else d + 1 for d in range(len(p.x.shape))]
    row = p.b.broadcast(p.x, shape, kept)
    places = p.b.iota(TensorType("i64", tuple(shape)), dim)
    mine = p.b.compare(places, p.b.constant(p.position(), places.type), "EQ")
    alone = p.b.select(mine, row, p.b.constant(0, row.type))
    return p.b.all_reduce(alone, group).reshape(*p.op.type.shape)


@rule("all_gather")
def gathered_in_front(p: Place) -> Value | None:
    """As torch gathers: along a new first dimension, which then goes to its place."""
    dim, group = p.op.integer("dim"), p.op.text("group")
    rank = len(p.x.shape)
    whole = p.b.all_gather(p.x.reshape(1, *p.x.shape), group, 0)
    moved = whole.transpose(*range(1, dim + 1), 0, *range(dim + 1, rank + 1))
    return moved.reshape(*p.op.type.shape)


@rule("all_gather")
def exchanged_copies(p: Place) -> Value | None:
    """An all-to-all of as many copies as there are ranks."""
    dim, group = p.op.integer("dim"), p.op.text("group")
    copies = p.b.broadcast(p.x, (p.size, *p.x.shape), range(1, len(p.x.shape) + 1))
    return p.b.all_to_all(copies, group, 0, dim + 1).reshape(*p.op.type.shape)


@rule("reduce_scatter")
def reduced_and_cut(p: Place) -> Value | None:
    dim, group = p.op.integer("dim"), p.op.text("group")
    start: list[int | Affine] = [0] * len(p.x.shape)
    start[dim] = p.position().scale(p.op.type.shape[dim])
    return p.b.slice(p.b.all_reduce(p.x, group), start, p.op.type.shape)


@rule("reduce_scatter")
def exchanged_and_added(p: Place) -> Value | None:
    """Every rank gets its piece from all others and adds."""
    dim, group = p.op.integer("dim"), p.op.text("group")
    pieces = p.b.all_to_all(p.x.reshape(1, *p.x.shape), group, dim + 1, 0)
    return p.b.reduce(pieces, (0,))


@rule("all_to_all")
def gathered_and_cut(p: Place) -> Value | None:
    split, joined, group = p.op.integer("split_dim"), p.op.integer("concat_dim"), p.op.text("group")
    if split == joined:
        return None
    start: list[int | Affine] = [0] * len(p.x.shape)
    start[split] = p.position().scale(p.op.type.shape[split])
    return p.b.slice(p.b.all_gather(p.x, group, joined), start, p.op.type.shape)


def rewritings(plans: Sequence[Plan], seeds: int) -> Iterator[tuple[str, Plan]]:
    """By name: every plan rewritten with some seeds."""
    for plan in plans:
        for seed in range(seeds):
            new = rewritten(plan, seed)
            yield new.name, new
