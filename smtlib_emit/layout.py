"""Layout obligations: data movement at true sizes with symbolic indices."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import assert_never

from certificates.plan.affine import ZERO, Affine, Range
from certificates.plan.ops import OPS, functions_of
from certificates.plan.program import Op
from certificates.plan.types import Sort
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from certificates.proof.stages import (
    BoundIndex,
    BoundSymbol,
    BoundValue,
    Def,
    EvidentRange,
    Hyp,
    InputRange,
    LayoutPremise,
    LayoutStage,
)

from . import sexp
from .errors import NoDefinition
from .model import Model
from .regroup import linear
from .sexp import Sexp, Symbol

MAX_LISTED = 128


class LayoutText:
    """Writes the premises of one layout stage; symbol order and ranges come from the stage and its goal."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: LayoutStage) -> None:
        self.model, self.facts, self.stage = model, facts, stage
        goal = facts[stage.goal]
        self.ranges: dict[str, Range] = goal.ranges
        self.order = {s: i for i, (s, _, _) in enumerate((*goal.symbols, *stage.symbols))}
        for name, lo, hi in stage.symbols:
            if lo is not None and hi is not None:
                self.ranges[name] = (lo, hi)

    def text(self, status: str) -> str:
        """The SMT-LIB file of the stage."""
        goal = self.facts[self.stage.goal]
        return sexp.script(
            letter="t",
            title=self.stage.title,
            status=status,
            premises=[(kind_of(p), self.premise(p)) for p in self.stage.premises],
            goal=("not", self.equation(goal, goal.lhs_index, goal.rhs_index)),
            symbols=self.order,
            declare=self.declare,
        )

    def declare(self, symbol: Symbol) -> tuple[str, str]:
        assert not isinstance(symbol.of, tuple)
        ref = symbol.of
        assert isinstance(ref, str | Reduced)
        arity = len(self.model.tensors.ranges(ref))
        return f"({' '.join(['Int'] * arity)}) {self.model.tensors.type(ref).sort}", self.model.describe(ref)

    # --- premises ------------------------------------------------------------------------------------------

    def premise(self, p: LayoutPremise) -> Sexp:
        match p:
            case BoundSymbol():
                lo, hi = self.ranges[p.sym]
                return "and", ("<=", sexp.integer(lo), p.sym), ("<", p.sym, sexp.integer(hi))
            case BoundIndex():
                assert isinstance(p.t, str)
                part = self.model.parts(p.t)[p.part]
                ranges = self.model.tensors.ranges(p.t)
                guard = self.guard([p.at[c] for c in part.at], [ranges[c] for c in part.at])
                left = linear([p.at[c] for c in part.at], part.at_sizes)
                right = linear([p.arg[c] for c in part.arg], part.arg_sizes)
                return sexp.implied(guard, ("=", self.form(left), self.form(right)))
            case BoundValue():
                return sexp.implied(self.in_range(p.t, p.at), ("=", p.value, self.read(p.t, p.at)))
            case Def():
                return self.definition(p)
            case Hyp():
                return self.hypothesis(p)
            case InputRange():
                ref = f"s:{p.input}"
                lo, hi = self.model.plan.ranges[p.input]
                return self._between(lo, ref, p.at, hi)
            case EvidentRange():
                assert isinstance(p.t, str)
                shown = self.model.bounds.of(*split_ref(p.t))
                if shown is None:
                    raise NoDefinition(f"the ops show no range of {p.t}")
                return self._between(shown[0], p.t, p.at, shown[1] + 1)
            case _:
                assert_never(p)

    def _between(self, lo: int, ref: Ref, at: Sequence[Affine], hi: int) -> Sexp:
        x = self.read(ref, at)
        body: Sexp = ("and", ("<=", sexp.integer(lo), x), ("<", x, sexp.integer(hi)))
        return sexp.implied(self.in_range(ref, at), body)

    def equation(self, fact: Fact, left: Sequence[Affine], right: Sequence[Affine]) -> Sexp:
        return "=", self.read(fact.lhs, left), sexp.times(fact.coef, self.read(fact.rhs, right))

    def hypothesis(self, p: Hyp) -> Sexp:
        fact, lhs, rhs, factor = lift(self.model, [self.facts[i] for i in p.facts], p.lift, p.kind)
        free = [s for s in fact.symbols if s[0] not in p.lift]
        values = {name: form for (name, _, _), form in zip(free, p.at, strict=True)}
        guard = self.guard(list(p.at), [(lo, hi) for _, lo, hi in free])
        left = [f.substitute(values) for f in self._without(fact.lhs, fact.lhs_index, lhs)]
        right = [f.substitute(values) for f in self._without(fact.rhs, fact.rhs_index, rhs)]
        sort = self.model.tensors.type(rhs).sort
        body = "=", self.read(lhs, left), sexp.times(fact.coef * factor, self.read(rhs, right), sort)
        return sexp.implied(guard, body)

    def _without(self, member: Ref, index: Sequence[Affine], ref: Ref) -> list[Affine]:
        """Drop the coordinates of a member that its lifted tensor does not have."""
        if ref == member:
            return list(index)
        dropped = set(self.model.tensors.mesh_axes(member)) - set(self.model.tensors.mesh_axes(ref))
        axes = self.model.tensors.mesh_axes(member)
        return [f for i, f in enumerate(index) if i >= len(axes) or axes[i] not in dropped]

    # --- definitions ---------------------------------------------------------------------------------------

    def definition(self, p: Def) -> Sexp:
        guard = self.in_range(p.t, p.at)
        if isinstance(p.t, Reduced):
            body = self._listed(p.t, p.at)
        else:
            op = self.model.op(p.t)
            if op is None:
                raise NoDefinition(f"{p.t} is an input")
            body = self._body(p.t, p.at, p.arg)
            if op.name == "gather":
                assert p.arg is not None
                operand = self.model.operands(p.t)[0]
                axis = len(self.model.tensors.mesh_axes(operand)) + op.integer("axis")
                guard += self.guard([p.arg[axis]], [self.model.tensors.ranges(operand)[axis]])
        return sexp.implied(guard, ("=", self.read(p.t, p.at), body))

    def _listed(self, ref: Reduced, at: Sequence[Affine]) -> Sexp:
        if ref.kind != "add":
            raise NoDefinition(f"{ref}: only sums are listed in layout stages")
        reads: list[Sexp] = []
        for member in ref.of:
            for point in self.model.coordinates(ref, member):
                full = list(at)
                for axis, value in sorted(zip(ref.axes, point, strict=True), key=lambda t: self._mesh(t[0])):
                    full.insert(self._mesh(axis), Affine(value))
                reads.append(self.read(member, full))
        if len(reads) > MAX_LISTED:
            raise NoDefinition(f"{ref}: {len(reads)} summands are over the limit of {MAX_LISTED}")
        return sexp.plus(reads)

    def _mesh(self, axis: str) -> int:
        return list(self.model.plan.mesh.axes).index(axis)

    def _body(self, ref: str, at: Sequence[Affine], arg: Sequence[Affine] | None) -> Sexp:
        op = self.model.ops[ref]
        if op.name in ("constant", "iota"):
            return self.read(ref, at)
        ins = self.model.operands(ref)
        mesh = len(self.model.tensors.mesh_axes(ref))
        index = list(at)
        if op.name == "recv":
            return self.read_family(self.model.family(ref), self.model.source(ref, index), ref)
        shape = self.model.tensors.type(ins[0]).shape
        match op.name:
            case "send":
                return self.read(ins[0], index)
            case "reshape" | "gather":
                assert arg is not None
                return self.read(ins[0], arg)
            case "broadcast_in_dim":
                dims = op.ints("dims")
                source = [ZERO if n == 1 else index[mesh + d] for n, d in zip(shape, dims, strict=True)]
                return self.read(ins[0], index[:mesh] + source)
            case "transpose":
                source = [ZERO] * len(shape)
                for d, p in enumerate(op.ints("perm")):
                    source[p] = index[mesh + d]
                return self.read(ins[0], index[:mesh] + source)
            case "slice":
                here = dict(zip(self.model.plan.mesh.axes, index, strict=False)) if mesh else {}
                source = [
                    start.substitute(here) + f.scale(step)
                    for start, f, step in zip(
                        op.affines("start"), index[mesh:], op.ints("stride"), strict=True
                    )
                ]
                return self.read(ins[0], index[:mesh] + source)
            case "pad":
                return self._pad(ins, index, mesh, op.ints("low"), op.ints("high"), shape)
            case "concatenate":
                d = mesh + op.integer("dim")
                ends = self.model.ends(ref)
                first, last = self.interval(index[d])
                low = 0 if first is None else bisect_right(ends, first)
                high = len(ins) if last is None else bisect_right(ends, last) + 1
                branches = []
                for v, end, start in zip(ins[low:high], ends[low:high], (0, *ends)[low:high], strict=False):
                    shifted = [*index[:d], index[d] - start, *index[d + 1 :]]
                    branches.append((end, self.read(v, shifted)))
                if not branches:
                    raise NoDefinition(f"{op.name} {ref} is read beyond its end")
                body = branches[-1][1]
                for end, branch in reversed(branches[:-1]):
                    body = ("ite", ("<", self.form(index[d]), sexp.integer(end)), branch, body)
                return body
            case "all_reduce":
                red = self.model.reduced(ref, op.text("kind"))
                return self.read(red, self._drop(red, index))
            case "reduce_scatter":
                red = self.model.reduced(ref, op.text("kind"))
                d = mesh + op.integer("dim")
                place = self.model.position(self.model.group(ref).axes, index)
                index[d] = place.scale(op.type.shape[op.integer("dim")]) + index[d]
                return self.read(red, self._drop(red, index))
            case "all_gather" | "all_to_all":
                assert arg is not None
                return self.read_family(self.model.family(ref), arg, ref)
            case _:
                return self._elementwise(ref, [self.read(v, index) for v in ins])

    def _drop(self, red: Reduced, index: Sequence[Affine]) -> list[Affine]:
        axes = list(self.model.plan.mesh.axes)
        return [f for i, f in enumerate(index) if i >= len(axes) or axes[i] not in red.axes]

    def _pad(
        self,
        ins: Sequence[str],
        index: list[Affine],
        mesh: int,
        low: Sequence[int],
        high: Sequence[int],
        shape: Sequence[int],
    ) -> Sexp:
        inside: list[Sexp] = []
        for f, a, b, n in zip(index[mesh:], low, high, shape, strict=True):
            if a:
                inside.append(("<=", sexp.integer(a), self.form(f)))
            if b:
                inside.append(("<", self.form(f), sexp.integer(a + n)))
        source = self.read(ins[0], index[:mesh] + [f - a for f, a in zip(index[mesh:], low, strict=True)])
        if not inside:
            return source
        return "ite", sexp.conjunction(inside), source, self.read(ins[1], index[:mesh])

    def _elementwise(self, ref: str, reads: list[Sexp]) -> Sexp:
        op = self.model.ops[ref]
        if op.name in ("multiply", "divide"):
            return self._product(ref, reads)
        body = pointwise(op, [self.model.tensors.type(v).sort for v in self.model.operands(ref)], reads)
        if body is None:
            raise NoDefinition(f"{op.name} {ref} has no definition in a layout stage")
        return body

    def _product(self, ref: str, reads: list[Sexp]) -> Sexp:
        op = self.model.ops[ref]
        literals = [self.model.literal(v) for v in self.model.operands(ref)]
        if op.name == "multiply":
            for k in (0, 1):
                value = literals[k]
                if isinstance(value, Fraction):
                    if op.type.sort == "Int":
                        return "*", sexp.integer(value.numerator), reads[1 - k]
                    return "*", sexp.real(value), reads[1 - k]
            if op.type.sort == "Int":
                raise NoDefinition(f"multiply {ref} of two integer tensors is not linear")
            for v, m, x in zip(self.model.operands(ref), reads, reversed(reads), strict=True):
                if self.model.is_mask(v):
                    return "ite", ("=", m, "0.0"), "0.0", x
            return "mul", *reads
        value = literals[1]
        if isinstance(value, Fraction) and value:
            return "*", sexp.real(1 / value), reads[0]
        return "mul", reads[0], ("recip", reads[1])

    # --- reads and guards ----------------------------------------------------------------------------------

    def form(self, form: Affine) -> Sexp:
        return sexp.affine(form, self.order)

    def read(self, ref: Ref, index: Sequence[Affine]) -> Sexp:
        op = self.model.op(ref)
        if self.model.literal(ref) is not None:
            return self._literal(ref, index)
        if op is not None and op.name == "iota":
            mesh = len(self.model.tensors.mesh_axes(ref))
            here = self.form(index[mesh + op.integer("dim")])
            return here if op.type.sort == "Int" else ("to_real", here)
        if not index:
            return Symbol(ref)
        return Symbol(ref), *(self.form(f) for f in index)

    def _literal(self, ref: Ref, index: Sequence[Affine]) -> Sexp:
        value = self.model.literal(ref)
        sort = self.model.tensors.type(ref).sort
        if isinstance(value, Affine):
            here = self.form(value.substitute(dict(zip(self.model.plan.mesh.axes, index, strict=False))))
            return here if sort == "Int" else ("to_real", here)
        if isinstance(value, Fraction):
            return sexp.integer(value.numerator) if sort == "Int" else sexp.real(value)
        return {"inf": "pos_inf", "-inf": "neg_inf"}.get(str(value), str(value))

    def read_family(self, family: Mapping[str, str], index: Sequence[Affine], ref: str) -> Sexp:
        """Read whichever class holds the mesh coordinates at the head of ``index``."""
        axes = list(self.model.plan.mesh.axes)
        reads: list[tuple[list[Sexp], Sexp]] = []
        for cls in self.model.plan.classes:
            met, conditions = True, []
            for a, f in zip(axes, index, strict=False):
                lo, hi = cls.box[a]
                first, last = self.interval(f)
                met &= (first is None or first < hi) and (last is None or last >= lo)
                conditions += self.guard([f], [(lo, hi)])
            if not met:
                continue
            if cls.name not in family:
                raise NoDefinition(f"{ref}: class {cls.name} does not take part")
            reads.append((conditions, self.read(family[cls.name], index)))
        if not reads:
            raise NoDefinition(f"{ref}: no class holds the ranks that it reads")
        body = reads[-1][1]
        for conditions, branch in reversed(reads[:-1]):
            body = ("ite", sexp.conjunction(conditions or ["true"]), branch, body)
        return body

    def interval(self, form: Affine) -> tuple[int, int] | tuple[None, None]:
        known = all(s in self.ranges for s in form.symbols)
        return form.interval(self.ranges) if known else (None, None)

    def guard(self, forms: Sequence[Affine], ranges: Sequence[Range]) -> list[Sexp]:
        """Range conditions that interval arithmetic does not show."""
        out: list[Sexp] = []
        for f, (lo, hi) in zip(forms, ranges, strict=True):
            first, last = self.interval(f)
            if first is None or first < lo:
                out.append(("<=", sexp.integer(lo), self.form(f)))
            if last is None or last >= hi:
                out.append(("<", self.form(f), sexp.integer(hi)))
        return out

    def in_range(self, ref: Ref, at: Sequence[Affine]) -> list[Sexp]:
        return self.guard(list(at), list(self.model.tensors.ranges(ref)))


