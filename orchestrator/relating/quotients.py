"""Quotients of exponential polynomials: what the law ``field`` says is equal.

A number is a quotient of two polynomials over letters and exponentials. ``exp`` of a sum is a product of
powers, ``log`` of a product of positive numbers a sum; only what is evidently positive is cancelled or has a
logarithm. What fits nowhere is a letter of its own, named by its normal form. A truth value is 0 or 1, and
``exp`` is taken case by case; of ``-inf`` and a number it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ..cells import Unfollowable

#: Powers of atoms, and coefficients of such products.
Powers = frozenset[tuple[Hashable, Fraction]]
Polynomial = Mapping[Powers, Fraction]
NOTHING: Powers = frozenset()
#: Products of two monomials that one comparison may take.
MAX_PRODUCTS = 4000
#: ``exp(n log p)`` is multiplied out up to this power.
MAX_POWER = 8


@dataclass(frozen=True)
class Exponential:
    """``exp`` of a product of powers; it is positive."""

    of: Powers


@dataclass(frozen=True)
class Logarithm:
    """``log`` of a positive polynomial."""

    of: frozenset[tuple[Powers, Fraction]]


@dataclass(frozen=True)
class Applied:
    """Any other function, of normal forms."""

    function: str
    of: tuple[object, ...]


@dataclass(frozen=True)
class Quotient:
    """``above / below``; ``below`` is evidently positive."""

    above: Polynomial
    below: Polynomial

    @cached_property
    def key(self) -> tuple[object, object]:
        return frozenset(self.above.items()), frozenset(self.below.items())


#: The infinite literal that masks have: it is seen in exponentials only.
OMEGA = "-inf"


class Quotients:
    """Arithmetic of quotients; ``positive``, ``nonnegative`` and ``truth`` say which letters are so."""

    def __init__(
        self,
        positive: Callable[[Hashable], bool],
        nonnegative: Callable[[Hashable], bool],
        truth: Callable[[Hashable], bool] = lambda _: False,
    ) -> None:
        self.positive, self.nonnegative, self.truth = positive, nonnegative, truth
        self._work = 0

    # --- atoms ---------------------------------------------------------------------------------------------

    def number(self, value: Fraction) -> Quotient:
        return Quotient({NOTHING: value} if value else {}, {NOTHING: Fraction(1)})

    def letter(self, name: Hashable) -> Quotient:
        return Quotient({_power(name, Fraction(1)): Fraction(1)}, {NOTHING: Fraction(1)})

    def apply(self, function: str, *arguments: Quotient) -> Quotient:
        """A function by its name in the plan format."""
        if function != "exponential" and any(self.infinite(a) for a in arguments):
            raise Unfollowable(f"{function} of an infinite number")
        match function:
            case "recip":
                return self._inverse(arguments[0])
            case "exponential":
                return self._exponential(arguments[0])
            case "log":
                return self._logarithm(arguments[0])
            case "logistic":
                opposite = self._exponential(self.scaled(arguments[0], Fraction(-1)))
                return self._inverse(self.plus(self.number(Fraction(1)), opposite))
        return self.letter(Applied(function, tuple(a.key for a in arguments)))

    def infinite(self, x: Quotient) -> bool:
        """Whether what is left of a sum is infinite, in some case."""
        return any(atom == OMEGA for p in (x.above, x.below) for m in p for atom, _ in m)

    # --- arithmetic ----------------------------------------------------------------------------------------

    def scaled(self, x: Quotient, factor: Fraction) -> Quotient:
        return Quotient({m: c * factor for m, c in x.above.items()} if factor else {}, x.below)

    def plus(self, x: Quotient, y: Quotient) -> Quotient:
        if x.below == y.below:
            return Quotient(_sum(x.above, y.above), x.below)
        above = _sum(self._times(x.above, y.below), self._times(y.above, x.below))
        return Quotient(above, self._times(x.below, y.below))

    def times(self, x: Quotient, y: Quotient) -> Quotient:
        return Quotient(self._times(x.above, y.above), self._times(x.below, y.below))

    def ratio(self, x: Quotient, y: Quotient) -> Fraction | None:
        """The number by which one quotient is a multiple of another that is not zero."""
        left, right = self._times(x.above, y.below), self._times(y.above, x.below)
        if not left or left.keys() != right.keys():
            return None
        found = {left[m] / right[m] for m in left}
        return found.pop() if len(found) == 1 else None

    def _times(self, p: Polynomial, q: Polynomial) -> Polynomial:
        self._work += len(p) * len(q)
        if self._work > MAX_PRODUCTS:
            raise Unfollowable(f"more than {MAX_PRODUCTS} products of quotients")
        out: dict[Powers, Fraction] = {}
        for m, c in p.items():
            for n, d in q.items():
                key = frozenset((a, Fraction(1) if k > 1 and self.truth(a) else k) for a, k in _joined(m, n))
                out[key] = out.get(key, Fraction(0)) + c * d
        return {m: c for m, c in out.items() if c}

    # --- functions with laws -------------------------------------------------------------------------------

    def _inverse(self, x: Quotient) -> Quotient:
        if self._is_positive(x.above):
            return Quotient(x.below, x.above)
        opposite = self.scaled(x, Fraction(-1)).above
        if self._is_positive(opposite):
            return Quotient({m: -c for m, c in x.below.items()}, opposite)
        least = _least(x.above)
        away: Powers = frozenset((a, -k) for a, k in least.items() if k)
        rest = {_joined(m, away): c for m, c in x.above.items()}
        below: Polynomial = {NOTHING: Fraction(1)}
        over = NOTHING if rest == below else _power(_recip(rest), Fraction(1))
        for atom, k in least.items():
            if isinstance(atom, Exponential):
                over = _joined(over, _power(atom, -k))
            elif k and _sign(atom, self.positive):
                below = self._times(below, {_power(atom, k): Fraction(1)})
            elif k:
                over = _joined(over, _power(_recip({_power(atom, Fraction(1)): Fraction(1)}), k))
        return Quotient(self._times(x.below, {over: Fraction(1)}), below)

    def _exponential(self, x: Quotient) -> Quotient:
        exponent = x.above
        if dict(x.below) != {NOTHING: Fraction(1)}:
            if self.infinite(x):
                raise Unfollowable("an exponential of an infinite quotient")
            exponent = self.letter(Applied("divided", x.key)).above
        here = {a for m in exponent for a, _ in m}
        for p in filter(self.truth, here):
            chosen, other = (
                self.letter(p),
                self.plus(self.number(Fraction(1)), self.scaled(self.letter(p), Fraction(-1))),
            )
            on: Polynomial = {}
            for m, c in exponent.items():
                on = _sum(on, {frozenset(f for f in m if f[0] != p): c})
            off = {m: c for m, c in exponent.items() if all(a != p for a, _ in m)}
            cases = [self._exponential(Quotient(q, {NOTHING: Fraction(1)})) for q in (on, off)]
            return self.plus(self.times(chosen, cases[0]), self.times(other, cases[1]))
        if OMEGA in here:
            found = [(m, c) for m, c in exponent.items() if OMEGA in dict(m)]
            if len(found) > 1 or found[0][0] != _power(OMEGA, Fraction(1)) or found[0][1] < 0:
                raise Unfollowable("an exponential of infinities that do not cancel")
            return self.number(Fraction(0))
        out = self.number(Fraction(1))
        for powers, factor in exponent.items():
            whole = factor.denominator == 1 and abs(factor) <= MAX_POWER
            atom, power = next(iter(powers)) if len(powers) == 1 else (None, Fraction(0))
            if isinstance(atom, Logarithm) and power == 1 and whole:
                base = Quotient(dict(atom.of), {NOTHING: Fraction(1)})
                base = base if factor > 0 else Quotient(base.below, base.above)
                for _ in range(abs(int(factor))):
                    out = self.times(out, base)
            else:
                one: Polynomial = {_power(Exponential(powers), factor): Fraction(1)}
                out = self.times(out, Quotient(one, {NOTHING: Fraction(1)}))
        return out

    def _logarithm(self, x: Quotient) -> Quotient:
        if not self._is_positive(x.above):
            return self.letter(Applied("log", x.key))
        difference = _sum(self._parts(x.above), {m: -c for m, c in self._parts(x.below).items()})
        return Quotient(difference, {NOTHING: Fraction(1)})

    def _parts(self, p: Polynomial) -> Polynomial:
        """The logarithm of a positive polynomial: of its content, of common powers, and of what is left."""
        total = sum(p.values(), Fraction(0))
        least = _least(p)
        away: Powers = frozenset((a, -k) for a, k in least.items() if k)
        rest = {_joined(m, away): c / total for m, c in p.items()}
        out: Polynomial = {}
        for atom, power in least.items():
            if isinstance(atom, Exponential):
                out = _sum(out, {atom.of: power} if power else {})
            elif power:
                single = Logarithm(frozenset({(_power(atom, Fraction(1)), Fraction(1))}))
                out = _sum(out, {_power(single, Fraction(1)): power})
        for part in ({NOTHING: total}, rest):
            if part != {NOTHING: Fraction(1)}:
                logarithm = Logarithm(frozenset(part.items()))
                out = _sum(out, {_power(logarithm, Fraction(1)): Fraction(1)})
        return out

    def _is_positive(self, p: Polynomial) -> bool:
        """Positive multiples of products that are not negative, one of which is positive."""
        if any(c <= 0 for c in p.values()):
            return False
        if not any(all(_sign(a, self.positive) for a, _ in m) for m in p):
            return False
        return all(_sign(a, self.nonnegative) for m in p for a, _ in m)


def _recip(p: Polynomial) -> Applied:
    return Applied("recip", (frozenset(p.items()),))


def _sign(atom: Hashable, holds: Callable[[Hashable], bool]) -> bool:
    if isinstance(atom, Applied | Logarithm):
        return False
    return isinstance(atom, Exponential) or holds(atom)


def _least(p: Polynomial) -> dict[Hashable, Fraction]:
    """The least power of each atom."""
    return {a: min(dict(m).get(a, Fraction(0)) for m in p) for a in {a for m in p for a, _ in m}}


def _power(atom: Hashable, power: Fraction) -> Powers:
    return frozenset({(atom, power)})


def _sum(p: Polynomial, q: Polynomial) -> Polynomial:
    out = dict(p)
    for m, c in q.items():
        out[m] = out.get(m, Fraction(0)) + c
    return {m: c for m, c in out.items() if c}


def _joined(m: Powers, n: Powers) -> Powers:
    out = dict(m)
    for atom, power in n:
        out[atom] = out.get(atom, Fraction(0)) + power
    return frozenset((a, k) for a, k in out.items() if k)
