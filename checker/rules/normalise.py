"""Ring-and-congruence normal forms: checks ring and lattice laws, and confirms algebra goals without a
solver.

A node is an `Element`, ("lit", q), ("*", q, node), ("+", node, …), ("-", node, node), ("neg", node) or
(function, node, …). Its normal form is a polynomial with rational coefficients over atoms: elements without a
definition, and functions of normal forms. `mul` multiplies, `max2` and `min2` are functions of the set of
their leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..errors import Undecided
from ..language.proof import Element

Node = Any
Monomial = tuple[int, ...]
Poly = dict[Monomial, Fraction]
MAX_MONOMIALS, MAX_BITS, MAX_DEGREE = 20_000, 1 << 14, 256


class Normaliser:
    """Normal forms after replacing every element that `defs` defines. With `opaque`, functions are compared
    as they are written: what is left is the theory of commutative rings alone."""

    def __init__(self, defs: Mapping[Element, Node], opaque: bool = False) -> None:
        self.defs, self.opaque = defs, opaque
        self.atoms: dict[Any, int] = {}
        self.known: dict[Node, Poly] = {}

    def equal(self, left: Node, right: Node) -> bool:
        return self.normal(left) == self.normal(right)

    def normal(self, node: Node) -> Poly:
        if node not in self.known:
            found = self.known[node] = self._normal(node)
            large = any(max(abs(c.numerator), c.denominator).bit_length() > MAX_BITS for c in found.values())
            if large or len(found) > MAX_MONOMIALS:
                raise Undecided("a normal form is too large")
        return self.known[node]

    def _normal(self, node: Node) -> Poly:
        if isinstance(node, Element):
            return self.normal(self.defs[node]) if node in self.defs else self._atom(node)
        match node:
            case ("lit", q):
                return _sum((q, {(): Fraction(1)}))
            case ("*", q, x):
                return _sum((q, self.normal(x)))
            case ("+", *xs):
                return _sum(*((Fraction(1), self.normal(x)) for x in xs))
            case ("-", x, y):
                return _sum((Fraction(1), self.normal(x)), (Fraction(-1), self.normal(y)))
            case ("neg", x):
                return _sum((Fraction(-1), self.normal(x)))
            case ("mul", x, y):
                return _product(self.normal(x), self.normal(y))
        if self.opaque:
            return self._atom(node)
        if node[0] == "recip" and list(inner := self.normal(node[1])) == [()]:
            return {(): 1 / inner[()]}
        if node[0] in ("max2", "min2"):
            leaves = {_freeze(self.normal(n)) for n in leaves_of(node[0], node)}
            return dict(leaves.pop()) if len(leaves) == 1 else self._atom((node[0], frozenset(leaves)))
        return self._atom((node[0], *(_freeze(self.normal(n)) for n in node[1:])))

    def _atom(self, key: Any) -> Poly:
        return {(self.atoms.setdefault(key, len(self.atoms)),): Fraction(1)}


def _freeze(poly: Poly) -> frozenset[tuple[Monomial, Fraction]]:
    return frozenset(poly.items())


def _sum(*parts: tuple[Fraction, Poly]) -> Poly:
    result: Poly = {}
    for factor, poly in parts:
        for monomial, c in poly.items():
            result[monomial] = result.get(monomial, Fraction(0)) + factor * c
    return {monomial: c for monomial, c in result.items() if c}


def _product(left: Poly, right: Poly) -> Poly:
    degree = max(map(len, left), default=0) + max(map(len, right), default=0)
    if len(left) * len(right) > 4 * MAX_MONOMIALS or degree > MAX_DEGREE:
        raise Undecided("a product is too large")
    return _sum(*((c, {tuple(sorted(a + b)): d for b, d in right.items()}) for a, c in left.items()))


def leaves_of(function: str, node: Node) -> list[Node]:
    """The leaves of nested applications of `max2` or `min2`."""
    if isinstance(node, tuple) and node[0] == function:
        return [leaf for n in node[1:] for leaf in leaves_of(function, n)]
    return [node]
