"""The ops: what they compute, as a table of terms and a table of wires, and their type rules.

Written from docs/format.md and the StableHLO specification. Layout stages, algebra stages and witnesses all
read these tables; data movement that only layout stages know stands in layout.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import need
from .affine import evident

SORTS = {"f64": "Real", "f32": "Real", "f16": "Real", "bf16": "Real", "i1": "Bool"} | dict.fromkeys(
    ("i64", "i32", "i16", "i8", "u8"), "Int"
)
Term = Any
"""A string, or a tuple of an operator and terms; terms.py says what else may stand in it."""


@dataclass(frozen=True, slots=True)
class Type:
    """A tensor type; `sort` is its SMT-LIB sort."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def sort(self) -> str:
        return SORTS[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; `ins` are the operands' types. Attributes are ints, tuples of ints, strings, a tuple of
    `Affine`s (`start`), and for `constant` the `value`: Fraction, bool, "inf", "-inf", or an `Affine` that
    has
    a symbol (rank-dependent)."""

    result: str
    name: str
    operands: tuple[str, ...]
    ins: tuple[Type, ...]
    type: Type
    attrs: Mapping[str, Any]
    source: tuple[int, int, str] | None

    @property
    def variant(self) -> str:
        """The row of the table below."""
        if self.name == "compare":
            return f"compare {self.attrs['direction']}"
        return f"convert {self.ins[0].sort} {self.type.sort}" if self.name == "convert" else self.name


_TABLE = """
op                 sorts     layout            algebra              sign   infinity  defined where
add                Real Int  + a b             + a b                keeps  .         .
subtract           Real Int  - a b             - a b                .      .         .
negate             Real Int  - a               neg a                .      .         .
multiply           Real Int  mul a b           mul a b              keeps  .         .
divide             Real      mul a (recip b)   mul a (recip b)      .      .         b is not 0
exponential        Real      fexp a            fexp a               plus   .         .
log                Real      flog a            flog a               .      .         a > 0
sqrt               Real      fsqrt a           fsqrt a              plus   .         a >= 0
rsqrt              Real      frsqrt a          frsqrt a             .      .         a > 0
sine               Real      fsin a            fsin a               .      .         .
cosine             Real      fcos a            fcos a               .      .         .
tanh               Real      ftanh a           ftanh a              .      .         .
logistic           Real      flogistic a       flogistic a          plus   .         .
erf                Real      ferf a            ferf a               .      .         .
abs                Real Int  fabs a            fabs a               plus   .         .
power              Real      fpow a b          fpow a b             .      .         a > 0
maximum            Real Int  ite (>= a b) a b  max2 a b             keeps  moves     .
minimum            Real Int  ite (<= a b) a b  min2 a b             keeps  moves     .
and                Bool      and a b           mul a b              .      .         .
or                 Bool      or a b            - (+ a b) (mul a b)  .      .         .
not                Bool      not a             - 1 a                .      .         .
select             .         ite a b c         + c (mul a (- b c))  .      moves     .
compare EQ         .         = a b             cmp_eq a b           .      .         .
compare NE         .         not (= a b)       cmp_ne a b           .      .         .
compare LT         .         < a b             cmp_lt a b           .      .         .
compare LE         .         <= a b            cmp_le a b           .      .         .
compare GT         .         > a b             cmp_gt a b           .      .         .
compare GE         .         >= a b            cmp_ge a b           .      .         .
convert Real Real  .         a                 a                    keeps  moves     .
convert Int Int    .         a                 a                    keeps  moves     .
convert Bool Bool  .         a                 a                    keeps  moves     .
convert Int Real   .         to_real a         a                    keeps  moves     .
convert Bool Real  .         ite a 1.0 0.0     a                    keeps  moves     .
convert Bool Int   .         ite a 1 0         a                    keeps  moves     .
convert Int Bool   .         not (= a 0)       nonzero a            keeps  moves     .
broadcast_in_dim   .         a                 a                    keeps  moves     .
transpose          .         a                 a                    keeps  moves     .
reduce             .         .                 a                    keeps  .         .
dot_general        .         .                 mul a b              keeps  .         .
constant           .         .                 .                    .      .         .
iota               .         .                 .                    .      .         .
reshape            .         .                 .                    keeps  moves     .
slice              .         .                 .                    keeps  moves     .
pad                .         .                 .                    keeps  moves     .
concatenate        .         .                 .                    keeps  moves     .
gather             .         .                 .                    .      moves     b is an index of a
all_reduce         .         .                 .                    keeps  .         .
all_gather         .         .                 .                    keeps  moves     .
reduce_scatter     .         .                 .                    keeps  .         .
all_to_all         .         .                 .                    keeps  moves     .
send               .         .                 .                    keeps  moves     .
recv               .         .                 .                    keeps  moves     .
"""
"""One row per op, or per variant of one; `.` is none. `a b c` are the operands.

`layout` is the term in layout stages, `algebra` over the reals with booleans as 0 and 1; each operand is read
where `wires` says. In layouts products of integers and `abs` of integers have no term. What has neither term
moves data, and layout.py knows it.
`sign`: a result is never negative (plus), or is not where no operand is (keeps); `rules/roots.py` asks.
`infinity`: the op may pass an infinite literal on; `rules/infinite.py` asks.
`defined where`: the function is total here, its values elsewhere mean nothing; `report.py` names such ops.
The order of the free functions in a file is that of their first use in `algebra`.
"""


class Row(NamedTuple):
    sorts: str
    layout: str
    algebra: str
    sign: str
    infinity: str
    defined: str


def _parse(source: str) -> Term:
    stack: list[list[Term]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", source):
        if token == "(":
            stack.append([])
        elif token == ")":
            stack[-2].append(tuple(stack.pop()))
        else:
            stack[-1].append(token)
    return tuple(stack[0]) if len(stack[0]) > 1 else stack[0][0]


_LINES = [re.split(r"\s{2,}", line) for line in _TABLE.strip().splitlines()[1:]]
ROWS = {name: Row(*columns) for name, *columns in _LINES}
LAYOUT = {op: _parse(row.layout) for op, row in ROWS.items() if row.layout != "."}
ALGEBRA = {op: _parse(row.algebra) for op, row in ROWS.items() if row.algebra != "."}


def _applied(term: Term) -> Iterator[tuple[str, int]]:
    """Operators and functions of a term, with the number of their arguments."""
    if isinstance(term, tuple):
        yield term[0], len(term) - 1
        for inner in term[1:]:
            yield from _applied(inner)


#: Operators of the terms, with their meaning; the other functions of the algebra column are free.
OPERATORS = {"+": 2, "-": 2, "neg": 1}
ARITY = {name: n for term in ALGEBRA.values() for name, n in _applied(term) if name not in OPERATORS} | {
    "neg_inf": 0,
    "pos_inf": 0,
}
"""The free functions of docs/certificate.md, in the order in which a file declares them."""


def named(column: str, word: str) -> frozenset[str]:
    """The ops that have this word in this column of the table."""
    return frozenset(op.split()[0] for op, row in ROWS.items() if getattr(row, column) == word)


def fill(template: Term, values: Mapping[str, Term]) -> Term:
    """The template with its letters replaced."""
    if isinstance(template, tuple):
        return tuple(fill(t, values) for t in template)
    return values.get(template, template)


def scaling(op: Op, constants: Sequence[Any]) -> tuple[Fraction, int] | None:
    """Factor and operand, where an op multiplies by a rational constant or divides by one."""
    for i, c in enumerate(constants):
        if isinstance(c, Fraction) and op.name == "multiply":
            return c, 1 - i
    if op.name == "divide" and isinstance(constants[1], Fraction) and constants[1]:
        return 1 / constants[1], 0
    return None


def wires(op: Op) -> list[list[int | None]] | None:
    """Per operand the source of each dimension: result dimension i, summed coordinate k as -1 - k, or None
    for index 0. None if the op moves data in other ways or has no operands."""
    a, shapes, rank = op.attrs, [t.shape for t in op.ins], len(op.type.shape)
    match op.name:
        case "broadcast_in_dim":
            return [[d if n > 1 else None for d, n in zip(a["dims"], shapes[0], strict=True)]]
        case "transpose":
            return [[a["perm"].index(d) for d in range(rank)]]
        case "reduce":
            free = iter(range(rank))
            return [
                [-1 - a["dims"].index(d) if d in a["dims"] else next(free) for d in range(len(shapes[0]))]
            ]
        case "dot_general":
            free = iter(range(len(a["lhs_batch"]), rank))
            sides = ((a["lhs_batch"], a["lhs_contract"]), (a["rhs_batch"], a["rhs_contract"]))
            return [
                [
                    -1 - summed.index(d) if d in summed else batch.index(d) if d in batch else next(free)
                    for d in range(len(shape))
                ]
                for shape, (batch, summed) in zip(shapes, sides, strict=True)
            ]
    return [list(range(rank)) for _ in shapes] if op.variant in ALGEBRA else None


# Type rules -------------------------------------------------------------------------------------------------

COLLECTIVES = {
    "all_reduce": "group kind seq",
    "all_gather": "group dim seq",
    "reduce_scatter": "group kind dim seq",
    "all_to_all": "group split_dim concat_dim seq",
}
MESSAGES = {"send": "seq to", "recv": "seq from"}
ATTRIBUTES = dict.fromkeys((op.split()[0] for op in ROWS), "") | {
    "constant": "value",
    "iota": "dim",
    "compare": "direction",
    "broadcast_in_dim": "dims",
    "transpose": "perm",
    "slice": "start stride",
    "pad": "low high",
    "concatenate": "dim",
    "reduce": "dims kind",
    "gather": "axis batch_dims",
    "dot_general": "lhs_batch rhs_batch lhs_contract rhs_contract",
    **COLLECTIVES,
    **MESSAGES,
}
OPERANDS = {
    row.split()[0]: len({"a", "b", "c"}.intersection(re.findall(r"\w+", columns.algebra)))
    for row, columns in ROWS.items()
    if columns.algebra != "."
} | {"constant": 0, "iota": 0, "recv": 0, "pad": 2, "gather": 2}
"""Number of operands, where it is not 1 (or, for `concatenate`, any)."""


def check_types(op: Op, axes: Mapping[str, tuple[int, int]], group: int) -> None:
    """StableHLO's rule for operands, attributes and result; `group` is the size of the op's groups."""
    a, r, xs, shapes = op.attrs, op.type, op.ins, [t.shape for t in op.ins]
    x = shapes[0] if shapes else ()
    dtype, shape = (xs[0].dtype if xs else r.dtype), x

    def dims(key: str, rank: int, ordered: bool = False) -> Any:
        found = a[key]
        need(len(set(found)) == len(found) and all(d < rank for d in found), f"{key} names no dimensions")
        need(not ordered or all(d < e for d, e in pairwise(found)), f"{key} must increase")
        return found

    def resized(dim: int, size: int) -> tuple[int, ...]:
        return (*shape[:dim], size, *shape[dim + 1 :])

    match op.name:
        case "constant":
            need(a["value"] is not None, "the literal does not fit the type")
            shape = r.shape
        case "iota":
            need(r.sort != "Bool" and a["dim"] < len(r.shape), "a bad dimension")
            shape = r.shape
        case "compare":
            need(xs[0].sort == xs[1].sort and x == shapes[1], "types do not fit")
            need(xs[0].sort != "Bool" or a["direction"] in ("EQ", "NE"), "booleans have no order")
            dtype = "i1"
        case "convert":
            need(op.variant in ROWS, "no such conversion")
            dtype = r.dtype
        case "select":
            need(xs[0] == Type("i1", r.shape) and xs[1] == xs[2], "operands do not fit")
            dtype = xs[1].dtype
        case "broadcast_in_dim":
            need(len(dims("dims", len(r.shape), ordered=True)) == len(x), "dims does not fit the operand")
            need(all(n in (1, r.shape[d]) for n, d in zip(x, a["dims"], strict=True)), "sizes do not fit")
            shape = r.shape
        case "reshape":
            need(xs[0].size == r.size, "the size changes")
            shape = r.shape
        case "transpose":
            need(len(dims("perm", len(x))) == len(x), "no permutation")
            shape = tuple(x[p] for p in a["perm"])
        case "slice":
            need(len(a["start"]) == len(a["stride"]) == len(x) == len(r.shape), "ranks differ")
            for form, step, n, size in zip(a["start"], a["stride"], x, r.shape, strict=True):
                inside = evident(form, 0, None, axes) and evident(
                    form.shift(step * (size - 1)), None, n, axes
                )
                need(inside, "the slice leaves its operand")
            shape = r.shape
        case "pad":
            need(len(a["low"]) == len(a["high"]) == len(x), "ranks differ")
            need(xs[1] == Type(dtype, ()), "the padding value must be a scalar of the operand's dtype")
            shape = tuple(map(sum, zip(a["low"], x, a["high"], strict=True)))
        case "concatenate":
            d = a["dim"]
            need(d < len(x), "a bad dimension")
            need(
                all(
                    t.dtype == dtype
                    and (*t.shape[:d], *t.shape[d + 1 :]) == (*x[:d], *x[d + 1 :])
                    and len(t.shape) == len(x)
                    for t in xs
                ),
                "types do not fit",
            )
            shape = resized(d, sum(s[d] for s in shapes))
        case "dot_general":
            y, sides = shapes[1], []
            for batch, summed, rank in (
                ("lhs_batch", "lhs_contract", len(x)),
                ("rhs_batch", "rhs_contract", len(y)),
            ):
                sides.append((dims(batch, rank), dims(summed, rank)))
                need(not set(a[batch]) & set(a[summed]), "a dimension is named twice")
            (lb, lc), (rb, rc) = sides
            need([x[d] for d in lb] == [y[d] for d in rb], "batch sizes differ")
            need([x[d] for d in lc] == [y[d] for d in rc], "contracting sizes differ")
            need(xs[1].sort == xs[0].sort == r.sort != "Bool", "sorts do not fit")
            shape = (
                *(x[d] for d in lb),
                *(n for d, n in enumerate(x) if d not in lb + lc),
                *(n for d, n in enumerate(y) if d not in rb + rc),
            )
            dtype = r.dtype
        case "reduce":
            gone = dims("dims", len(x), ordered=True)
            need(a["kind"] in (("and", "or") if r.sort == "Bool" else ("add", "max", "min")), "unknown kind")
            shape = tuple(n for d, n in enumerate(x) if d not in gone)
        case "gather":
            axis, batch, index = a["axis"], a["batch_dims"], shapes[1]
            need(axis < len(x) and batch <= min(axis, len(index)), "a bad axis")
            need(xs[1].sort == "Int" and x[:batch] == index[:batch], "the index tensor does not fit")
            shape = x[:axis] + index[batch:] + x[axis + 1 :]
        case "send" | "recv":
            forms = a["to" if op.name == "send" else "from"]
            need(len(forms) == len(axes) > 0, "one form per mesh axis is expected")
            shape = x if xs else r.shape
        case "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all":
            kinds = ("add",) if op.name == "reduce_scatter" else ("add", "max", "min")
            need("kind" not in a or (a["kind"] in kinds and xs[0].sort != "Bool"), "unknown kind")
            need(all(a.get(k, -1) < len(x) for k in ("dim", "split_dim", "concat_dim")), "a bad dimension")
            if op.name in ("reduce_scatter", "all_to_all"):
                d = a["dim" if op.name == "reduce_scatter" else "split_dim"]
                need(x[d] % group == 0, "the group does not divide the dimension")
                shape = resized(d, x[d] // group)
            if op.name in ("all_gather", "all_to_all"):
                d = a["dim" if op.name == "all_gather" else "concat_dim"]
                shape = resized(d, shape[d] * group)
        case _:
            need(
                r.sort in ROWS[op.name].sorts.split() and all(t == r for t in xs),
                "operands and result must have one suitable type",
            )
    need(r == Type(dtype, shape), "result type does not fit")
