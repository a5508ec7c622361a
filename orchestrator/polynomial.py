"""Ring normal forms of stage elements, and the ring-law instances that lead there.

A polynomial maps monomials (sorted tuples of atoms) to rationals; an atom is an element that the stage leaves
free, or the first element seen of equal function applications.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from certificates.facts import Reduced
from certificates.proof import Elem, Law, Term
from smtlib_emit.algebra import AlgebraText

Atom = Elem | Fraction | tuple[object, ...] | str
Monomial = tuple[Atom, ...]
Polynomial = frozenset[tuple[Monomial, Fraction]]
ONE: Polynomial = frozenset({((), Fraction(1))})
ZERO: Polynomial = frozenset()


class Polynomials:
    """Normal forms of elements under the definitions and substitutions of one stage case."""

    def __init__(
        self,
        text: AlgebraText,
        defined: Callable[[Elem], bool],
        replaced: Mapping[Elem, tuple[Fraction, Elem]],
    ) -> None:
        self.text, self.model = text, text.model
        self.defined, self.replaced = defined, replaced
        self.laws: list[Law] = []
        self._memo: dict[Elem, Polynomial] = {}
        self._applications: dict[object, Atom] = {}
        self._order: dict[object, int] = {}
        self._seen: set[tuple[Term, Term]] = set()

    def of(self, e: Elem) -> Polynomial:
        """The normal form of an element."""
        if e not in self._memo:
            self._memo[e] = self._of(e)
        return self._memo[e]

    @staticmethod
    def scaled(factor: Fraction, p: Polynomial) -> Polynomial:
        return frozenset((m, factor * c) for m, c in p) if factor else ZERO

    @staticmethod
    def sum(parts: list[Polynomial]) -> Polynomial:
        total: dict[Monomial, Fraction] = {}
        for p in parts:
            for m, c in p:
                total[m] = total.get(m, Fraction(0)) + c
        return frozenset((m, c) for m, c in total.items() if c)

    def _atom(self, atom: Atom) -> Polynomial:
        self._order.setdefault(atom, len(self._order))
        return frozenset({((atom,), Fraction(1))})

    def _of(self, e: Elem) -> Polynomial:
        value = self.model.literal(e.ref)
        if isinstance(value, Fraction):
            return self.scaled(value, ONE)
        if value is not None:
            if value in ("true", "false"):
                return ONE if value == "true" else ZERO
            return self._atom({"inf": "pos_inf", "-inf": "neg_inf"}[str(value)])
        if self.defined(e):
            return self._definition(e)
        if e in self.replaced:
            coef, other = self.replaced[e]
            return self.scaled(coef, self.of(other))
        return self._atom(e)

    def _definition(self, e: Elem) -> Polynomial:
        text = self.text
        if isinstance(e.ref, Reduced):
            return self._reduction(e, e.ref.kind, text.expand_reduced(e))
        op = self.model.ops[e.ref]
        if op.name == "reduce":
            return self._reduction(e, op.text("kind"), text.expand_reduce(e))
        if op.name == "dot_general":
            return self.sum(
                [self.scaled(w, self._mul(self.of(x), self.of(y))) for w, (x, y) in text.expand_dot(e)]
            )
        elements = text.operand_elements(e)
        parts = [self.of(x) for x in elements]
        scale = self.model.scale(e.ref)
        if scale is not None:
            return self.scaled(scale[1], parts[scale[0]])
        match op.name:
            case "add":
                return self.sum(parts)
            case "subtract":
                return self.sum([parts[0], self.scaled(Fraction(-1), parts[1])])
            case "broadcast_in_dim" | "transpose" | "all_reduce":
                return parts[0]
            case "multiply" | "and":
                return self._mul(parts[0], parts[1])
            case "or":
                product = self._mul(parts[0], parts[1])
                return self.sum([*parts, self.scaled(Fraction(-1), product)])
            case "not":
                return self.sum([ONE, self.scaled(Fraction(-1), parts[0])])
            case "divide":
                return self._mul(parts[0], self._inverse(parts[1], elements[1]))
            case "select":
                difference = self.sum([parts[1], self.scaled(Fraction(-1), parts[2])])
                return self.sum([parts[2], self._mul(parts[0], difference)])
            case "convert":
                source = self.model.tensors.type(self.model.operands(e.ref)[0]).sort
                if (source, op.type.sort) != ("Int", "Bool"):
                    return parts[0]
                return self._application(e, "nonzero", tuple(parts))
            case "compare":
                return self._application(e, "cmp " + op.text("direction"), tuple(parts))
            case "maximum" | "minimum":
                return self._application(e, op.name[:3] + "2", frozenset(parts))
            case name:
                return self._application(e, name, tuple(parts))

    def _inverse(self, p: Polynomial, e: Elem) -> Polynomial:
        """``recip`` of an element; of a non-zero number it is a number."""
        value = next(iter(p))[1] if len(p) == 1 and next(iter(p))[0] == () else None
        if value is None:
            return self._application(None, "recip", (p,), ("recip", e))
        self.laws.append(Law("recip", ("recip", value), 1 / value))
        return self.scaled(1 / value, ONE)

    def _reduction(self, e: Elem, kind: str, terms: list[tuple[Fraction, Elem]]) -> Polynomial:
        if kind == "add":
            return self.sum([self.scaled(w, self.of(x)) for w, x in terms])
        function = "max2" if kind in ("max", "or") else "min2"
        parts = [self.of(x) for _, x in terms]
        leaves = set().union(*(self._leaves(function, p) for p in parts))
        if len(leaves) == 1:
            return next(iter(leaves))
        flat = self._fold(function, [self.term(p) for p in sorted(leaves, key=self._rank)])
        written = self._fold(function, [self.term(p) for p in parts])
        if written != flat and (written, flat) not in self._seen:
            self._seen.add((written, flat))
            self.laws.append(Law("lattice", written, flat))
        return self._application(None, function, frozenset(leaves), flat)

    def _rank(self, p: Polynomial) -> list[list[int]]:
        return sorted([self._order[a] for a in m] for m, _ in p)

    @staticmethod
    def _fold(function: str, terms: list[Term]) -> Term:
        body = terms[-1]
        for t in reversed(terms[:-1]):
            body = (function, t, body)
        return body

    def _leaves(self, function: str, p: Polynomial) -> set[Polynomial]:
        """Arguments of a nested maximum or minimum; the polynomial itself if it is none."""
        for key, atom in self._applications.items():
            if isinstance(key, tuple) and key[0] == function and p == frozenset({((atom,), Fraction(1))}):
                return set(key[1])
        return {p}

    def _application(
        self, e: Elem | None, function: str, arguments: object, term: Term | None = None
    ) -> Polynomial:
        key = (function, arguments)
        if key not in self._applications:
            self._applications[key] = e if e is not None else (term or ())
        atom = self._applications[key]
        return self._atom(atom)

    def _mul(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Product, with the law instance that a solver needs to see it."""
        total: dict[Monomial, Fraction] = {}
        for m, c in p:
            for n, d in q:
                key = tuple(sorted((*m, *n), key=lambda a: self._order[a]))
                total[key] = total.get(key, Fraction(0)) + c * d
        result = frozenset((m, c) for m, c in total.items() if c)
        left = ("mul", self.term(p), self.term(q))
        right = self.term(result)
        if left != right and (left, right) not in self._seen:
            self._seen.add((left, right))
            self.laws.append(Law("ring", left, right))
        return result

    def term(self, p: Polynomial) -> Term:
        """A term with this normal form: a sum of right-nested products of atoms."""
        parts: list[Term] = []
        for m, c in sorted(p, key=lambda mc: [self._order[a] for a in mc[0]]):
            if not m:
                parts.append(c)
                continue
            body: Term = m[-1] if not isinstance(m[-1], str) else (m[-1],)
            for atom in reversed(m[:-1]):
                body = ("mul", atom if not isinstance(atom, str) else (atom,), body)
            parts.append(body if c == 1 else ("*", c, body))
        if not parts:
            return Fraction(0)
        return parts[0] if len(parts) == 1 else ("+", *parts)
