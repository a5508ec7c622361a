"""Layout stages: true sizes, symbolic indices. Regenerates every assertion from its record.

Every premise is true for all index symbols in their ranges and some values of the fresh ones: a `q` symbol
exists because an index equation has exactly one solution in range, a `v` symbol because it names an integer
element. Both are introduced once, from earlier symbols (obligation 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from ..errors import Rejected
from ..language.affine import Affine, Ranges, evident, row_major
from ..language.ops import LAYOUT, Op, Term, fill, scaling, wires
from ..language.proof import (
    BoundPart,
    BoundSymbol,
    BoundValue,
    Def,
    Evident,
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
from ..language.regroup import Part, reshape_parts
from .model import Model
from .terms import guarded, integer, literal, nary, range_guard, scaled, within

REGROUPING, MAX_SUMMANDS = ("reshape", "all_gather", "all_to_all"), 128


class Layout:
    """One layout stage; `assertions` are the named terms of its file."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: LayoutStage, where: str) -> None:
        self.model, self.facts, self.where, self.fresh = model, facts, where, dict(stage.symbols)
        goal = facts[stage.goal]
        self.ranges: Ranges = {**goal.ranges(), **self.fresh}
        self.order = {name: i for i, name in enumerate(self.ranges)}
        self.introduced: dict[str, tuple[Ref, Index, int]] = {}
        self.assertions: list[tuple[str, Term]] = []
        for number, premise in enumerate(stage.premises, 1):
            self.where = f"{where}, premise {number}"
            kind, term = self._premise(premise)
            self.assertions.append((f"{kind}.{number}", term))
        body = self._equation(goal, [Affine.symbol(s) for s, _, _ in goal.symbols])
        self.assertions.append(("goal", ("not", body)))

    def need(self, good: bool, number: int, detail: str) -> None:
        if not good:
            raise Rejected(number, detail, self.where)

    def _premise(self, premise: LayoutPremise) -> tuple[str, Term]:
        model = self.model
        match premise:
            case BoundSymbol(sym):
                bounds = self.ranges.get(sym)
                if bounds is None:
                    raise Rejected(6, f"{sym[:40]} has no range", self.where)
                return "bound", within(bounds[0], Affine.symbol(sym), bounds[1])
            case BoundPart(t, at, arg, number):
                self._guard(t, at)
                parts, inner = self._regroup(t, self._op(t), at, arg)
                self.need(number < len(parts), 6, f"{t} has no part {number}")
                (result, operand), outer = parts[number], model.ranges(t)
                guard = range_guard([at[i] for i in result], [outer[i] for i in result], self.ranges)
                return "bound", guarded(guard, ("=", lin(at, outer, result), lin(arg, inner, operand)))
            case BoundValue(t, at, value):
                guard = self._guard(t, at)
                self.need(model.type(t).sort == "Int", 6, f"{t} holds no integers")
                self._introduce(value, "v", (t, at, -1))
                return "bound", guarded(guard, ("=", Affine.symbol(value), model.read(t, at)))
            case Def(t, at, arg):
                guard = self._guard(t, at)
                body, extra = (
                    (self._sum(t, at, arg), []) if isinstance(t, Reduced) else self._body(t, at, arg)
                )
                return "def", guarded(guard + extra, ("=", model.read(t, at), body))
            case Hyp(facts, at, lift, kind):
                self.need(
                    len(facts) == 1 and kind == "add" if not lift else bool(facts),
                    4,
                    "a hypothesis without lift has one fact and kind add",
                )
                members = [self.facts[f] for f in facts]
                fact = self._lifted(members, lift, kind) if lift else members[0]
                self.need(len(at) == len(fact.symbols), 4, f"{len(fact.symbols)} symbols, {len(at)} forms")
                guard = range_guard(at, [(lo, hi) for _, lo, hi in fact.symbols], self.ranges)
                return "hyp", guarded(guard, self._equation(fact, at))
            case Range(name, at):
                self.need(
                    name in model.plan.ranges, 6, f"the input relation declares no range of {name[:60]}"
                )
                t, (low, high) = Tensor("s", name), model.plan.ranges[name]
                return "range", guarded(self._guard(t, at), within(low, model.read(t, at), high))
            case Evident(t, at):
                self.need(model.type(t).sort == "Int", 6, f"{t} holds no integers")
                found = model.shown(t)
                if found is None:
                    raise Rejected(6, f"the ops show no range of {t}", self.where)
                low, last = found
                return "evident", guarded(self._guard(t, at), within(low, model.read(t, at), last + 1))

    # Indices (obligation 6)

    def _guard(self, t: Ref, at: Index) -> list[Term]:
        bounds = self.model.ranges(t)
        self.need(len(at) == len(bounds), 5, f"{t} has {len(bounds)} coordinates, {len(at)} given")
        return range_guard(at, bounds, self.ranges)

    def _op(self, t: Ref) -> Op:
        op = self.model.producer(t)
        if op is None or op.name == "call":
            raise Rejected(5, f"{t} is no result of an op", self.where)
        return op

    def _introduce(self, name: str, prefix: str, meaning: tuple[Ref, Index, int]) -> None:
        """A fresh symbol has one meaning, made of symbols before it."""
        self.need(name in self.fresh and name[0] == prefix, 6, f"{name[:40]} is no fresh {prefix} symbol")
        self.need(self.introduced.setdefault(name, meaning) == meaning, 6, f"{name} is introduced twice")
        self.need(
            all(self.order[s] < self.order[name] for form in meaning[1] for s in form.names()),
            6,
            f"{name} depends on itself or on a later symbol",
        )

    def _regroup(self, t: Ref, op: Op, at: Index, arg: Index) -> tuple[list[Part], list[tuple[int, int]]]:
        """The parts of a regrouping op; `arg` must solve each of them (resolved or fresh)."""
        self.need(op.name in REGROUPING, 6, f"{op.name} of {t} does not regroup indices")
        model, shape, k = self.model, op.ins[0].shape, len(self.model.mesh_axes(t))
        fixed = dict(enumerate(at[:k]))
        if op.name == "reshape":
            bounds = [*model.ranges(t)[:k], *((0, n) for n in shape)]
            parts = [([i + k for i in a], [i + k for i in b]) for a, b in reshape_parts(op.type.shape, shape)]
        else:
            bounds = [(0, n) for n in (*(n for _, n in model.plan.mesh), *shape)]
            dim = k + op.attrs["dim" if op.name == "all_gather" else "concat_dim"]
            parts = [([dim], [*map(model.plan.axis, model.group_axes(op)), dim])]
            fixed = dict(enumerate(at))
            if op.name == "all_to_all":
                split = k + op.attrs["split_dim"]
                self.need(split != dim, 5, "all_to_all with one dimension for both has no def")
                size = op.type.shape[split - k]
                fixed[split] = Affine.total([(size, model.position(op, at[:k])), (1, at[split])])
            for i in parts[0][1]:
                del fixed[i]
        self.need(
            len(arg) == len(bounds), 6, f"{op.name} of {t} needs the operand's {len(bounds)} coordinates"
        )
        self.need(
            all(arg[i] == form for i, form in fixed.items()),
            6,
            f"{op.name} of {t}: a coordinate that is not regrouped changes",
        )
        for number, (outer, inner) in enumerate(parts):
            same = lin(at, model.ranges(t), outer) == lin(arg, bounds, inner)
            if same and all(evident(arg[i], *bounds[i], self.ranges) for i in inner):
                continue
            for i in inner:
                name = next(iter(arg[i].names()), "")
                if bounds[i][1] == 1:
                    self.need(arg[i] == Affine(0), 6, f"{op.name} of {t}: coordinate {i} of size 1 must be 0")
                    continue
                self.need(
                    arg[i] == Affine.symbol(name) and self.ranges[name] == bounds[i],
                    6,
                    f"{op.name} of {t}: part {number} is neither resolved nor fresh",
                )
                self._introduce(name, "q", (t, at, i))
        return parts, bounds

    # Definitions (obligation 5), from the StableHLO meaning of each op

    def _sum(self, t: Reduced, at: Index, arg: Index | None) -> Term:
        """A reduced tensor of kind add lists its ranks, row-major."""
        model, sizes = self.model, dict(self.model.plan.mesh)
        self.need(
            t.kind == "add" and arg is None and math.prod(sizes[a] for a in t.axes) <= MAX_SUMMANDS,
            5,
            f"{t} has no layout def",
        )
        kept = dict(zip(model.mesh_axes(t), at, strict=False))
        terms = []
        for point in product(*(range(sizes[a]) for a in t.axes)):
            here = dict(zip(t.axes, point, strict=True))
            owner = next(
                r
                for r in t.of
                if all(lo <= here[a] < hi for a, (lo, hi) in model.plan.box(r.space).items() if a in here)
            )
            mesh = [Affine(here[a]) if a in here else kept[a] for a in model.axes]
            terms.append(model.read(owner, (*mesh, *at[len(kept) :])))
        return nary("+", terms)

    def _body(self, t: Tensor, at: Index, arg: Index | None) -> tuple[Term, list[Term]]:
        """The right-hand side of an op's result at `at`, and the extra guard of a gather."""
        model, op = self.model, self._op(t)
        self.need(
            (arg is None) == (op.name not in (*REGROUPING, "gather")),
            5,
            f"{op.name} of {t}: operand index is missing or out of place",
        )
        operands, k, a = [Tensor(t.space, o) for o in op.operands], len(model.mesh_axes(t)), op.attrs
        mesh, dims, index = at[:k], at[k:], arg or ()

        def read(i: int, place: Sequence[Affine]) -> Term:
            return model.read(operands[i], (*mesh, *place))

        match op.name:
            case "slice":
                here = dict(zip(model.axes, mesh, strict=False))
                return read(
                    0,
                    [
                        Affine.total([(1, start.substitute(here)), (step, form)])
                        for start, step, form in zip(a["start"], a["stride"], dims, strict=True)
                    ],
                ), []
            case "pad":
                inside: list[Term] = []
                for low, high, n, form in zip(a["low"], a["high"], op.ins[0].shape, dims, strict=True):
                    inside += [("<=", integer(low), form)] if low else []
                    inside += [("<", form, integer(low + n))] if high else []
                moved = read(0, [form.shift(-low) for form, low in zip(dims, a["low"], strict=True)])
                return ("ite", nary("and", inside), moved, read(1, [])) if inside else moved, []
            case "concatenate":
                d, offset, chain = a["dim"], 0, list[tuple[int, Term]]()
                first, last = dims[d].interval(self.ranges)
                for i, operand in enumerate(op.ins):
                    start, offset = offset, offset + operand.shape[d]
                    if first < offset and start <= last:
                        place = [f.shift(-start) if j == d else f for j, f in enumerate(dims)]
                        chain.append((offset, read(i, place)))
                self.need(bool(chain), 5, f"{t} is read beyond its end")
                result = chain[-1][1]
                for end, term in reversed(chain[:-1]):
                    result = ("ite", ("<", dims[d], integer(end)), term, result)
                return result, []
            case "gather":
                axis, batch, bounds = k + a["axis"], a["batch_dims"], model.ranges(operands[0])
                after = axis + len(op.ins[1].shape) - batch
                name = next(iter(index[axis].names()), "") if len(index) == len(bounds) else ""
                self.need(
                    index == (*at[:axis], Affine.symbol(name), *at[after:]),
                    5,
                    f"gather of {t}: the operand index does not fit",
                )
                self._introduce(name, "v", (operands[1], (*at[: k + batch], *at[axis:after]), -1))
                return model.read(operands[0], index), range_guard([index[axis]], [bounds[axis]], self.ranges)
            case "reshape":
                self._regroup(t, op, at, index)
                return model.read(operands[0], index), []
            case "send":
                return read(0, dims), []
            case "recv":
                here = dict(zip(model.axes, mesh, strict=True))
                source = (*(f.substitute(here) for f in a["from"]), *dims)
                return model.family(op, source, self.ranges), []
            case "all_gather" | "all_to_all":
                self._regroup(t, op, at, index)
                return model.family(op, index, self.ranges), []
            case "all_reduce" | "reduce_scatter":
                red = model.reduced_of(op, t)
                kept = [form for axis, form in zip(model.axes, mesh, strict=True) if axis not in red.axes]
                if op.name == "reduce_scatter":
                    d = a["dim"]
                    shift = Affine.total([(op.type.shape[d], model.position(op, mesh)), (1, dims[d])])
                    dims = (*dims[:d], shift, *dims[d + 1 :])
                return model.read(red, (*kept, *dims)), []
        return self._wired(t, op, operands, mesh, dims), []

    def _wired(self, t: Tensor, op: Op, operands: list[Tensor], mesh: Index, dims: Index) -> Term:
        """Elementwise ops, broadcasts and transposes, by the tables of ops.py."""
        wiring, sort = wires(op) or (), op.type.sort
        self.need(
            op.variant in LAYOUT and not (op.name == "abs" and sort == "Int"),
            5,
            f"{op.name} of {t} has no layout def",
        )
        reads = [
            self.model.read(x, (*mesh, *(Affine(0) if d is None else dims[d] for d in wire)))
            for x, wire in zip(operands, wiring, strict=True)
        ]
        scale = scaling(op, [self.model.constant(x) for x in operands])
        if scale is not None:
            return ("*", literal(scale[0], sort), reads[scale[1]])
        self.need(op.name != "multiply" or sort == "Real", 5, f"an integer product in {t} has no layout def")
        masks = [i for i, x in enumerate(operands) if op.name == "multiply" and self.model.mask(x)]
        if masks:
            return ("ite", ("=", reads[masks[0]], "0.0"), "0.0", reads[1 - masks[0]])
        return fill(LAYOUT[op.variant], dict(zip("abc", reads, strict=False)))

    # Hypotheses (obligation 4)

    def _equation(self, fact: Fact, at: Sequence[Affine]) -> Term:
        values = {s: form for (s, _, _), form in zip(fact.symbols, at, strict=True)}
        left, right = (
            self.model.read(ref, tuple(f.substitute(values) for f in forms))
            for ref, forms in ((fact.lhs, fact.lhs_index), (fact.rhs, fact.rhs_index))
        )
        return ("=", left, scaled(fact.coef, right, self.model.type(fact.lhs).sort))

    def _lifted(self, facts: list[Fact], lift: tuple[str, ...], kind: str) -> Fact:
        """Congruence: facts that hold at every rank of `lift`, summed over it (or its max, min taken).

        A left side that is reduced over other axes already is reduced over both then.
        """
        model, first = self.model, facts[0]
        self.need(
            tuple(a for a in model.axes if a in lift) == lift,
            4,
            "lifted axes must be mesh axes in mesh order",
        )
        shapes = set()
        for fact in facts:
            sides = []
            for left_side, ref, index in (
                (True, fact.lhs, fact.lhs_index),
                (False, fact.rhs, fact.rhs_index),
            ):
                over = model.mesh_axes(ref)
                held = bool(over) if isinstance(ref, Tensor) else left_side and ref.kind == kind
                for a in lift:
                    i = over.index(a) if held and a in over else -1
                    used = {j for j, f in enumerate(index) if a in f.names()}
                    whole = (
                        used == {i}
                        and index[i] == Affine.symbol(a)
                        and (fact.ranges().get(a) == model.ranges(ref)[i])
                    )
                    self.need(
                        whole or (not used and not left_side),
                        4,
                        f"{a} does not run over the whole class "
                        f"of {ref}, or occurs in its index otherwise than as its coordinate",
                    )
                    sides.append(bool(used))
            inside = sides[len(lift) :]
            self.need(any(inside) == all(inside), 4, "some lifted axes occur on the right, others do not")
            rest = tuple(s for s in fact.symbols if s[0] not in lift)
            shapes.add(
                (
                    fact.coef,
                    rest,
                    fact.lhs_index,
                    fact.rhs_index,
                    all(inside),
                    None if all(inside) else fact.rhs,
                    model.mesh_axes(fact.lhs),
                )
            )
        self.need(len(shapes) == 1, 4, "the lifted facts disagree")
        coef, symbols, left, right, moving, _, over = shapes.pop()
        self.need(kind == "add" or coef > 0, 4, f"{kind} of a fact whose coefficient is not positive")
        members = [m for f in facts for m in (f.lhs.of if isinstance(f.lhs, Reduced) else (f.lhs,))]
        axes = tuple(a for a in model.axes if a in lift or a not in over)
        lhs = Reduced(kind, axes, tuple(members))
        rhs: Ref = first.rhs
        if moving:
            rhs = Reduced(kind, lift, tuple(f.rhs for f in facts if isinstance(f.rhs, Tensor)))
            right = without(right, model.axes, lift)
        elif kind == "add":
            coef *= math.prod(model.plan.mesh[model.axes.index(a)][1] for a in lift)
        model.type(lhs), model.type(rhs)
        return Fact(lhs, rhs, coef, symbols, without(left, over, lift), right)


def without(index: Index, axes: Sequence[str], lift: Sequence[str]) -> Index:
    """The index that lacks the coordinates of some of its mesh axes."""
    return tuple(f for i, f in enumerate(index) if i >= len(axes) or axes[i] not in lift)


def lin(forms: Index, bounds: Sequence[tuple[int, int]], dims: Sequence[int]) -> Affine:
    """The row-major number of some coordinates, by true sizes."""
    return row_major([forms[i] for i in dims], [bounds[i][1] for i in dims])
