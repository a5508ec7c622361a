"""Ring normal forms of stage elements, and the ring-law instances that lead there.

A polynomial maps monomials (sorted tuples of atoms) to rationals; an atom is an element that the stage leaves
free, or the first element seen of equal function applications.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction

from certificates.proof.facts import Reduced
from certificates.proof.stages import Elem, Law, Term
from smtlib_emit.algebra import AlgebraText
from smtlib_emit.errors import NoDefinition

from ..relating.polynomials import combined

Atom = Elem | Fraction | tuple[object, ...] | str
Monomial = tuple[Atom, ...]
Polynomial = frozenset[tuple[Monomial, Fraction]]
#: Products of summands of two factors: squares of sums over a hundred elements, and no powers of those.
MAX_PRODUCTS = 10_000
ONE: Polynomial = frozenset({((), Fraction(1))})
ZERO: Polynomial = frozenset()


class Polynomials:
    """Normal forms of elements under the definitions and substitutions of one stage case."""

    def __init__(
        self,
        text: AlgebraText,
        defined: Callable[[Elem], bool],
        replaced: Mapping[Elem, tuple[Fraction, Elem]],
        *,
        roots: bool = False,
    ) -> None:
        self.text, self.model = text, text.model
        self.defined, self.replaced = defined, replaced
        self.laws: list[Law] = []
        self.roots = roots
        self._radicands: dict[Atom, Elem] = {}
        self._memo: dict[Elem, Polynomial] = {}
        self._applications: dict[object, Atom] = {}
        self._order: dict[object, int] = {}
        self._seen: set[tuple[Term, Term]] = set()
        #: How a maximum or minimum of two elements is defined, where nothing else of it was written.
        self._written: dict[object, Term] = {}

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
        return frozenset(combined(term for p in parts for term in p).items())

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
                return self._extremum(e, op.name[:3] + "2", elements, parts)
            case name:
                result = self._application(e, name, tuple(parts))
                if name == "sqrt":
                    ((((atom,), _),)) = result
                    self._radicands.setdefault(atom, elements[0])
                return result

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
            only = next(iter(leaves))
            if len(parts) > 1:
                self.laws.append(
                    Law("lattice", self._fold(function, [self.term(only)] * len(parts)), self.term(only))
                )
            return only
        flat = self._fold(function, [self.term(p) for p in sorted(leaves, key=self._rank)])
        written = [self._fold(function, [self.term(p) for p in parts])]
        other = self._written.get((function, frozenset(leaves)))
        for way in written if other is None else [*written, other]:
            if way != flat and (way, flat) not in self._seen:
                self._seen.add((way, flat))
                self.laws.append(Law("lattice", way, flat))
        return self._application(None, function, frozenset(leaves), flat)

    def _extremum(self, e: Elem, function: str, elements: list[Elem], parts: list[Polynomial]) -> Polynomial:
        """A maximum of two elements: its own atom, unless it is written in another way elsewhere."""
        leaves = set().union(*(self._leaves(function, p) for p in parts))
        key = (function, frozenset(leaves))
        if key not in self._applications and leaves == set(parts) and len(leaves) == 2:
            self._written[key] = (function, *(self.term(p) for p in parts))
            return self._application(e, function, frozenset(leaves))
        return self._reduction(e, function[:3], [(Fraction(1), x) for x in elements])

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

        def product(m: Monomial, n: Monomial) -> Monomial:
            return tuple(sorted((*m, *n), key=lambda a: self._order[a]))

        if len(p) * len(q) > MAX_PRODUCTS:
            raise NoDefinition(f"a product of sums has more than {MAX_PRODUCTS} products of their summands")
        result = frozenset(combined((product(m, n), c * d) for m, c in p for n, d in q).items())
        left = ("mul", self.term(p), self.term(q))
        right = self.term(result)
        if left != right and (left, right) not in self._seen:
            self._seen.add((left, right))
            self.laws.append(Law("ring", left, right))
        return self._rooted(result) if self.roots else result

    def _rooted(self, p: Polynomial) -> Polynomial:
        """A square of a root, or of a root divided by a literal's root, as its radicand."""
        if len(p) != 1:
            return p
        ((monomial, coef),) = p
        square = Counter(monomial)
        over = [a for a in square if a in self._radicands and self._number(a) is None]
        under = [a for a in square if a not in self._radicands]
        if len(over) != 1 or len(under) > 1 or set(square.values()) != {2}:
            return p
        root, radicand = over[0], self._radicands[over[0]]
        whole = self.of(radicand)
        self.laws.append(Law("root", ("mul", ("fsqrt", radicand), ("fsqrt", radicand)), radicand))
        if not under:
            return self.scaled(coef, whole)
        key = next(k for k, a in self._applications.items() if a == under[0])
        number = self._number_under(key)
        if number is None:
            return p
        f: Term = ("fsqrt", number)
        r: Term = ("recip", f)
        one = Fraction(1)
        squares: Term = ("mul", ("mul", root, root), ("mul", under[0], under[0]))
        body = self.term(frozenset({(monomial, Fraction(1))}))
        self.laws += [
            Law("ring", body, squares),
            Law("root", ("mul", f, f), number),
            Law("root", ("mul", f, r), one),
            Law("ring", ("mul", ("mul", r, r), ("mul", f, f)), ("mul", ("mul", f, r), ("mul", f, r))),
            Law("ring", ("mul", ("mul", r, r), number), ("*", number, ("mul", r, r))),
            Law("ring", ("mul", one, one), one),
            Law("ring", ("mul", radicand, 1 / number), ("*", 1 / number, radicand)),
        ]
        return self.scaled(coef / number, whole)

    def _number(self, atom: Atom) -> Fraction | None:
        """The literal under a root."""
        value = self.model.literal(self._radicands[atom].ref)
        return value if isinstance(value, Fraction) else None

    def _number_under(self, key: object) -> Fraction | None:
        """The literal ``c`` of ``recip(sqrt(c))``."""
        if isinstance(key, tuple) and key[0] == "recip" and len(key[1][0]) == 1:
            ((monomial, coef),) = key[1][0]
            if coef == 1 and len(monomial) == 1 and monomial[0] in self._radicands:
                return self._number(monomial[0])
        return None

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