def pointwise(op: Op, sorts: Sequence[Sort], reads: Sequence[Sexp]) -> Sexp | None:
    """The term of one element by the op table; free functions are of reals, so integers have none of them."""
    terms = OPS[op.name].terms.get(variant(op, sorts))
    if terms is None:
        return None
    if op.type.sort == "Int" and any(functions_of(terms[0])):
        return None
    return sexp.filled(terms[0], reads)


def variant(op: Op, sorts: Sequence[Sort]) -> str:
    """Which of an op's terms; ``sorts`` are its operands'."""
    if op.name == "convert":
        return f"{sorts[0]} {op.type.sort}"
    return op.text("direction") if op.name == "compare" else ""


def kind_of(p: LayoutPremise) -> str:
    match p:
        case BoundSymbol() | BoundIndex() | BoundValue():
            return "bound"
        case Def():
            return "def"
        case Hyp():
            return "hyp"
        case InputRange():
            return "range"
        case EvidentRange():
            return "evident"
        case _:
            assert_never(p)


def lift(model: Model, facts: Sequence[Fact], axes: Sequence[str], kind: str) -> tuple[Fact, Ref, Ref, int]:
    """Sum congruence: the first fact, the reduced tensors of both sides, and the number of equal summands.

    A left side that is reduced over other axes already is reduced over both then.
    """
    fact = facts[0]
    if not axes:
        return fact, fact.lhs, fact.rhs, 1

    def reduced(refs: list[Ref]) -> Reduced:
        over = {*axes, *(a for r in refs if isinstance(r, Reduced) for a in r.axes)}
        members = (m for r in refs for m in (r.of if isinstance(r, Reduced) else (r,)))
        family = {split_ref(m)[0]: m for m in members}
        return model.reduced_of(next(iter(family)), family, tuple(over), kind)

    lhs = reduced([f.lhs for f in facts])
    varies = any(a in form.symbols for form in fact.rhs_index for a in axes)
    if varies:
        return fact, lhs, reduced([f.rhs for f in facts]), 1
    count = math.prod(model.plan.mesh.axes[a] for a in axes) if kind == "add" else 1
    return fact, lhs, fact.rhs, count
