"""Widths of algebra stages: how few representatives of each index class are enough (DESIGN section 3).

``w = max(F + B, F + s_x + s_y + max(b_x, b_y))`` per class, over both sides of the goal after substitution.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from certificates.proof.facts import Fact, Reduced
from certificates.proof.stages import AlgebraStage, Elem, Tree
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition
from smtlib_emit.model import Model

Variable = tuple[str, int]
#: Representatives at and above this number are bound variables of a symbolic unfolding.
BOUND = 1 << 20


@dataclass(frozen=True)
class Application:
    """One application of a free function: variables bound around it, and the largest product inside it."""

    function: str
    bound: frozenset[tuple[str, int]]
    product: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Measure:
    """Of one expression: per class the most summed variables in one product outside functions, the variables
    that occur, and all applications of free functions."""

    products: Counter[str] = field(default_factory=Counter)
    variables: frozenset[Variable] = frozenset()
    applications: frozenset[Application] = frozenset()


def _either(parts: Iterable[Measure]) -> Measure:
    products: Counter[str] = Counter()
    variables: frozenset[Variable] = frozenset()
    applications: frozenset[Application] = frozenset()
    for p in parts:
        products |= p.products
        variables |= p.variables
        applications |= p.applications
    return Measure(products, variables, applications)


def _product(parts: Sequence[Measure]) -> Measure:
    joined = _either(parts)
    total: Counter[str] = Counter()
    for p in parts:
        total += p.products
    return Measure(total, joined.variables, joined.applications)


def _apply(function: str, parts: Sequence[Measure]) -> Measure:
    joined = _either(parts)
    bound: Counter[str] = Counter(cls for cls, rep in joined.variables if rep >= BOUND)
    application = Application(function, frozenset(bound.items()), tuple(sorted(joined.products.items())))
    idempotent = function in ("max2", "min2")  # which may collapse to one of its arguments (ADR 0010)
    products = joined.products if idempotent else Counter()
    return Measure(products, joined.variables, joined.applications | {application})


class Measurer(AlgebraText):
    """Unfolds elements symbolically: every sum binds one fresh variable per class and piece."""

    def __init__(
        self,
        model: Model,
        facts: Sequence[Fact],
        stage: AlgebraStage,
        defined: Callable[[Elem], bool],
        substitute: Callable[[Elem], Elem | None],
    ) -> None:
        super().__init__(model, facts, stage)
        self.defined, self.substitute = defined, substitute
        self.next = BOUND

    def places(self, tree: Tree) -> list[tuple[Fraction, tuple[int, ...]]]:
        out = []
        for number, (_, classes, _) in enumerate(tree):
            reps = tuple(range(self.next, self.next + len(classes)))
            self.next += len(classes)
            out.append((Fraction(1), (number, *reps)))
        return out

    def variables(self, e: Elem) -> frozenset[Variable]:
        return frozenset(
            (cls, rep)
            for c, place in enumerate(e.index)
            for cls, rep in zip(self.stage.trees[e.ref][c][place[0]][1], place[1:], strict=True)
        )

    def measure(self, e: Elem) -> Measure:
        """Measure of an element after substitution of definitions and hypotheses."""
        gone = set[Elem]()
        while self.model.literal(e.ref) is None:
            if self.defined(e):
                return self._definition(e)
            other = self.substitute(e)
            if other is None:
                return Measure(Counter(), self.variables(e))
            gone.add(e)
            if other in gone:
                raise NoDefinition(f"{e.ref}: an element that is known as itself only")
            e = other
        return Measure()

    def _definition(self, e: Elem) -> Measure:
        start = self.next
        if isinstance(e.ref, Reduced):
            return self._reduction(e.ref.kind, [x for _, x in self.expand_reduced(e)], start)
        op = self.model.ops[e.ref]
        if op.name == "reduce":
            return self._reduction(op.text("kind"), [x for _, x in self.expand_reduce(e)], start)
        if op.name == "dot_general":
            terms = []
            for _, (x, y) in self.expand_dot(e):
                bound = Counter(c for c, rep in self.variables(x) | self.variables(y) if rep >= start)
                product = _product([self.measure(x), self.measure(y)])
                terms.append(Measure(product.products + bound, product.variables, product.applications))
            return _either(terms)
        parts = [self.measure(x) for x in self.operand_elements(e)]
        if self.model.scale(e.ref) is not None:
            return _either(parts)
        match op.name:
            case "add" | "subtract" | "not" | "broadcast_in_dim" | "transpose" | "all_reduce" | "constant":
                return _either(parts)
            case "multiply" | "and" | "or":
                return _product(parts)
            case "divide":
                return _product([parts[0], _apply("recip", parts[1:])])
            case "select":
                return _either([parts[2], _product([parts[0], _either(parts[1:])])])
            case "convert":
                source = self.model.tensors.type(self.model.operands(e.ref)[0]).sort
                return _apply("nonzero", parts) if (source, op.type.sort) == ("Int", "Bool") else parts[0]
            case "compare":
                return _apply("compare " + op.text("direction"), parts)
            case "maximum" | "minimum":
                return _apply(op.name[:3] + "2", parts)
            case name:
                return _apply(name, parts)

    def _reduction(self, kind: str, elements: Sequence[Elem], start: int) -> Measure:
        terms = []
        for x in elements:
            inner = self.measure(x)
            bound = Counter(c for c, rep in self.variables(x) if rep >= start) if kind == "add" else Counter()
            terms.append(Measure(inner.products + bound, inner.variables, inner.applications))
        if kind == "add":
            return _either(terms)
        return _apply("max2" if kind in ("max", "or") else "min2", terms)


def widths(measures: Sequence[Measure], free: Counter[str], classes: Iterable[str]) -> dict[str, int]:
    """The width of every class from the measures of both sides and the free occurrences of the goal."""
    whole = _either(measures)
    by_function: dict[str, list[tuple[dict[str, int], dict[str, int]]]] = {}
    for a in whole.applications:
        by_function.setdefault(a.function, []).append((dict(a.bound), dict(a.product)))
    out = {}
    for cls in classes:
        w = max(1, free[cls] + whole.products[cls])
        for applications in by_function.values():
            pairs = {(s.get(cls, 0), b.get(cls, 0)) for s, b in applications}
            for (s, b), (t, c) in itertools.product(pairs, pairs):
                w = max(w, free[cls] + s + t + max(b, c))
        out[cls] = w
    return out
