"""Numbers as quotients of exponential polynomials in lowest terms, over letters that lie along dimensions.

A polynomial has letters, exponentials and logarithms as its variables. A denominator is a product of
evidently positive polynomials, kept apart, so that one that divides the numerator goes away: blocks of an
attention that are merged by the logarithms of their sums come out as the quotient of two sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..cells import Unfollowable

#: Products of two monomials that one value may take, and terms that it may have.
MAX_PRODUCTS, MAX_TERMS = 20_000, 400
#: ``exp(n log p)`` is multiplied out up to this power.
MAX_POWER = 8
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Letter:
    """A tensor of the program, none of whose dimensions is 1, and the dimension that each of its own lies
    along; a ``truth`` is 0 or 1."""

    name: str
    at: tuple[int, ...]
    truth: bool = False


@dataclass(frozen=True)
class Exponential:
    """``exp`` of a product of powers."""

    of: Powers


@dataclass(frozen=True)
class Logarithm:
    """``log`` of a positive polynomial."""

    of: Factor


@dataclass(frozen=True)
class Inverse:
    """One divided by a positive polynomial, as a factor of what is summed; a :class:`Value` has it below."""

    of: Factor


#: The infinite literal that masks have: it is seen in exponentials only.
OMEGA = Letter("-inf", ())
Atom = Letter | Exponential | Logarithm | Inverse
Powers = frozenset[tuple[Atom, Fraction]]
Polynomial = Mapping[Powers, Fraction]
Factor = frozenset[tuple[Powers, Fraction]]
UNIT: Powers = frozenset()


@dataclass(frozen=True)
class Value:
    """``above`` divided by the product of the factors ``below``, to their powers."""

    above: Polynomial
    below: Mapping[Factor, int]

    def atoms(self) -> Iterator[Atom]:
        """All atoms, those inside of others after them."""
        for p in (self.above, *map(dict, self.below)):
            yield from inside(p)

    def letters(self) -> frozenset[Letter]:
        return frozenset(a for a in self.atoms() if isinstance(a, Letter))

    def is_polynomial(self) -> bool:
        return not self.below

    def renamed(self, places: Callable[[Letter], Letter]) -> Value:
        """With other letters in place of the letters, asked for in order: that may write ghosts."""
        others = {x: places(x) for x in sorted(self.letters(), key=told)}.__getitem__
        return Value(
            _renamed(self.above, others),
            {_factor(_renamed(dict(f), others)): k for f, k in self.below.items()},
        )


def told(atom: Atom, numbers: Callable[[int], int] = int) -> str:
    """An atom as a text, the same in every run; with other numbers for its dimensions."""
    if isinstance(atom, Letter):
        return f"{atom.name}{[numbers(p) for p in atom.at]}"
    if isinstance(atom, Exponential):
        return f"exp({told_powers(atom.of, numbers)})"
    terms = sorted(f"{c} {told_powers(m, numbers)}" for m, c in atom.of)
    return f"{type(atom).__name__}({' + '.join(terms)})"


def told_powers(m: Powers, numbers: Callable[[int], int] = int) -> str:
    """A product as a text."""
    return " ".join(sorted(f"{told(a, numbers)}^{k}" for a, k in m))


def inside(p: Polynomial) -> Iterator[Atom]:
    """The atoms of a polynomial, those inside of others after them."""
    for m in p:
        for atom, _ in m:
            yield atom
            if isinstance(atom, Exponential):
                yield from inside({atom.of: ONE})
            elif not isinstance(atom, Letter):
                yield from inside(dict(atom.of))


def number(q: Fraction) -> Value:
    return Value({UNIT: q} if q else {}, {})


def letter(name: str, at: tuple[int, ...]) -> Value:
    return Value({_power(Letter(name, at)): ONE}, {})


class Values:
    """Arithmetic of values; ``positive`` and ``nonnegative`` say which letters are so."""

    def __init__(self, positive: Callable[[str], bool], nonnegative: Callable[[str], bool]) -> None:
        self.positive, self._nonnegative = positive, nonnegative
        self._work = 0

    def begin(self) -> None:
        """The next value may take as many steps as this one."""
        self._work = 0

    # --- arithmetic ----------------------------------------------------------------------------------------

    def scaled(self, x: Value, q: Fraction) -> Value:
        return Value({m: c * q for m, c in x.above.items()}, x.below) if q else number(q)

    def plus(self, x: Value, y: Value) -> Value:
        below = {f: max(x.below.get(f, 0), y.below.get(f, 0)) for f in (*x.below, *y.below)}
        above: Polynomial = {}
        for v in (x, y):
            part = v.above
            for f, k in below.items():
                for _ in range(k - v.below.get(f, 0)):
                    part = self._times(part, dict(f))
            above = _sum(above, part)
        return self._lowest(above, below)

    def times(self, x: Value, y: Value) -> Value:
        below = dict(x.below)
        for f, k in y.below.items():
            below[f] = below.get(f, 0) + k
        return self._lowest(self._times(x.above, y.above), below)

    def inverse(self, x: Value) -> Value:
        """``1 / x``. What is not evidently positive cancels against nothing."""
        if not x.above or OMEGA in inside(x.above):
            raise Unfollowable("a division by zero or by what is infinite")
        if max(x.above.values()) < 0:
            return self.scaled(self.inverse(self.scaled(x, -ONE)), -ONE)
        content, powers = shared(x.above)
        powers = {a: k for a, k in powers.items() if self.atom_positive(a)}
        away: Powers = frozenset((a, -k) for a, k in powers.items())
        rest = {joined(m, away): c / content for m, c in x.above.items()}
        above: Polynomial = {UNIT: 1 / content}
        below: dict[Factor, int] = {}
        for atom, k in powers.items():
            if isinstance(atom, Exponential):
                above = self._times(above, {_power(atom, -k): ONE})
            elif k.denominator == 1:
                below[_factor({_power(atom): ONE})] = int(k)
            else:
                raise Unfollowable("a root under a division")
        if rest != {UNIT: ONE} and self.is_positive(rest):
            below[_factor(rest)] = 1
        elif rest != {UNIT: ONE}:
            above = self._times(above, {_power(Inverse(_factor(rest))): ONE})
        for f, count in x.below.items():
            for _ in range(count):
                above = self._times(above, dict(f))
        return self._lowest(above, below)

    # --- functions with laws -------------------------------------------------------------------------------

    def exponential(self, x: Value) -> Value:
        if x.below:
            raise Unfollowable("an exponential of a quotient")
        here = {a for m in x.above for a, _ in m}
        for p in sorted((a for a in here if isinstance(a, Letter) and a.truth), key=told):
            on: Polynomial = {}
            for m, c in x.above.items():
                on = _sum(on, {frozenset(f for f in m if f[0] != p): c})
            off = {m: c for m, c in x.above.items() if all(a != p for a, _ in m)}
            chosen = Value({_power(p): ONE}, {})
            true, false = (self.exponential(Value(q, {})) for q in (on, off))
            other = self.plus(number(ONE), self.scaled(chosen, -ONE))
            return self.plus(self.times(chosen, true), self.times(other, false))
        if OMEGA in here:
            found = [(m, c) for m, c in x.above.items() if any(a == OMEGA for a, _ in m)]
            if len(found) > 1 or found[0][0] != _power(OMEGA) or found[0][1] < 0:
                raise Unfollowable("an exponential of infinities that do not cancel")
            return number(Fraction(0))
        out = number(ONE)
        for m, c in x.above.items():
            atom, power = next(iter(m)) if len(m) == 1 else (None, ONE)
            if isinstance(atom, Logarithm) and power == 1 and c.denominator == 1 and abs(c) <= MAX_POWER:
                base = Value(dict(atom.of), {})
                base = base if c > 0 else self.inverse(base)
                for _ in range(abs(int(c))):
                    out = self.times(out, base)
            else:
                out = self.times(out, Value({_power(Exponential(m), c): ONE}, {}))
        return out

    def logarithm(self, x: Value) -> Value:
        """Of a positive number."""
        out = self._logarithm(x.above)
        for f, k in x.below.items():
            out = _sum(out, {m: -k * c for m, c in self._logarithm(dict(f)).items()})
        return Value(out, {})

    def logistic(self, x: Value) -> Value:
        return self.inverse(self.plus(number(ONE), self.exponential(self.scaled(x, -ONE))))

    def _logarithm(self, p: Polynomial) -> Polynomial:
        content, powers, rest = self._parts(p)
        out: Polynomial = {}
        for atom, k in powers.items():
            one = (
                atom.of if isinstance(atom, Exponential) else _power(Logarithm(_factor({_power(atom): ONE})))
            )
            out = _sum(out, {one: k})
        for part in ({UNIT: content}, rest):
            if part != {UNIT: ONE}:
                out = _sum(out, {_power(Logarithm(_factor(part))): ONE})
        return out

    def _parts(self, p: Polynomial) -> tuple[Fraction, Mapping[Atom, Fraction], Polynomial]:
        """A positive polynomial as a number, powers that all of its terms share, and what is left."""
        if not self.is_positive(p):
            raise Unfollowable("a division by what is not evidently positive, or its logarithm")
        content, powers = shared(p)
        away: Powers = frozenset((a, -k) for a, k in powers.items())
        return content, powers, {joined(m, away): c / content for m, c in p.items()}

    def is_positive(self, p: Polynomial) -> bool:
        """Positive multiples of products that are not negative, one of which is positive."""
        some = any(all(self.atom_positive(a) for a, _ in m) for m in p)
        return some and all(c > 0 and all(self._atom_kept(a) for a, _ in m) for m, c in p.items())

    def atom_positive(self, a: Atom) -> bool:
        if isinstance(a, Inverse):
            return self.is_positive(dict(a.of))
        return isinstance(a, Exponential) or (isinstance(a, Letter) and self.positive(a.name))

    def _atom_kept(self, a: Atom) -> bool:
        return self.atom_positive(a) or (isinstance(a, Letter) and (a.truth or self._nonnegative(a.name)))

    # --- lowest terms --------------------------------------------------------------------------------------

    def _lowest(self, above: Polynomial, below: Mapping[Factor, int]) -> Value:
        if len(above) > MAX_TERMS:
            raise Unfollowable(f"more than {MAX_TERMS} terms")
        left: dict[Factor, int] = {}
        for f, k in below.items():
            while k and above:
                found = exactly(above, dict(f))
                if found is None:
                    break
                above, k = found, k - 1
            if k and above:
                left[f] = k
        return Value(above, left)

    def _times(self, p: Polynomial, q: Polynomial) -> Polynomial:
        self._work += len(p) * len(q)
        if self._work > MAX_PRODUCTS:
            raise Unfollowable(f"more than {MAX_PRODUCTS} products of quotients")
        return multiplied(p, q)


def multiplied(p: Polynomial, q: Polynomial) -> Polynomial:
    out: dict[Powers, Fraction] = {}
    for m, c in p.items():
        for n, d in q.items():
            key = joined(m, n)
            out[key] = out.get(key, Fraction(0)) + c * d
    return {m: c for m, c in out.items() if c}


def exactly(p: Polynomial, f: Polynomial) -> Polynomial | None:
    """``p / f`` if that is a polynomial."""
    found, rest = divided(p, f, exactly=True)
    return None if rest else found


def divided(p: Polynomial, f: Polynomial, *, exactly: bool = False) -> tuple[Polynomial, Polynomial]:
    """``p = found * f + rest``, where the leading term of ``f`` divides none of the rest's, as far as it was
    followed: with ``exactly``, until there is a rest. Exponentials have powers of any sign."""
    atoms = sorted({a for q in (p, f) for m in q for a, _ in m}, key=told)
    known: dict[Powers, tuple[Fraction, ...]] = {}

    def order(m: Powers) -> tuple[Fraction, ...]:
        if m not in known:
            powers = dict(m)
            known[m] = tuple(powers.get(a, ZERO) for a in atoms)
        return known[m]

    lead = max(f, key=order)
    away: Powers = frozenset((a, -k) for a, k in lead)
    left, found, rest = dict(p), dict[Powers, Fraction](), dict[Powers, Fraction]()
    for _ in range(4 * len(p) + 8):
        if not left:
            break
        top = max(left, key=order)
        m = joined(top, away)
        if any(k < 0 and not isinstance(a, Exponential) for a, k in m):
            rest[top] = left.pop(top)
            if exactly:
                break
            continue
        c = left[top] / f[lead]
        found[m] = found.get(m, Fraction(0)) + c
        left = dict(_sum(left, {n: -v for n, v in multiplied({m: c}, f).items()}))
    return found, _sum(rest, left)


def shared(p: Polynomial) -> tuple[Fraction, Mapping[Atom, Fraction]]:
    """The number, and the powers, that all terms of a polynomial share."""
    content = Fraction(
        math.gcd(*(c.numerator for c in p.values())), math.lcm(*(c.denominator for c in p.values()))
    )
    least = {a: min(dict(m).get(a, Fraction(0)) for m in p) for a in {a for m in p for a, _ in m}}
    return content, {a: k for a, k in least.items() if k}


def joined(m: Powers, n: Powers) -> Powers:
    """The product of two monomials."""
    out = dict(m)
    for atom, power in n:
        out[atom] = out.get(atom, Fraction(0)) + power
        if isinstance(atom, Letter) and atom.truth:
            out[atom] = min(out[atom], ONE)
    return frozenset((a, k) for a, k in out.items() if k)


def _power(atom: Atom, power: Fraction = ONE) -> Powers:
    return frozenset({(atom, power)})


def _factor(p: Polynomial) -> Factor:
    return frozenset(p.items())


def _sum(p: Polynomial, q: Polynomial) -> Polynomial:
    out = dict(p)
    for m, c in q.items():
        out[m] = out.get(m, Fraction(0)) + c
    return {m: c for m, c in out.items() if c}


def _renamed(p: Polynomial, places: Callable[[Letter], Letter]) -> Polynomial:
    out: Polynomial = {}
    for m, c in p.items():
        product = UNIT
        for atom, k in m:
            product = joined(product, _power(_moved(atom, places), k))
        out = _sum(out, {product: c})
    return out


def _moved(atom: Atom, places: Callable[[Letter], Letter]) -> Atom:
    if isinstance(atom, Letter):
        return places(atom)
    if isinstance(atom, Exponential):
        (moved,) = _renamed({atom.of: ONE}, places)
        return Exponential(moved)
    return type(atom)(_factor(_renamed(dict(atom.of), places)))
