"""Rigorous interval arithmetic on dyadic rationals: exact integers scaled by 2**-bits, rounded outwards.

A `Number` encloses one real: a pair (low, high) of integers, or the one-element tuples `LOW` and `HIGH` for
the infinities that a mask may hold, or `NOWHERE`: certainly no real number (a root or logarithm of a
negative number, a division by exactly zero), or None: not known (a division by an interval that contains
zero, a product with an infinity). The last two spread through every operation, None first; nothing is ever
guessed.

Elementary functions are computed at a point with `GUARD` more bits. Each of their fewer than 2**10 roundings
errs by one unit, none is amplified by more than 2**16 (the squarings of exp), so `SLACK` = 2**28 units cover
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import isqrt

Number = tuple[int, ...] | None
GUARD, SLACK = 64, 1 << 28
LOW: Number = (-1,)
HIGH: Number = (1,)
NOWHERE: Number = ()
HALVINGS = 8
MAX_EXPONENT = 1 << 12
MAX_POWER = 1 << 12


class Reals:
    """The operations at one precision. A result contains the true value for all members of the operands."""

    def __init__(self, bits: int = 256) -> None:
        self.bits, self.work = bits, bits + GUARD
        self.one: tuple[int, int] = (1 << bits, 1 << bits)
        self.zero: tuple[int, int] = (0, 0)
        far = self.work + 32
        self.ln2 = sum((2 << far) // ((2 * k + 1) * 3 ** (2 * k + 1)) for k in range(far)) >> 32
        self.half_pi = (8 * _arctan(5, far) - 2 * _arctan(239, far)) >> 32
        self.unary: dict[str, Callable[[Number], Number]] = {
            "negate": self.neg,
            "exponential": self.exp,
            "log": self.log,
            "sqrt": self.sqrt,
            "rsqrt": self.rsqrt,
            "sine": self.sin,
            "cosine": self.cos,
            "tanh": self.tanh,
            "logistic": self.logistic,
            "erf": self.erf,
            "abs": self.abs,
        }
        self.binary: dict[str, Callable[[Number, Number], Number]] = {
            "add": self.add,
            "subtract": lambda x, y: self.add(x, self.neg(y)),
            "multiply": self.mul,
            "divide": lambda x, y: self.mul(x, self.recip(y)),
            "power": self.power,
            "maximum": self.max,
            "minimum": self.min,
        }

    def of(self, value: Fraction | int) -> tuple[int, int]:
        """The tightest enclosure of a rational."""
        p, q = value.numerator << self.bits, value.denominator
        return p // q, -(-p // q)

    def ends(self, x: Number) -> tuple[Fraction, Fraction] | None:
        """Both ends as rationals; None if there is no finite enclosure."""
        return (Fraction(x[0], 1 << self.bits), Fraction(x[1], 1 << self.bits)) if x and len(x) == 2 else None

    # Ring and order

    def add(self, x: Number, y: Number) -> Number:
        if not x or not y:
            return lost(x, y)
        if len(x) == 1 or len(y) == 1:
            return x if x == y or len(y) == 2 else y if len(x) == 2 else NOWHERE
        return x[0] + y[0], x[1] + y[1]

    def neg(self, x: Number) -> Number:
        return tuple(-v for v in reversed(x)) if x else x

    def mul(self, x: Number, y: Number) -> Number:
        return self.weighted(((1, x, y),))

    def weighted(self, terms: Iterable[tuple[int, Number, Number]]) -> Number:
        """The sum of weight times product, weights positive integers; rounded once."""
        low = high = 0
        special: list[Number] = []
        for w, x, y in terms:
            if not x or not y or len(x) == 1 or len(y) == 1:
                special.append(lost(x, y) if not x or not y else self._infinite(x, y))
                continue
            a, b = x
            c, d = y
            if (a >= 0 and c >= 0) or (a == b and c == d):
                low, high = low + w * a * c, high + w * b * d
            else:
                four = (a * c, a * d, b * c, b * d)
                low, high = low + w * min(four), high + w * max(four)
        total: Number = low >> self.bits, -(-high >> self.bits)
        for extra in special:
            total = self.add(total, extra) if total is not None else None
        return total

    def _infinite(self, x: tuple[int, ...], y: tuple[int, ...]) -> Number:
        """A product with an infinity: its sign is known, or a factor is exactly 0, or nothing is."""
        signs = [1 if v[0] > 0 else -1 if v[-1] < 0 else 0 for v in (x, y)]
        if signs[0] * signs[1]:
            return HIGH if signs[0] * signs[1] > 0 else LOW
        return NOWHERE if self.zero in (x, y) else None

    def recip(self, x: Number) -> Number:
        if not x or len(x) == 1 or x[0] <= 0 <= x[1]:
            return NOWHERE if x in (NOWHERE, self.zero) else self.zero if x in (LOW, HIGH) else None
        unit = 1 << 2 * self.bits
        return unit // x[1], -(-unit // x[0])

    def max(self, x: Number, y: Number) -> Number:
        if not x or not y:
            return lost(x, y)
        if len(x) == 1 or len(y) == 1:
            return y if x == LOW or y == HIGH else x
        return max(x[0], y[0]), max(x[1], y[1])

    def min(self, x: Number, y: Number) -> Number:
        return self.neg(self.max(self.neg(x), self.neg(y)))

    def abs(self, x: Number) -> Number:
        if not x or len(x) == 1:
            return HIGH if x else x
        return x if x[0] >= 0 else (-x[1], -x[0]) if x[1] <= 0 else (0, max(-x[0], x[1]))

    def less(self, x: Number, y: Number) -> bool | None:
        """Is x < y? None where the enclosures do not tell."""
        if not x or not y:
            return None
        if len(x) == 1 or len(y) == 1:
            return (x == LOW and y != LOW) or (y == HIGH and x != HIGH)
        return True if x[1] < y[0] else False if x[0] >= y[1] else None

    def equal(self, x: Number, y: Number) -> bool | None:
        """Is x = y? None where the enclosures do not tell."""
        if not x or not y:
            return None
        if len(x) == 1 or len(y) == 1:
            return x == y
        return False if x[1] < y[0] or y[1] < x[0] else True if x == y and x[0] == x[1] else None

    # Elementary functions

    def exp(self, x: Number) -> Number:
        """Total downwards: below the deepest exponent, a value is above 0 and at most the one there."""
        if not x or len(x) == 1:
            return self.zero if x == LOW else x
        deepest = -MAX_EXPONENT // 2 << self.bits
        if x[1] >= -deepest:
            return None
        low, high = self._exp(max(x[0], deepest))
        return low if x[0] >= deepest else 0, high if x[0] == x[1] else self._exp(max(x[1], deepest))[1]

    def _exp(self, x: int) -> tuple[int, int]:
        """exp at x = k ln 2 + r: the series at r / 2**HALVINGS, squared HALVINGS times, times 2**k."""
        w = self.work
        k, r = divmod(x << GUARD, self.ln2)
        r >>= HALVINGS
        total = term = 1 << w
        n = 0
        while term:
            n += 1
            term = (term * r >> w) // n
            total += term
        for _ in range(HALVINGS):
            total = total * total >> w
        shift = GUARD - k
        low, high = total - SLACK, total + SLACK
        return (low >> shift, -(-high >> shift)) if shift >= 0 else (low << -shift, high << -shift)

    def log(self, x: Number) -> Number:
        if not x or len(x) == 1 or x[0] <= 0:
            return NOWHERE if x and len(x) == 2 and x[1] <= 0 else lost(x)
        return self._log(x[0])[0], self._log(x[1])[1]

    def _log(self, x: int) -> tuple[int, int]:
        """log at a positive point: x = m 2**e with m in [1, 2), log m = 2 artanh((m - 1) / (m + 1))."""
        w = self.work
        e = x.bit_length() - 1 - self.bits
        m = (x << GUARD) >> e if e >= 0 else (x << GUARD) << -e
        z = ((m - (1 << w)) << w) // (m + (1 << w))
        square, power, total, n = z * z >> w, z, 0, 1
        while power:
            total += power // n
            power = power * square >> w
            n += 2
        return self._outward(2 * total + e * self.ln2)

    def _outward(self, value: int) -> tuple[int, int]:
        return (value - SLACK) >> GUARD, -(-(value + SLACK) >> GUARD)

    def sqrt(self, x: Number) -> Number:
        if not x or len(x) == 1 or x[0] < 0:
            return NOWHERE if x and len(x) == 2 and x[1] < 0 else lost(x)
        high = isqrt(x[1] << self.bits)
        return isqrt(x[0] << self.bits), high if high * high == x[1] << self.bits else high + 1

    def rsqrt(self, x: Number) -> Number:
        return self.recip(self.sqrt(x))

    def sin(self, x: Number) -> Number:
        return self._circular(x, 0)

    def cos(self, x: Number) -> Number:
        return self._circular(x, 1)

    def _circular(self, x: Number, quarter: int) -> Number:
        """sin(x + quarter pi/2): the value at the midpoint, widened by the radius (slopes are at most 1)."""
        if not x or len(x) == 1 or max(abs(x[0]), abs(x[1])) >> self.bits >= 1 << 20:
            return lost(x)
        mid, w = (x[0] + x[1]) >> 1, self.work
        k, r = divmod((mid << GUARD) + (self.half_pi >> 1), self.half_pi)
        r -= self.half_pi >> 1
        odd = (k + quarter) & 1
        term, n, total = (1 << w, 0, 0) if odd else (r, 1, 0)
        while term not in (0, -1):
            total += term
            term = -(term * r >> w) * r // ((n + 1) * (n + 2)) >> w
            n += 2
        low, high = self._outward(-total if (k + quarter) & 2 else total)
        radius = x[1] - mid
        return max(low - radius, -self.one[0]), min(high + radius, self.one[0])

    def logistic(self, x: Number) -> Number:
        return self.recip(self.add(self.one, self.exp(self.neg(x))))

    def tanh(self, x: Number) -> Number:
        """1 - 2 / (exp(2x) + 1)."""
        share = self.recip(self.add(self.one, self.exp(self.add(x, x))))
        return self.add(self.one, self.neg(self.add(share, share)))

    def erf(self, x: Number) -> Number:
        if not x or len(x) == 1:
            return self.neg(self.one) if x == LOW else self.one if x == HIGH else x
        first, last = self._erf(x[0]), self._erf(x[1])
        return (first[0], last[1]) if first and last else None

    def _erf(self, x: int) -> tuple[int, ...] | None:
        """erf at a point x >= 0: 2 / sqrt(pi) / exp(x**2) times the sum of 2**n x**(2n+1) / (1 3 ... (2n+1)).

        Terms are positive; both bounds of each are rounded outwards. Once a term is at most half of the one
        before, all that follow are together at most as large as it. 1 - erf(x) is less than exp(-x**2).
        """
        if x < 0:
            return self.neg(self._erf(-x))
        scale, square = 2 * self.bits, x * x
        if square >> scale >= self.bits:
            return self.one[0] - 1, self.one[0]
        low = high = lows = highs = x << GUARD
        n = 0
        while high > 1 or 4 * square > (2 * n + 3) << scale:
            n += 1
            low = (2 * low * square >> scale) // (2 * n + 1)
            high = -((-2 * high * square >> scale) // (2 * n + 1))
            lows, highs = lows + low, highs + high
        growth = self.exp(self.mul((x, x), (x, x)))
        root = self.sqrt(self._outward(2 * self.half_pi))
        if not growth or len(growth) == 1:
            return None
        up = self.bits - GUARD
        share = (lows << up) // growth[1], -((-(highs + high) << up) // growth[0])
        twice = self.weighted([(2, share, self.recip(root))])
        return (twice[0], min(twice[1], self.one[0])) if twice else None

    def power(self, x: Number, y: Number) -> Number:
        """x**y for an exact integer y (x not 0 unless y > 0), else exp(y log x) for positive x."""
        if not x or not y or len(x) == 1 or len(y) == 1:
            return lost(x, y)
        n, rest = divmod(y[0], self.one[0])
        if y[0] != y[1] or rest or abs(n) > MAX_POWER:
            return self.exp(self.mul(y, self.log(x)))
        if n <= 0:
            return self.power(self.recip(x), self.neg(y)) if n else self.one if x[0] > 0 or x[1] < 0 else None
        base = self.abs(x) if n % 2 == 0 else x
        ends = [self._power(v, n) for v in (base or ())]
        return ends[0][0], ends[1][1]

    def _power(self, x: int, n: int) -> tuple[int, int]:
        """x**n at a point, x not negative or n odd, by repeated squaring; monotone in x."""
        low, high, sign = self.one[0], self.one[0], -1 if x < 0 else 1
        for bit in bin(n)[2:]:
            low, high = low * low >> self.bits, -(-high * high >> self.bits)
            if bit == "1":
                low, high = low * abs(x) >> self.bits, -(-high * abs(x) >> self.bits)
        return (low, high) if sign > 0 else (-high, -low)


def lost(*xs: Number) -> Number:
    """What an operation without value gives: `NOWHERE` only if an operand is, and all others are known."""
    return NOWHERE if NOWHERE in xs and None not in xs else None


def _arctan(n: int, bits: int) -> int:
    """arctan(1/n) by its series."""
    total, power, k = 0, (1 << bits) // n, 1
    while power:
        total += power // k if k % 4 == 1 else -(power // k)
        power //= n * n
        k += 2
    return total
