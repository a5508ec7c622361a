"""Algebra obligations: arithmetic at reduced sizes, one constant per element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import assert_never

from certificates.plan.affine import Affine
from certificates.plan.ops import MESSAGES, OPS
from certificates.proof.facts import Fact, Reduced, Ref, split_ref
from certificates.proof.stages import AlgebraPremise, AlgebraStage, Case, Elem, ElemDef, ElemHyp, Law, Tree

from . import sexp
from .errors import NoDefinition
from .layout import variant
from .model import Model
from .sexp import Sexp, Symbol

NO_ALGEBRA = MESSAGES | frozenset(
    ["iota", "reshape", "slice", "pad", "concatenate", "gather", "all_gather", "reduce_scatter", "all_to_all"]
)


class AlgebraText:
    """Writes the premises of one algebra stage."""

    def __init__(self, model: Model, facts: Sequence[Fact], stage: AlgebraStage) -> None:
        self.model, self.facts, self.stage = model, facts, stage

    def text(self, case: Case, status: str) -> str:
        """The SMT-LIB file of one case."""
        premises = [(kind_of(p), self.premise(p)) for p in case.premises]
        return sexp.script(
            letter="e",
            title=self.stage.title,
            status=status,
            premises=premises,
            goal=("not", self.goal(case)),
            symbols=(),
            declare=self.declare,
        )

    def declare(self, symbol: Symbol) -> tuple[str, str]:
        e = symbol.of
        assert isinstance(e, Elem)
        places = ", ".join(f"p{c[0]}:{'.'.join(map(str, c[1:]))}" for c in e.index)
        return "() Real", f"{self.model.describe(e.ref)} at [{places}]"

    # --- positions -----------------------------------------------------------------------------------------

    def position(self, ref: Ref, coordinate: int, place: Sequence[int]) -> Affine:
        """Affine position of a place ``(piece, rep, …)`` over ``class.rep`` symbols."""
        offset, classes, steps = self.stage.trees[ref][coordinate][place[0]]
        names = (f"{name}.{rep}" for name, rep in zip(classes, place[1:], strict=True))
        return Affine.of(offset, zip(names, steps, strict=True))

    def element(self, ref: Ref, index: Sequence[Affine]) -> Elem:
        """The element whose places have exactly these positions."""
        places = []
        for c, form in enumerate(index):
            place = self._place(ref, c, form)
            if place is None:
                raise NoDefinition(f"{ref}: position {form} of coordinate {c} is not a place of its tree")
            places.append(place)
        return Elem(ref, tuple(places))

    def _place(self, ref: Ref, coordinate: int, form: Affine) -> tuple[int, ...] | None:
        for number, (offset, classes, _) in enumerate(self.stage.trees[ref][coordinate]):
            if form.const != offset or len(form.terms) != len(classes):
                continue
            by_class: dict[str, list[tuple[int, int]]] = {}
            for s, coef in form.terms:
                name, rep = s.rsplit(".", 1)
                by_class.setdefault(name, []).append((coef, int(rep)))
            for entries in by_class.values():
                entries.sort()
            reps = []
            for name in classes:
                entries = by_class.get(name, [])
                if not entries:
                    break
                reps.append(entries.pop()[1])
            else:
                place = (number, *reps)
                if self.position(ref, coordinate, place) == form:
                    return place
        return None

    # --- premises ------------------------------------------------------------------------------------------

    def premise(self, p: AlgebraPremise) -> Sexp:
        match p:
            case ElemDef():
                return "=", self.read(p.e), self.definition(p.e)
            case ElemHyp():
                fact = self.facts[p.fact]
                values = {s: form for (s, _, _), form in zip(fact.symbols, p.at, strict=True)}
                left, right = self.sides(fact, values)
                return "=", self.read(left), sexp.times(fact.coef, self.read(right))
            case Law():
                return "=", self.term(p.lhs), self.term(p.rhs)
            case _:
                assert_never(p)

    def sides(self, fact: Fact, values: Mapping[str, Affine]) -> tuple[Elem, Elem]:
        """Elements of both sides of a fact when its symbols take affine positions."""
        return (
            self.element(fact.lhs, [f.substitute(values) for f in fact.lhs_index]),
            self.element(fact.rhs, [f.substitute(values) for f in fact.rhs_index]),
        )

    def goal_values(self, case: Case) -> dict[str, Affine]:
        """Position of each goal symbol in a case."""
        fact = self.facts[self.stage.goal]
        out = {}
        for (name, lo, _), classes, reps in zip(fact.symbols, self.stage.goal_at, case.reps, strict=True):
            total = Affine()
            for cls, rep in zip(classes, reps, strict=True):
                total = total.scale(self.stage.classes[cls][0]) + Affine.symbol(f"{cls}.{rep}")
            out[name] = total + lo
        return out

    def goal(self, case: Case) -> Sexp:
        fact = self.facts[self.stage.goal]
        left, right = self.sides(fact, self.goal_values(case))
        return "=", self.read(left), sexp.times(fact.coef, self.read(right))

    def term(self, term: object) -> Sexp:
        if isinstance(term, Elem):
            return self.read(term)
        if isinstance(term, Fraction):
            return sexp.real(term)
        assert isinstance(term, tuple)
        if term[0] == "*":
            return "*", sexp.real(term[1]), self.term(term[2])
        head = "-" if term[0] == "neg" else str(term[0])
        if len(term) == 1:
            return head
        return head, *(self.term(t) for t in term[1:])

    # --- reads and definitions -----------------------------------------------------------------------------

    def read(self, e: Elem) -> Sexp:
        value = self.model.literal(e.ref)
        if value is None:
            return Symbol(e)
        if isinstance(value, Fraction):
            return sexp.real(value)
        if isinstance(value, Affine):
            raise NoDefinition(f"{e.ref} is a rank-dependent constant")
        return {"true": "1.0", "false": "0.0", "inf": "pos_inf", "-inf": "neg_inf"}[value]

    def definition(self, e: Elem) -> Sexp:
        """Right-hand side of ``def`` for an element, over reads of operand elements."""
        if isinstance(e.ref, Reduced):
            return self._reduce(e.ref.kind, list(self.expand_reduced(e)))
        op = self.model.op(e.ref)
        if op is None or op.name in NO_ALGEBRA:
            raise NoDefinition(f"{op.name if op else 'input'} {e.ref} has no definition in an algebra stage")
        match op.name:
            case "dot_general":
                return sexp.plus(
                    [sexp.times(w, ("mul", self.read(x), self.read(y))) for w, (x, y) in self.expand_dot(e)]
                )
            case "reduce":
                return self._reduce(op.text("kind"), [(w, x) for w, x in self.expand_reduce(e)])
            case _:
                return self._pointwise(e, [self.read(x) for x in self.operand_elements(e)])

    def _reduce(self, kind: str, terms: list[tuple[Fraction, Elem]]) -> Sexp:
        if kind == "add":
            return sexp.plus([sexp.times(w, self.read(x)) for w, x in terms])
        function = {"max": "max2", "or": "max2", "min": "min2", "and": "min2"}[kind]
        body = self.read(terms[-1][1])
        for _, x in reversed(terms[:-1]):
            body = (function, self.read(x), body)
        return body

    def places(self, tree: Tree) -> list[tuple[Fraction, tuple[int, ...]]]:
        """All (weight, place) of a reduced coordinate: pieces, then representatives, lexicographically."""
        out = []
        for number, (_, classes, _) in enumerate(tree):
            sizes = [self.stage.classes[name] for name in classes]
            weight = math.prod((Fraction(n, m) for n, m in sizes), start=Fraction(1))
            for reps in itertools.product(*(range(m) for _, m in sizes)):
                out.append((weight, (number, *reps)))
        return out

    def _tree(self, ref: Ref, coordinate: int) -> Tree:
        """The pieces of a coordinate that is summed; what only literals are known of may have none."""
        if ref not in self.stage.trees:
            raise NoDefinition(f"{ref} has no index classes in this stage")
        return self.stage.trees[ref][coordinate]

    def _sums(self, trees: Sequence[Tree]) -> list[tuple[Fraction, tuple[tuple[int, ...], ...]]]:
        return [
            (math.prod((w for w, _ in combination), start=Fraction(1)), tuple(p for _, p in combination))
            for combination in itertools.product(*(self.places(t) for t in trees))
        ]

    def expand_dot(self, e: Elem) -> list[tuple[Fraction, tuple[Elem, Elem]]]:
        """Weighted operand pairs of a ``dot_general`` element."""
        assert isinstance(e.ref, str)
        op = self.model.ops[e.ref]
        x, y = self.model.operands(e.ref)
        mesh = len(self.model.tensors.mesh_axes(e.ref))
        lb, rb, lc, rc = (op.ints(k) for k in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"))
        ranks = [len(self.model.tensors.type(v).shape) for v in (x, y)]
        free = [
            [d for d in range(r) if d not in b + c] for r, b, c in zip(ranks, (lb, rb), (lc, rc), strict=True)
        ]
        head, rest = e.index[:mesh], e.index[mesh:]
        out = []
        for weight, places in self._sums([self._tree(x, mesh + d) for d in lc]):
            elements = []
            for v, rank, batch, contract, open_, offset in (
                (x, ranks[0], lb, lc, free[0], len(lb)),
                (y, ranks[1], rb, rc, free[1], len(lb) + len(free[0])),
            ):
                index: list[tuple[int, ...]] = [()] * rank
                for k, d in enumerate(batch):
                    index[d] = rest[k]
                for k, d in enumerate(open_):
                    index[d] = rest[offset + k]
                for k, d in enumerate(contract):
                    index[d] = places[k]
                elements.append(Elem(v, (*head, *index)))
            out.append((weight, (elements[0], elements[1])))
        return out

    def expand_reduce(self, e: Elem) -> list[tuple[Fraction, Elem]]:
        """Weighted operand elements of a ``reduce`` element."""
        assert isinstance(e.ref, str)
        op = self.model.ops[e.ref]
        x = self.model.operands(e.ref)[0]
        mesh = len(self.model.tensors.mesh_axes(e.ref))
        dims = op.ints("dims")
        out = []
        for weight, places in self._sums([self._tree(x, mesh + d) for d in dims]):
            index = list(e.index)
            for d, place in zip(dims, places, strict=True):
                index.insert(mesh + d, place)
            out.append((weight, Elem(x, tuple(index))))
        return out

    def expand_reduced(self, e: Elem) -> list[tuple[Fraction, Elem]]:
        """Weighted member elements of a reduced tensor's element."""
        assert isinstance(e.ref, Reduced)
        axes = list(self.model.plan.mesh.axes)
        out = []
        for member in e.ref.of:
            for weight, places in self._sums([self._tree(member, axes.index(a)) for a in e.ref.axes]):
                index = list(e.index)
                for a, place in zip(e.ref.axes, places, strict=True):
                    index.insert(axes.index(a), place)
                out.append((weight, Elem(member, tuple(index))))
        return out

    def operand_elements(self, e: Elem) -> list[Elem]:
        """Operand elements of an op that reads each operand once."""
        assert isinstance(e.ref, str)
        op = self.model.ops[e.ref]
        if op.name == "constant":
            return []
        ins = self.model.operands(e.ref)
        mesh = len(self.model.tensors.mesh_axes(e.ref))
        head, rest = e.index[:mesh], e.index[mesh:]
        match op.name:
            case "broadcast_in_dim":
                shape = self.model.tensors.type(ins[0]).shape
                places = [(0,) if n == 1 else rest[d] for n, d in zip(shape, op.ints("dims"), strict=True)]
                return [Elem(ins[0], (*head, *places))]
            case "transpose":
                source: list[tuple[int, ...]] = [()] * len(rest)
                for d, p in enumerate(op.ints("perm")):
                    source[p] = rest[d]
                return [Elem(ins[0], (*head, *source))]
            case "all_reduce":
                red = self.model.reduced(e.ref, op.text("kind"))
                axes = list(self.model.plan.mesh.axes)
                kept = [p for i, p in enumerate(e.index) if i >= mesh or axes[i] not in red.axes]
                return [Elem(red, tuple(kept))]
            case _:
                return [Elem(v, e.index) for v in ins]

    def _pointwise(self, e: Elem, reads: list[Sexp]) -> Sexp:
        assert isinstance(e.ref, str)
        op = self.model.ops[e.ref]
        match op.name:
            case "constant":
                return self.read(e)
            case "broadcast_in_dim" | "transpose" | "all_reduce":
                return reads[0]
            case "multiply" | "divide":
                return self._product(e.ref, reads)
            case _:
                operands = self.model.operands(e.ref)
                terms = OPS[op.name].terms[variant(op, [self.model.tensors.type(v).sort for v in operands])]
                return sexp.filled(terms[1], reads)

    def _product(self, ref: str, reads: list[Sexp]) -> Sexp:
        op = self.model.ops[ref]
        literals = [self.model.literal(v) for v in self.model.operands(ref)]
        if op.name == "multiply":
            for k in (0, 1):
                value = literals[k]
                if isinstance(value, Fraction):
                    return "*", sexp.real(value), reads[1 - k]
            return "mul", *reads
        value = literals[1]
        if isinstance(value, Fraction) and value:
            return "*", sexp.real(1 / value), reads[0]
        return "mul", reads[0], ("recip", reads[1])


def kind_of(p: AlgebraPremise) -> str:
    match p:
        case ElemDef():
            return "def"
        case ElemHyp():
            return "hyp"
        case Law():
            return "law"
        case _:
            assert_never(p)


def owner(ref: Ref) -> str:
    """The specification ``s``, or the (first) class of a plan tensor."""
    return split_ref(ref if isinstance(ref, str) else ref.of[0])[0]
