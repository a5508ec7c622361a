"""Index forms over box variables, and what makes a box fall apart.

A form is affine over numbered variables; variable ``v`` ranges over ``[0, sizes[v])``. Row-major regrouping
divides forms; where the quotient is not affine on the whole box, the box is cut (:class:`Cut`) or the
variable is replaced by digits (:class:`Split`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import EvaluationError

#: ``constant + sum(coefficient * variable)``; terms sorted by variable.
Form = tuple[int, tuple[tuple[int, int], ...]]
#: A range falls into parts: forms of the old variables over new ones, and the sizes of these.
Part = tuple[tuple[Form, ...], tuple[int, ...]]

MAX_CUTS = 1 << 17


class TooFine(EvaluationError):
    """The value varies on more boxes than an evaluation may hold."""


class Split(Exception):
    """Variable ``var`` must be regrouped: digits of radix ``radix`` on the positions ``[start, stop)``."""

    def __init__(self, var: int, radix: int, start: int, stop: int) -> None:
        super().__init__(f"variable {var}: radix {radix} on [{start}, {stop})")
        self.var, self.radix, self.start, self.stop = var, radix, start, stop

    def pieces(self, size: int) -> list[Part]:
        """The ranges that replace the variable, each as one form over fresh variables."""
        out: list[Part] = []
        full = (self.stop - self.start) // self.radix
        tail = self.start + full * self.radix
        if self.start:
            out.append((((0, ((0, 1),)),), (self.start,)))
        if full > 1:
            out.append((((self.start, ((0, self.radix), (1, 1))),), (full, self.radix)))
        elif full:
            out.append((((self.start, ((0, 1),)),), (self.radix,)))
        if tail < self.stop:
            out.append((((tail, ((0, 1),)),), (self.stop - tail,)))
        if self.stop < size:
            out.append((((self.stop, ((0, 1),)),), (size - self.stop,)))
        return out


class Cut(Exception):
    """The box must be cut at these interior positions before the op can be applied; handled at once."""

    def __init__(self, cuts: Mapping[int, set[int]]) -> None:
        super().__init__()
        self.cuts = cuts


def combine(x: Form, y: Form, scale: int = 1) -> Form:
    """``x + scale * y``."""
    terms = dict(x[1])
    for v, c in y[1]:
        terms[v] = terms.get(v, 0) + scale * c
    return x[0] + scale * y[0], tuple(sorted((v, c) for v, c in terms.items() if c))


def scaled(form: Form, factor: int, offset: int = 0) -> Form:
    """``factor * form + offset`` for a factor that is not 0."""
    if factor == 1:
        return form if offset == 0 else (form[0] + offset, form[1])
    return form[0] * factor + offset, tuple((v, c * factor) for v, c in form[1])


def bounds(form: Form, sizes: Sequence[int]) -> tuple[int, int]:
    """Smallest and largest value on the box."""
    lo = hi = form[0]
    for v, c in form[1]:
        if c > 0:
            hi += c * (sizes[v] - 1)
        else:
            lo += c * (sizes[v] - 1)
    return lo, hi


def substitute(form: Form, var: int, replacement: Form) -> Form:
    """``form`` with ``replacement`` for a variable."""
    coef = next((c for v, c in form[1] if v == var), 0)
    if not coef:
        return form
    return combine((form[0], tuple(t for t in form[1] if t[0] != var)), replacement, coef)


def threshold(form: Form, sizes: Sequence[int], at: int, out: dict[int, set[int]]) -> None:
    """Add cuts to ``out`` until ``form >= at`` has one answer on every cell."""
    lo, hi = bounds(form, sizes)
    if at <= lo or at > hi:
        return
    var, coef = max(form[1], key=lambda t: abs(t[1]))
    rest: Form = (form[0], tuple(t for t in form[1] if t[0] != var))
    low, high = bounds(rest, sizes)
    size = sizes[var]
    if coef > 0:  # undecided where coef * v + low < at <= coef * v + high
        first, last = -((high - at) // coef), -((low - at) // coef)
    else:
        first, last = (low - at) // -coef + 1, (high - at) // -coef + 1
    first, last = max(first, 0), min(last, size)
    cuts = out.setdefault(var, set())
    if last - first + len(cuts) > MAX_CUTS:
        raise TooFine(f"a variable of {size} positions falls into single positions")
    cuts.update(p for p in range(first, last + 1) if 0 < p < size)
    for v in range(first, last):
        threshold((rest[0] + coef * v, rest[1]), sizes, at, out)


def divide(form: Form, by: int, sizes: Sequence[int]) -> tuple[Form, Form]:
    """Quotient and remainder as forms. Raises :class:`Split` or asks for cuts where they are not affine."""
    quotient: list[tuple[int, int]] = []
    rest: list[tuple[int, int]] = []
    for v, c in form[1]:
        if c % by:
            rest.append((v, c))
        else:
            quotient.append((v, c // by))
    whole, const = divmod(form[0], by)
    remainder: Form = (const, tuple(rest))
    lo, hi = bounds(remainder, sizes)
    first = lo // by
    if hi // by == first:
        return (whole + first, tuple(quotient)), (const - first * by, tuple(rest))
    var, coef = max(rest, key=lambda t: abs(t[1]) * (sizes[t[0]] - 1))
    radix = by // math.gcd(coef, by)
    if sizes[var] > radix > 1:
        raise Split(var, radix, 0, sizes[var])
    cuts: dict[int, set[int]] = {}
    for boundary in range(first + 1, hi // by + 1):
        threshold(remainder, sizes, boundary * by, cuts)
    raise Cut(cuts)


def digits(form: Form, radices: Sequence[int], sizes: Sequence[int]) -> list[Form]:
    """The row-major coordinates of a linear position in a block of the given shape."""
    out: list[Form] = []
    for n in reversed(radices[1:]):
        form, digit = divide(form, n, sizes)
        out.append(digit)
    out.append(form)
    return out[::-1]


def regroup(source: Sequence[int], target: Sequence[int]) -> list[tuple[range, range]]:
    """The finest parts of equal products of two shapes of equal size, as ranges of dimensions."""
    out: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        start_i, start_j, a, b = i, j, 1, 1
        while True:
            if i < len(source) and (a <= b or j == len(target)):
                a *= source[i]
                i += 1
            elif j < len(target):
                b *= target[j]
                j += 1
            if a == b:
                break
        out.append((range(start_i, i), range(start_j, j)))
    return out


def compose(form: Form, olds: Sequence[Form]) -> Form:
    """``form`` with ``olds[v]`` for every variable ``v``."""
    out: Form = (form[0], ())
    for v, c in form[1]:
        out = combine(out, olds[v], c)
    return out


def regrouped(part: Part, split: Split) -> list[Part]:
    """The parts that replace one in which a variable must be split."""
    forms, sizes = part
    out: list[Part] = []
    for (replacement,), fresh in split.pieces(sizes[split.var]):
        # the first new variable takes the place of the old one, further ones go to the end
        names = [split.var, *range(len(sizes), len(sizes) + len(fresh) - 1)]
        moved: Form = (replacement[0], tuple(sorted((names[v], c) for v, c in replacement[1])))
        every = tuple(fresh[0] if v == split.var else n for v, n in enumerate(sizes)) + fresh[1:]
        out.append((tuple(substitute(f, split.var, moved) for f in forms), every))
    return out


def covering(
    at: Sequence[Form], plan_forms: Sequence[Form], digit_sizes: Sequence[int], sizes: Sequence[int]
) -> list[Form] | None:
    """The digits of a relation piece at index ``at``, or ``None`` if the piece does not cover it.

    Raises :class:`Split` or asks for cuts if that depends on the position in the box.
    """
    found: list[Form] = [(0, ())] * len(digit_sizes)
    cuts: dict[int, set[int]] = {}

    def inside(form: Form, size: int) -> bool:
        lo, hi = bounds(form, sizes)
        if hi < 0 or lo >= size:
            return False
        if lo < 0 or hi >= size:
            threshold(form, sizes, 0, cuts)
            threshold(form, sizes, size, cuts)
        return True

    for index, form in zip(at, plan_forms, strict=True):
        rest = scaled(index, 1, -form[0])
        terms = sorted(form[1], key=lambda t: -t[1])
        for z, coef in terms:
            quotient = rest
            if coef != 1:
                quotient, rest = divide(rest, coef, sizes)
            else:
                rest = (0, ())
            if not inside(quotient, digit_sizes[z]):
                return None
            found[z] = quotient
        if not inside(rest, 1):
            return None
    if any(cuts.values()):
        raise Cut(cuts)
    return found
