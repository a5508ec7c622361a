"""The law `field`: equal quotients of exponential polynomials (obligation 7), in cases without sums.

A term is a quotient of two polynomials whose monomials are products of powers of atoms. `exp` of a sum is the
product of the exponentials of its monomials, `log` of a product of positive numbers the sum of their
logarithms, `flogistic(x)` is `recip(1 + exp(-x))`. Only what is evidently positive is cancelled or has a
logarithm: a sum, with positive coefficients, of products of exponentials and of elements of tensors that are
not negative by the way they are computed, in one of the products positive. Everything else is an atom, known
by its normal form; `recip(0) = 0`, so `recip` of a product is that of its factors. A truth value `p` is 0 or
1: `p p = p`, and `exp` is taken case by case. In a case, `exp` of `-inf` plus a real number is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ..errors import Undecided
from ..language.proof import Element, Ref
from .model import Model
from .normalise import Node
from .positive import Signs

Atom = Any
"""An `Element`; ("exp", monomial), ("log", polynomial), or a function's name and its arguments' forms."""
Monomial = frozenset[tuple[Atom, Fraction]]
Poly = frozenset[tuple[Monomial, Fraction]]
Form = tuple[Poly, Poly]
"""Numerator and denominator; the denominator is evidently positive."""
UNIT: Monomial = frozenset()
ONE: Poly = frozenset({(UNIT, Fraction(1))})
ZERO: Poly = frozenset()
OMEGA: Atom = ("neg_inf",)
MAX_PRODUCTS, MAX_BITS, MAX_POWER = 10_000, 1 << 12, 8


def holds(model: Model, left: Node, right: Node) -> bool:
    """Is `left = right` an instance? No element of it may be infinite."""
    try:
        return Field(Signs(model)).equal(left, right)
    except Infinite:
        return False


class Infinite(Exception):
    """An element may be infinite: the law is one of real numbers."""


class Field:
    """Normal forms of the two sides of one instance."""

    def __init__(self, signs: Signs) -> None:
        self.signs, self.products = signs, 0

    def equal(self, left: Node, right: Node) -> bool:
        (a, b), (c, d) = self.real(left), self.real(right)
        return self.times(a, d) == self.times(c, b)

    def real(self, node: Node) -> Form:
        """The form of a term that is a real number, whatever truth values are."""
        found = self.form(node)
        if infinite(found):
            raise Infinite
        return found

    def form(self, node: Node) -> Form:
        if isinstance(node, Element):
            if not self.signs.finite(node.ref):
                raise Infinite
            return atom(node), ONE
        match node:
            case ("lit", q):
                return number(q), ONE
            case ("*", q, x):
                return self.product((number(q), ONE), self.form(x))
            case ("+", first, *rest):
                total = self.form(first)
                for x in rest:
                    total = self.sum(total, self.form(x), 1)
                return total
            case ("-", x, y):
                return self.sum(self.form(x), self.form(y), -1)
            case ("neg", x):
                return self.product((number(Fraction(-1)), ONE), self.form(x))
            case ("mul", x, y):
                return self.product(self.form(x), self.form(y))
            case ("flogistic", x):
                return self.form(("recip", ("+", ("lit", Fraction(1)), ("fexp", ("neg", x)))))
            case ("recip", x):
                return self.inverse(*self.real(x))
            case ("fexp", x):
                return self.exponential(self.form(x))
            case ("flog", x):
                top, bottom = self.real(x)
                if not self.positive(top):
                    return atom(("flog", (top, bottom))), ONE
                return added(self.logarithm(top), self.logarithm(bottom), -1), ONE
            case ("neg_inf",):
                return atom(OMEGA), ONE
            case ("pos_inf",):
                raise Infinite
        return atom((node[0], *map(self.real, node[1:]))), ONE

    def truth(self, a: Atom) -> bool:
        return isinstance(a, Element) and self.signs.truth(a.ref)

    def inverse(self, top: Poly, bottom: Poly) -> Form:
        opposite = self.times(top, number(Fraction(-1)))
        if self.positive(top):
            return bottom, top
        if self.positive(opposite):
            return self.times(bottom, number(Fraction(-1))), opposite
        _, common = shared(top)
        away: Monomial = frozenset((a, -k) for a, k in common.items())
        rest, below = collect([(joined(m, away), c) for m, c in top]), ONE
        over: Monomial = frozenset({(("recip", rest), Fraction(1))}) if rest != ONE else UNIT
        for a, k in common.items():
            one: Monomial = frozenset({(a, k)})
            if isinstance(a, tuple) and a[0] == "exp":
                over = joined(over, frozenset({(a, -k)}))
            elif self._atom(a, self.signs.positive):
                below = self.times(below, frozenset({(one, Fraction(1))}))
            else:
                over = joined(over, frozenset({(("recip", atom(a)), k)}))
        return self.times(bottom, frozenset({(over, Fraction(1))})), below

    def positive(self, p: Poly) -> bool:
        """Evidently so: positive multiples of products that are not negative, one of which is positive."""
        some = any(all(self._atom(a, self.signs.positive) for a, _ in m) for m, _ in p)
        return some and all(c > 0 and all(self._atom(a, self.signs.nonnegative) for a, _ in m) for m, c in p)

    @staticmethod
    def _atom(a: Atom, holds: Callable[[Ref], bool]) -> bool:
        return holds(a.ref) if isinstance(a, Element) else bool(a[0] == "exp")

    def sum(self, x: Form, y: Form, sign: int) -> Form:
        if x[1] == y[1]:
            return added(x[0], y[0], sign), x[1]
        return added(self.times(x[0], y[1]), self.times(y[0], x[1]), sign), self.times(x[1], y[1])

    def product(self, x: Form, y: Form) -> Form:
        return self.times(x[0], y[0]), self.times(x[1], y[1])

    def times(self, p: Poly, q: Poly) -> Poly:
        self.products += len(p) * len(q)
        if self.products > MAX_PRODUCTS:
            raise Undecided("a normal form of the field law is too large")
        return collect([(self._idempotent(joined(m, n)), c * d) for m, c in p for n, d in q])

    def _idempotent(self, m: Monomial) -> Monomial:
        return frozenset((a, Fraction(1) if k > 1 and self.truth(a) else k) for a, k in m)

    def exponential(self, x: Form) -> Form:
        """Powers of `exp` of monomials, multiplied; `exp` of a whole multiple of `log p` is a power of p."""
        if x[1] != ONE and infinite(x):
            raise Infinite
        top = x[0] if x[1] == ONE else atom(("quotient", *x))
        here = {a for m, _ in top for a, _ in m}
        for p in filter(self.truth, here):
            on = collect([(frozenset(f for f in m if f[0] != p), c) for m, c in top])
            off = frozenset((m, c) for m, c in top if all(a != p for a, _ in m))
            true, false = self.exponential((on, ONE)), self.exponential((off, ONE))
            chosen = self.product((atom(p), ONE), true)
            return self.sum(chosen, self.product((added(ONE, atom(p), -1), ONE), false), 1)
        if OMEGA in here:
            found = [(m, c) for m, c in top if OMEGA in dict(m)]
            if len(found) > 1 or found[0][0] != frozenset({(OMEGA, Fraction(1))}) or found[0][1] < 0:
                raise Infinite
            return ZERO, ONE
        above, below = ONE, ONE
        for m, c in top:
            [(a, power)] = m if len(m) == 1 else [(None, Fraction(0))]
            if isinstance(a, tuple) and a[0] == "log" and power == c.denominator == 1 and abs(c) <= MAX_POWER:
                for _ in range(abs(int(c))):
                    above, below = (
                        (self.times(above, a[1]), below) if c > 0 else (above, self.times(below, a[1]))
                    )
            else:
                above = self.times(above, frozenset({(frozenset({(("exp", m), c)}), Fraction(1))}))
        return above, below

    def logarithm(self, p: Poly) -> Poly:
        """Of a positive polynomial: of its content and its largest common monomial apart."""
        content, common = shared(p)
        inverse: Monomial = frozenset((a, -k) for a, k in common.items() if k)
        rest = collect([(joined(m, inverse), c / content) for m, c in p])
        total = ZERO if content == 1 else atom(("log", number(content)))
        for a, k in common.items():
            one = ("log", atom(a)) if isinstance(a, Element) else None  # else `exp` of a monomial
            total = added(total, frozenset({(frozenset({(one, Fraction(1))}) if one else a[1], k)}), 1)
        return total if rest == ONE else added(total, atom(("log", rest)), 1)


def infinite(x: Form) -> bool:
    """Has a form the infinite literal, outside of a case that it goes away in?"""
    return any(a == OMEGA for p in x for m, _ in p for a, _ in m)


def shared(p: Poly) -> tuple[Fraction, dict[Atom, Fraction]]:
    """The sum of the coefficients, and the least power of each atom."""
    atoms = {a for m, _ in p for a, _ in m}
    least = {a: min(dict(m).get(a, Fraction(0)) for m, _ in p) for a in atoms}
    return sum((c for _, c in p), Fraction(0)), least


def number(q: Fraction) -> Poly:
    return frozenset({(UNIT, q)}) if q else ZERO


def atom(a: Atom) -> Poly:
    return frozenset({(frozenset({(a, Fraction(1))}), Fraction(1))})


def added(p: Poly, q: Poly, sign: int) -> Poly:
    return collect([*p, *((m, sign * c) for m, c in q)])


def collect(terms: list[tuple[Monomial, Fraction]]) -> Poly:
    found: dict[Monomial, Fraction] = {}
    for m, c in terms:
        found[m] = found.get(m, Fraction(0)) + c
    if any(max(abs(c.numerator), c.denominator).bit_length() > MAX_BITS for c in found.values()):
        raise Undecided("a coefficient of the field law is too large")
    return frozenset((m, c) for m, c in found.items() if c)


def joined(m: Monomial, n: Monomial) -> Monomial:
    powers = dict(m)
    for a, k in n:
        powers[a] = powers.get(a, Fraction(0)) + k
    return frozenset((a, k) for a, k in powers.items() if k)
