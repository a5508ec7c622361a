"""Layout stages: true sizes, symbolic indices. Regenerates every assertion from its record.

Every premise is true for all index symbols in their ranges and some values of the fresh ones: a `q` symbol
exists because an index equation has exactly one solution in range, a `v` symbol because it names an integer
element. Both are introduced once, from earlier symbols (obligation 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from .affine import Affine, row_major
from .errors import Rejected
from .model import MAX_SUMMANDS, Model, evident, range_guard
from .reader import UNARY, Op
from .records import (
    BoundPart,
    BoundSymbol,
    BoundValue,
    Def,
    Fact,
    Hyp,
    Index,
    LayoutPremise,
    LayoutStage,
    Range,
    Reduced,
    Ref,
    Tensor,
)
from .terms import Term, guarded, integer, literal, nary, real, scaled

Part = tuple[list[int], list[int]]
COMPARE = {"EQ": "=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
REGROUPING = ("reshape", "all_gather", "all_to_all")


def reshape_parts(result: Sequence[int], operand: Sequence[int]) -> list[Part]:
    """The finest parts of equal products; size 1 joins its left neighbour's part, leading ones the first."""
    left, right = ([i for i, n in enumerate(s) if n > 1] for s in (result, operand))
    cuts, i, j = [(0, 0)], 0, 0
    while i < len(left):
        if i:
            cuts.append((left[i], right[j]))
        a, b, i, j = result[left[i]], operand[right[j]], i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * result[left[i]], i + 1
            else:
                b, j = b * operand[right[j]], j + 1
    ends = [*cuts[1:], (len(result), len(operand))]
    return [(list(range(a, c)), list(range(b, d))) for (a, b), (c, d) in zip(cuts, ends, strict=True) if c
            or d]


