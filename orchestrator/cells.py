"""Boxes of index symbols, split on demand.

Following a tensor element to its source is straight-line code over affine forms; where a branch or a
division is not uniform on the current box, it raises :class:`Cut` or :class:`Digits`, and :func:`explore`
splits the box there and runs the code again on every part. Names of split symbols depend on the split only,
so equal code gives equal names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from certificates.plan.affine import Affine, Range, divided, fold

T = TypeVar("T")
#: Pieces of one tensor; the norms of a deep model are stacked in one, a piece each.
MAX_CELLS = 2048


class Unfollowable(Exception):
    """The element cannot be described by affine pieces; the message says why.

    Never success, just no guess.
    """


class Cut(Exception):
    """Split the range of a symbol at a position."""

    def __init__(self, symbol: str, position: int) -> None:
        super().__init__(symbol, position)
        self.symbol, self.position = symbol, position


class Digits(Exception):
    """Write ``symbol + shift`` as ``base * high + low`` with ``low < base``."""

    def __init__(self, symbol: str, base: int, shift: int) -> None:
        super().__init__(symbol, base, shift)
        self.symbol, self.base, self.shift = symbol, base, shift


@dataclass(frozen=True)
class Cell:
    """A box: ``ranges`` of the current symbols, and the original symbols ``at`` as forms over them."""

    ranges: Mapping[str, Range]
    at: Mapping[str, Affine]

    @staticmethod
    def whole(ranges: Mapping[str, Range]) -> Cell:
        return Cell(dict(ranges), {s: Affine.symbol(s) for s in ranges})

    def _replace(self, symbol: str, form: Affine, ranges: Mapping[str, Range]) -> Cell:
        rest = {s: r for s, r in self.ranges.items() if s != symbol}
        return Cell(rest | dict(ranges), {s: f.substitute({symbol: form}) for s, f in self.at.items()})

    def cut(self, symbol: str, position: int) -> list[Cell]:
        lo, hi = self.ranges[symbol]
        if not lo < position < hi:
            raise Unfollowable(f"cut of {symbol} at {position} outside {lo}..{hi}")
        stem = symbol.split("~", 1)[0]
        out = []
        for a, b in ((lo, position), (position, hi)):
            name = f"{stem}~{a}~{b}"
            out.append(self._replace(symbol, Affine.symbol(name), {name: (a, b)}))
        return out

    def digits(self, symbol: str, base: int, shift: int) -> list[Cell]:
        lo, hi = self.ranges[symbol]
        if (lo + shift) % base or (hi + shift) % base:
            raise Unfollowable(f"{symbol} in {lo}..{hi} is not aligned to {base}")
        high, low = f"{symbol}#{base}", f"{symbol}#m{base}"
        form = Affine.of(-shift, {high: base, low: 1})
        return [
            self._replace(symbol, form, {high: ((lo + shift) // base, (hi + shift) // base), low: (0, base)})
        ]


def explore(cell: Cell, compute: Callable[[Cell], T]) -> list[tuple[Cell, T]]:
    """Run ``compute`` on parts of a box until it is uniform on each; parts come in lexicographic order."""
    work, out = [cell], []
    while work:
        current = work.pop()
        try:
            out.append((current, compute(current)))
        except (Cut, Digits) as split:
            if split.symbol not in current.ranges:
                raise  # of the box around this one
            if isinstance(split, Cut):
                work += reversed(current.cut(split.symbol, split.position))
            else:
                work += current.digits(split.symbol, split.base, split.shift)
        if len(work) + len(out) > MAX_CELLS:
            raise Unfollowable(f"more than {MAX_CELLS} pieces")
    return out


@contextmanager
def undivided() -> Iterator[None]:
    """Follow elements on one box as it is, outside :func:`explore`: a split is :class:`Unfollowable`."""
    try:
        yield
    except (Cut, Digits) as split:
        raise Unfollowable(f"{split.symbol} is not uniform on the box") from split


def quotient(form: Affine, n: int, ranges: Mapping[str, Range]) -> tuple[Affine, Affine]:
    """``form = n * q + r`` with ``0 <= r < n`` on the whole box, or a split that makes progress."""
    found = divided(form, n, ranges)
    if found is not None:
        return found
    rest = Affine(form.const, tuple([term for term in form.terms if term[1] % n]))
    _split_digit(rest, n, ranges)
    divide(rest, (rest.interval(ranges)[0] // n + 1) * n, ranges)
    raise Unfollowable(f"{form} does not divide by {n}")


def _split_digit(rest: Affine, n: int, ranges: Mapping[str, Range]) -> None:
    """Raise the split that lets the largest term of ``rest`` carry the multiples of ``n``, if it nests.

    A symbol with one value, such as the coordinate of one rank, is a number.
    """
    rest = fold(rest, ranges)
    symbol, coef = max(rest.terms, key=lambda t: t[1], default=("", 0))
    if coef <= 0 or n % coef:
        return
    small = rest - Affine.of(0, {symbol: coef})
    shift = small.const // coef
    lo, hi = (small - shift * coef).interval(ranges)
    if lo < 0 or hi >= coef:
        return
    base = n // coef
    first, last = ranges[symbol]
    start = -(-(first + shift) // base) * base - shift
    end = (last + shift) // base * base - shift
    if start > first:
        raise Cut(symbol, start)
    if end < last:
        raise Cut(symbol, end)
    raise Digits(symbol, base, shift)


def divide(form: Affine, bound: int, ranges: Mapping[str, Range]) -> None:
    """Raise a cut that separates positions with ``form < bound`` from the others, if the box has both."""
    lo, hi = form.interval(ranges)
    if hi < bound or lo >= bound:
        return
    for symbol, coef in sorted(form.terms, key=lambda t: -abs(t[1])):
        first, last = ranges[symbol]
        if last - first < 2:
            continue
        low, high = (form - Affine.of(0, {symbol: coef})).interval(ranges)
        edges = [-(-(bound - end) // coef) for end in (high, low)]
        if coef < 0:  # below the bound from an edge on
            edges = [(end - bound) // -coef + 1 for end in (low, high)]
        for edge in edges:
            if first < edge < last:
                raise Cut(symbol, edge)
    raise Unfollowable(f"{form} cannot be compared with {bound}")


def within(form: Affine, lo: int, hi: int, ranges: Mapping[str, Range]) -> bool:
    """Whether the form lies in ``[lo, hi)`` everywhere (else nowhere) on the box; splits if neither."""
    divide(form, lo, ranges)
    divide(form, hi, ranges)
    a, b = form.interval(ranges)
    return lo <= a and b < hi


def unlinear(form: Affine, sizes: tuple[int, ...], ranges: Mapping[str, Range]) -> list[Affine]:
    """Coordinates of a row-major position."""
    out: list[Affine] = []
    for size in reversed(sizes[1:]):
        form, rest = quotient(form, size, ranges)
        out.append(rest)
    return [form, *reversed(out)] if sizes else []


def upwards(places: Iterable[Affine], cell: Cell) -> None:
    """Split a cell at each rank along which results stand downwards: trees of a sum only run upwards."""
    for form in places:
        for symbol, coef in form.terms:
            low, high = cell.ranges[symbol]
            if coef < 0 and high - low > 1:
                raise Cut(symbol, low + 1)
