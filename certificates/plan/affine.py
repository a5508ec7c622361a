"""Integer affine forms over named symbols: index expressions and rank-dependent scalars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import FormatError

#: Half-open range ``[lo, hi)`` of a symbol.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Affine:
    """``const + sum(coef * symbol)``; terms sorted by symbol, no zero coefficient."""

    const: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        """Sent between processes in a third of the time that dataclasses take by themselves."""
        return Affine, (self.const, self.terms)

    @staticmethod
    def of(const: int = 0, terms: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> Affine:
        """Normalise a constant and a bag of terms (repeated symbols add up)."""
        total: dict[str, int] = {}
        for symbol, coef in terms.items() if isinstance(terms, Mapping) else terms:
            total[symbol] = total.get(symbol, 0) + coef
        return Affine(const, tuple(sorted([term for term in total.items() if term[1]])))

    @staticmethod
    def symbol(name: str) -> Affine:
        return Affine(0, ((name, 1),))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        if not other.terms:
            return Affine(self.const + other.const, self.terms)
        if not self.terms:
            return Affine(self.const + other.const, other.terms)
        return Affine.of(self.const + other.const, self.terms + other.terms)

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const - other, self.terms)
        if not other.terms:
            return Affine(self.const - other.const, self.terms)
        if self.terms == other.terms:
            return Affine(self.const - other.const)
        return self + other.scale(-1)

    def scale(self, factor: int) -> Affine:
        if factor == 0:
            return ZERO
        return Affine(self.const * factor, tuple([(s, c * factor) for s, c in self.terms]))

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        """Replace every symbol that ``values`` names; the others stay."""
        if not self.terms:
            return self
        if len(self.terms) == 1:
            ((symbol, coef),) = self.terms
            value = values.get(symbol)
            if value is None:
                return self
            if coef == 1 and not self.const:
                return value
            return Affine(self.const + coef * value.const, tuple([(s, coef * c) for s, c in value.terms]))
        const = self.const
        total: dict[str, int] = {}
        for symbol, coef in self.terms:
            value = values.get(symbol)
            if value is None:
                total[symbol] = total.get(symbol, 0) + coef
            else:
                const += coef * value.const
                for s, c in value.terms:
                    total[s] = total.get(s, 0) + coef * c
        return Affine(const, tuple(sorted([term for term in total.items() if term[1]])))

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number at a full assignment; a missing symbol is a ``KeyError``."""
        return self.const + sum(c * values[s] for s, c in self.terms)

    def interval(self, ranges: Mapping[str, Range]) -> tuple[int, int]:
        """Smallest and largest value when each symbol lies in its half-open range."""
        lo = hi = self.const
        for symbol, coef in self.terms:
            first, end = ranges[symbol]
            low, high = coef * first, coef * (end - 1)
            if high < low:
                low, high = high, low
            lo += low
            hi += high
        return lo, hi

    def coef(self, symbol: str) -> int:
        for s, c in self.terms:
            if s == symbol:
                return c
        return 0

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple([s for s, _ in self.terms])

    @property
    def is_const(self) -> bool:
        return not self.terms

    def to_json(self) -> int | dict[str, int]:
        if not self.terms:
            return self.const
        out = dict(self.terms)
        if self.const:
            out[""] = self.const
        return out

    @staticmethod
    def from_json(data: object) -> Affine:
        """Read an AFFINE of the plan format; anything not in normal form is a ``FormatError``."""
        if isinstance(data, bool):
            raise FormatError("an affine form is an integer or an object, not a boolean")
        if isinstance(data, int):
            return Affine(data)
        if not isinstance(data, dict):
            raise FormatError(f"an affine form is an integer or an object, not {type(data).__name__}")
        terms = []
        for symbol, coef in data.items():
            if not isinstance(coef, int) or isinstance(coef, bool) or coef == 0:
                raise FormatError(f"coefficient of {symbol!r} in an affine form must be a non-zero integer")
            if symbol:
                terms.append((symbol, coef))
        if not terms:
            raise FormatError("an affine object without symbols must be written as an integer")
        return Affine(data.get("", 0), tuple(sorted(terms)))

    def __str__(self) -> str:
        parts: list[str] = []
        for symbol, coef in self.terms:
            sign = "-" if coef < 0 else "+"
            body = symbol if abs(coef) == 1 else f"{abs(coef)}*{symbol}"
            parts.append(f"{sign} {body}" if parts else (f"-{body}" if coef < 0 else body))
        if self.const or not parts:
            parts.append(f"{'-' if self.const < 0 else '+'} {abs(self.const)}" if parts else str(self.const))
        return " ".join(parts)


ZERO = Affine()


def digits(sizes: tuple[int, ...]) -> dict[str, Range]:
    """Ranges of the digit symbols ``z0, z1, …`` of a relation's piece."""
    return {f"z{i}": (0, n) for i, n in enumerate(sizes)}


def fold(form: Affine, ranges: Mapping[str, Range]) -> Affine:
    """Replace symbols that have one value only."""
    single = {
        s: Affine(ranges[s][0]) for s in form.symbols if s in ranges and ranges[s][1] - ranges[s][0] == 1
    }
    return form.substitute(single) if single else form


def divided(form: Affine, n: int, ranges: Mapping[str, Range]) -> tuple[Affine, Affine] | None:
    """``form = n * q + r`` with ``0 <= r < n`` on the whole box; ``None`` where the ranges do not say so."""
    rest = Affine(form.const, tuple([term for term in form.terms if term[1] % n]))
    if any(s not in ranges for s in rest.symbols):
        return None
    lo, hi = rest.interval(ranges)
    whole = lo // n
    if hi >= (whole + 1) * n:
        return None
    return Affine(whole, tuple([(s, c // n) for s, c in form.terms if c % n == 0])), rest - whole * n