class Layout:
    """One layout stage; `assertions` are the named terms of its file."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: LayoutStage, where: str) -> None:
        self.model, self.facts, self.where = model, facts, where
        goal = facts[stage.goal]
        fresh = {s[0]: None if s[1] is None else (s[1], s[2]) for s in stage.symbols}
        self.ranges: dict[str, tuple[int, int] | None] = {**goal.ranges(), **fresh}
        self.order = {name: i for i, name in enumerate(self.ranges)}
        self.fresh = set(fresh)
        self.introduced: dict[str, tuple[Ref, Index, int]] = {}
        self.assertions: list[tuple[str, Term]] = []
        for number, premise in enumerate(stage.premises, 1):
            self.where = f"{where}, premise {number}"
            kind, term = self._premise(premise)
            self.assertions.append((f"{kind}.{number}", term))
        body = self._equation(goal, [Affine.symbol(s) for s, _, _ in goal.symbols])
        self.assertions.append(("goal", ("not", body)))

    def fail(self, number: int, detail: str) -> Rejected:
        names = {4: "hypotheses", 5: "definitions", 6: "bounds and fresh symbols"}
        return Rejected(number, names[number], detail, self.where)

    def _premise(self, premise: LayoutPremise) -> tuple[str, Term]:
        match premise:
            case BoundSymbol(sym):
                bounds = self.ranges.get(sym)
                if bounds is None:
                    raise self.fail(6, f"{sym} has no range")
                form = Affine.symbol(sym)
                return "bound", ("and", ("<=", integer(bounds[0]), form), ("<", form, integer(bounds[1])))
            case BoundPart(t, at, arg, part):
                guard, op = self._guard(t, at), self._op(t)
                if op.name not in REGROUPING or not isinstance(t, Tensor):
                    raise self.fail(6, f"{op.name} of {t} does not regroup indices")
                parts, bounds_arg = self._regroup(t, op, at, arg)
                if part >= len(parts):
                    raise self.fail(6, f"{op.name} of {t} has no part {part}")
                result, operand = parts[part]
                bounds_at = self.model.ranges(t)
                guard = range_guard([at[i] for i in result], [bounds_at[i] for i in result], self.ranges)
                return "bound", guarded(guard, ("=", self._lin(at, bounds_at, result),
                                                self._lin(arg, bounds_arg, operand)))
            case BoundValue(t, at, value):
                guard = self._guard(t, at)
                if self.model.type(t).sort != "Int":
                    raise self.fail(6, f"{t} holds no integers")
                self._introduce(value, "v", (t, at, -1))
                return "bound", guarded(guard, ("=", Affine.symbol(value), self.model.read(t, at)))
            case Def(t, at, arg):
                guard = self._guard(t, at)
                if isinstance(t, Reduced):
                    return "def", guarded(guard, ("=", self.model.read(t, at), self._sum(t, at, arg)))
                op = self._op(t)
                body, extra = self._body(t, op, at, arg)
                return "def", guarded(guard + extra, ("=", self.model.read(t, at), body))
            case Hyp(facts, at, lift, kind):
                return "hyp", self._hyp([self.facts[f] for f in facts], at, lift, kind)
            case Range(name, at):
                plan = self.model.plan
                if name not in plan.ranges:
                    raise self.fail(6, f"the input relation declares no range of {name[:60]}")
                t = Tensor("s", name)
                guard = self._guard(t, at)
                read, (low, high) = self.model.read(t, at), plan.ranges[name]
                return "range", guarded(guard, ("and", ("<=", integer(low), read),
                                                ("<", read, integer(high))))

    # Indices

    def _guard(self, t: Ref, at: Index) -> list[Term]:
        bounds = self.model.ranges(t)
        if len(at) != len(bounds):
            raise self.fail(5, f"{t} has {len(bounds)} coordinates, {len(at)} given")
        return range_guard(at, bounds, self.ranges)

    def _op(self, t: Ref) -> Op:
        op = self.model.producer(t)
        if op is None:
            raise self.fail(5, f"{t} is no result of an op")
        return op

    @staticmethod
    def _lin(forms: Index, bounds: Sequence[tuple[int, int]], dims: Sequence[int]) -> Affine:
        return row_major([forms[i] for i in dims], [bounds[i][1] for i in dims])

    def _introduce(self, name: str, prefix: str, meaning: tuple[Ref, Index, int]) -> None:
        """A fresh symbol has one meaning, made of symbols before it (obligation 6)."""
        if name not in self.fresh or name[0] != prefix:
            raise self.fail(6, f"{name[:40]} is no fresh {prefix} symbol")
        if self.introduced.setdefault(name, meaning) != meaning:
            raise self.fail(6, f"{name} is introduced twice")
        if any(self.order[s] >= self.order[name] for form in meaning[1] for s in form.names()):
            raise self.fail(6, f"{name} depends on itself or on a later symbol")

    def _regroup(self, t: Tensor, op: Op, at: Index,
                 arg: Index | None) -> tuple[list[Part], list[tuple[int, int]]]:
        """The parts of a regrouping op; `arg` must solve each of them (resolved or fresh)."""
        model, mesh = self.model, self.model.plan.mesh
        operand = Tensor(t.space, op.operands[0])
        shape, k = model.type(operand).shape, len(model.mesh_axes(t))
        fixed = {i: at[i] for i in range(k)}
        if op.name == "reshape":
            bounds = list(model.ranges(operand))
            parts = [([i + k for i in a], [i + k for i in b]) for a, b in reshape_parts(op.type.shape, shape)]
        else:
            bounds = [*((0, n) for _, n in mesh), *((0, n) for n in shape)]
            dim = op.attrs["dim" if op.name == "all_gather" else "concat_dim"]
            axes = [model.plan.axis(a) for a in model.group_axes(op)]
            parts = [([k + dim], [*axes, k + dim])]
            fixed.update({k + i: at[k + i] for i in range(len(shape))})
            if op.name == "all_to_all":
                split = op.attrs["split_dim"]
                if split == dim:
                    raise self.fail(5, "all_to_all with one dimension for both has no def")
                size = op.type.shape[split]
                fixed[k + split] = Affine.total([(size, model.position(op, at[:k])), (1, at[k + split])])
            for i in parts[0][1]:
                fixed.pop(i)
        if arg is None or len(arg) != len(bounds):
            raise self.fail(6, f"{op.name} of {t} needs the operand's {len(bounds)} coordinates")
        if any(arg[i] != form for i, form in fixed.items()):
            raise self.fail(6, f"{op.name} of {t}: a coordinate that is not regrouped changes")
        for number, (outer, inner) in enumerate(parts):
            same = self._lin(at, model.ranges(t), outer) == self._lin(arg, bounds, inner)
            if same and all(evident(arg[i], *bounds[i], self.ranges) for i in inner):
                continue
            seen = set[str]()
            for i in inner:
                if bounds[i][1] == 1:
                    if arg[i] != Affine(0):
                        raise self.fail(6, f"{op.name} of {t}: coordinate {i} of size 1 must be 0")
                    continue
                name = next(iter(arg[i].names()), "")
                if arg[i] != Affine.symbol(name) or name in seen or self.ranges[name] != bounds[i]:
                    raise self.fail(6, f"{op.name} of {t}: part {number} is neither resolved nor fresh")
                seen.add(name)
                self._introduce(name, "q", (t, at, i))
        return parts, bounds

    # Definitions (obligation 5), from the StableHLO meaning of each op

    def _sum(self, t: Reduced, at: Index, arg: Index | None) -> Term:
        model, sizes = self.model, dict(self.model.plan.mesh)
        count = math.prod(sizes[a] for a in t.axes)
        if t.kind != "add" or arg is not None or count > MAX_SUMMANDS:
            raise self.fail(5, f"{t} has no layout def")
        kept = dict(zip(model.mesh_axes(t), at, strict=False))
        terms = []
        for point in product(*(range(sizes[a]) for a in t.axes)):
            here = dict(zip(t.axes, point, strict=True))
            owner = next(r for r in t.of if all(lo <= here[a] < hi for a, (lo, hi) in zip(
                model.axes, model.ranges(r), strict=False) if a in here))
            mesh = [Affine(here[a]) if a in here else kept[a] for a in model.axes]
            terms.append(model.read(owner, (*mesh, *at[len(kept):])))
        return nary("+", terms)

    def _body(self, t: Ref, op: Op, at: Index, arg: Index | None) -> tuple[Term, list[Term]]:
        """The right-hand side of an op's result at `at`, and the extra guard of a gather."""
        model = self.model
        if not isinstance(t, Tensor) or (arg is None) == (op.name in (*REGROUPING, "gather")):
            raise self.fail(5, f"{op.name} of {t}: operand index is missing or out of place")
        operands = [Tensor(t.space, o) for o in op.operands]
        k = len(model.mesh_axes(t))
        mesh, dims = at[:k], at[k:]

        def read(i: int, index: Sequence[Affine]) -> Term:
            return model.read(operands[i], (*mesh, *index))

        match op.name:
            case "broadcast_in_dim":
                shape = model.type(operands[0]).shape
                return read(0, [dims[d] if n > 1 else Affine(0)
                                for d, n in zip(op.attrs["dims"], shape, strict=True)]), []
            case "transpose":
                places = {p: form for p, form in zip(op.attrs["perm"], dims, strict=True)}
                return read(0, [places[i] for i in range(len(dims))]), []
            case "slice":
                here = dict(zip(model.axes, mesh, strict=False))
                return read(0, [Affine.total([(1, start.substitute(here)), (step, form)]) for start, step,
                                form in zip(
                    op.attrs["start"], op.attrs["stride"], dims, strict=True)]), []
            case "pad":
                inside: list[Term] = []
                for low, high, n, form in zip(op.attrs["low"], op.attrs["high"],
                                              model.type(operands[0]).shape, dims,
                                              strict=True):
                    inside += [("<=", integer(low), form)] if low else []
                    inside += [("<", form, integer(low + n))] if high else []
                moved = read(0, [form.shift(-low) for form, low in zip(dims, op.attrs["low"], strict=True)])
                return (("ite", nary("and", inside), moved, read(1, [])) if inside else moved), []
            case "concatenate":
                d, offset, chain = op.attrs["dim"], 0, list[tuple[int, Term]]()
                for i, operand in enumerate(operands):
                    index = [f.shift(-offset) if j == d else f for j, f in enumerate(dims)]
                    offset += model.type(operand).shape[d]
                    chain.append((offset, read(i, index)))
                result = chain[-1][1]
                for end, term in reversed(chain[:-1]):
                    result = ("ite", ("<", dims[d], integer(end)), term, result)
                return result, []
            case "gather":
                return self._gather(t, op, operands, at, arg or ())
            case "reshape" | "all_gather" | "all_to_all":
                self._regroup(t, op, at, arg)
                if op.name == "reshape":
                    return model.read(operands[0], arg or ()), []
                return model.family(op, arg or (), self.ranges), []
            case "all_reduce" | "reduce_scatter":
                red = model.reduced_of(op, t, op.attrs["kind"])
                kept = [form for a, form in zip(model.axes, mesh, strict=True) if a not in red.axes]
                if op.name == "reduce_scatter":
                    d = op.attrs["dim"]
                    shift = Affine.total([(op.type.shape[d], model.position(op, mesh)), (1, dims[d])])
                    dims = (*dims[:d], shift, *dims[d + 1:])
                model.type(red)
                return model.read(red, (*kept, *dims)), []
            case _:
                return self._elementwise(t, op, operands, at), []

    def _gather(self, t: Tensor, op: Op, operands: list[Tensor], at: Index, arg: Index) -> tuple[Term,
        list[Term]]:
        model, k = self.model, len(self.model.mesh_axes(t))
        axis, batch = k + op.attrs["axis"], op.attrs["batch_dims"]
        own = len(model.type(operands[1]).shape) - batch
        index_at = (*at[:k + batch], *at[axis:axis + own])
        bounds = model.ranges(operands[0])
        name = next(iter(arg[axis].names()), "") if len(arg) == len(bounds) else ""
        if arg != (*at[:axis], Affine.symbol(name), *at[axis + own:]):
            raise self.fail(5, f"gather of {t}: the operand index does not fit")
        self._introduce(name, "v", (operands[1], index_at, -1))
        return model.read(operands[0], arg), range_guard([arg[axis]], [bounds[axis]], self.ranges)

    def _elementwise(self, t: Tensor, op: Op, operands: list[Tensor], at: Index) -> Term:
        model, sort = self.model, op.type.sort
        inner = [model.type(o).sort for o in operands]
        if op.name in ("constant", "iota", "dot_general", "reduce") or (op.name == "abs" and sort == "Int"):
            raise self.fail(5, f"{op.name} of {t} has no layout def")
        if any(model.type(o).shape != op.type.shape for o in operands):
            raise self.fail(5, f"{op.name} of {t} is not elementwise")
        x = [model.read(o, at) for o in operands]
        constants = [model.constant(o) for o in operands]
        match op.name:
            case "add" | "subtract" | "negate":
                return ("+" if op.name == "add" else "-", *x)
            case "multiply":
                for c, other in ((constants[0], 1), (constants[1], 0)):
                    if isinstance(c, Fraction):
                        return ("*", literal(c, sort), x[other])
                if sort == "Int":
                    raise self.fail(5, f"an integer product in {t} has no layout def")
                return ("mul", *x)
            case "divide":
                c = constants[1]
                return ("*", real(1 / c), x[0]) if isinstance(c, Fraction) and c else ("mul", x[0],
                    ("recip", x[1]))
            case "maximum" | "minimum":
                return ("ite", (">=" if op.name == "maximum" else "<=", *x), *x)
            case "compare":
                direction = op.attrs["direction"]
                return ("not", ("=", *x)) if direction == "NE" else (COMPARE[direction], *x)
            case "select":
                return ("ite", *x)
            case "and" | "or" | "not":
                return (op.name, *x)
            case "convert":
                unit = ("1.0", "0.0") if sort == "Real" else ("1", "0")
                match inner[0], sort:
                    case ("Bool", "Real" | "Int"):
                        return ("ite", x[0], *unit)
                    case ("Int", "Real"):
                        return ("to_real", x[0])
                    case ("Int", "Bool"):
                        return ("not", ("=", x[0], "0"))
                return x[0]
            case "power":
                return ("fpow", *x)
            case _:
                return (UNARY[op.name], *x)

    # Hypotheses (obligation 4)

    def _equation(self, fact: Fact, at: Sequence[Affine]) -> Term:
        values = dict(zip((s for s, _, _ in fact.symbols), at, strict=True))
        left, right = (self.model.read(ref, tuple(f.substitute(values) for f in forms))
                       for ref, forms in ((fact.lhs, fact.lhs_index), (fact.rhs, fact.rhs_index)))
        return ("=", left, scaled(fact.coef, right, self.model.type(fact.lhs).sort))

    def _hyp(self, facts: list[Fact], at: Index, lift: tuple[str, ...], kind: str) -> Term:
        if not facts or (not lift and (len(facts) != 1 or kind != "add")):
            raise self.fail(4, "a hypothesis without lift has one fact and kind add")
        fact = self._lifted(facts, lift, kind) if lift else facts[0]
        if len(at) != len(fact.symbols):
            raise self.fail(4, f"{len(fact.symbols)} symbols, {len(at)} forms")
        guard = range_guard(at, [(lo, hi) for _, lo, hi in fact.symbols], self.ranges)
        return guarded(guard, self._equation(fact, at))

    def _lifted(self, facts: list[Fact], lift: tuple[str, ...], kind: str) -> Fact:
        """Congruence: facts that hold at every rank of `lift`, summed over it (or its max, min taken)."""
        model, first = self.model, facts[0]
        axes = tuple(a for a in model.axes if a in lift)
        if axes != lift:
            raise self.fail(4, "lifted axes must be mesh axes in mesh order")
        shapes = set()
        for fact in facts:
            if not isinstance(fact.lhs, Tensor) or fact.lhs.space not in model.plan.classes:
                raise self.fail(4, "only facts about plan tensors can be lifted")
            ranges, found = fact.ranges(), [False]
            for a in axes:
                i, alone = model.plan.axis(a), Affine.symbol(a)
                if ranges.get(a) != model.ranges(fact.lhs)[i] or fact.lhs_index[i] != alone:
                    raise self.fail(4, f"{a} does not run over the whole class of {fact.lhs}")
                if sum(a in f.names() for f in fact.lhs_index) != 1:
                    raise self.fail(4, f"{a} occurs elsewhere in the index of {fact.lhs}")
                inside = [j for j, f in enumerate(fact.rhs_index) if a in f.names()]
                same = isinstance(fact.rhs, Tensor) and fact.rhs.space in model.plan.classes
                if inside and not (same and inside == [i] and fact.rhs_index[i] == alone
                                   and model.ranges(fact.rhs)[i] == ranges[a]):
                    raise self.fail(4,
                                    f"{a} occurs in the index of {fact.rhs} otherwise than as its coordinate")
                found.append(bool(inside))
            if any(found[1:]) != all(found[1:]):
                raise self.fail(4, "some lifted axes occur on the right, others do not")
            rest = tuple(s for s in fact.symbols if s[0] not in axes)
            shapes.add((fact.coef, rest, fact.lhs_index, fact.rhs_index, any(found),
                        None if any(found) else fact.rhs))
        if len(shapes) != 1:
            raise self.fail(4, "the lifted facts disagree")
        coef, symbols, left, right, inside_rhs, _ = shapes.pop()
        if kind != "add" and coef <= 0:
            raise self.fail(4, f"{kind} of a fact whose coefficient is not positive")
        lhs = Reduced(kind, axes, tuple(f.lhs for f in facts if isinstance(f.lhs, Tensor)))
        rhs: Ref = first.rhs
        keep = [f for a, f in zip(model.axes, left, strict=False) if a not in axes]
        new_left = (*keep, *left[len(model.axes):])
        if inside_rhs:
            rhs = Reduced(kind, axes, tuple(f.rhs for f in facts if isinstance(f.rhs, Tensor)))
            kept = [f for a, f in zip(model.axes, right, strict=False) if a not in axes]
            right = (*kept, *right[len(model.axes):])
        elif kind == "add":
            coef *= math.prod(n for a, n in model.plan.mesh if a in axes)
        model.type(lhs), model.type(rhs)
        return Fact(lhs, rhs, coef, symbols, new_left, right)
