"""Sums over boxes of products of elements: what a span of several ops computes, at true sizes.

A sum is a list of terms. Each has its own bound symbols, no two terms of a sum or product share one, and
remembers what was opened and used on the way to it, so that a term can be split without the others. A term
whose coefficient is 0 stays: the stage speaks of what it used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from certificates.plan.affine import Affine, Range
from certificates.proof.facts import Ref

from ..cells import Cut, Digits, Unfollowable
from ..relating.polynomials import combined
from ..relating.recipes import Instance, Use

Forms = tuple[Affine, ...]
#: Terms of a sum, and of a product that is multiplied out.
MAX_TERMS, MAX_PRODUCTS = 2000, 300
#: Orders of bound symbols that are tried where nothing tells these apart.
MAX_ORDERS = 24


@dataclass(frozen=True)
class Leaf:
    """An element that is not opened."""

    ref: Ref
    at: Forms


@dataclass(frozen=True)
class Call:
    """A free function of sums that bind nothing: each is its products with their coefficients."""

    function: str
    arguments: tuple[tuple[tuple[tuple[Factor, ...], Fraction], ...], ...]

    # Calls are nested as deeply as ops that are not explained follow each other: each is gone through once.

    @cached_property
    def _number(self) -> int:
        return hash((self.function, self.arguments))

    @cached_property
    def _text(self) -> str:
        return f"Call(function={self.function!r}, arguments={self.arguments!r})"

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return self._text


Factor = Leaf | Call


class Trace:
    """What one term rests on: opened tensors, elements and instances of facts, at symbolic positions.

    Terms of a sum share most of theirs, and a deep sum has many: parts are joined by reference, and gone
    through only where they are read.
    """

    __slots__ = ("_found", "_own", "_parts")

    def __init__(
        self,
        opened: Sequence[Ref] = (),
        uses: Sequence[Use] = (),
        instances: Sequence[Instance] = (),
        parts: Sequence[Trace] = (),
    ) -> None:
        self._own, self._parts = (opened, uses, instances), parts
        self._found: tuple[dict[Ref, None], dict[Use, None], dict[Instance, None]] | None = None

    def _all(self) -> tuple[dict[Ref, None], dict[Use, None], dict[Instance, None]]:
        """Its own and those of its parts, each once, in order."""
        if self._found is None:
            self._found = {}, {}, {}
            work, seen = [self], set[int]()
            while work:
                here = work.pop()
                if id(here) in seen:
                    continue
                seen.add(id(here))
                opened, uses, instances = here._own
                self._found[0].update(dict.fromkeys(opened))
                self._found[1].update(dict.fromkeys(uses))
                self._found[2].update(dict.fromkeys(instances))
                work += reversed(here._parts)
        return self._found

    @property
    def opened(self) -> Iterable[Ref]:
        return self._all()[0]

    @property
    def uses(self) -> Iterable[Use]:
        return self._all()[1]

    @property
    def instances(self) -> Iterable[Instance]:
        return self._all()[2]

    def __or__(self, other: Trace) -> Trace:
        return Trace(parts=(self, other))

    def substitute(self, values: Mapping[str, Affine]) -> Trace:
        opened, uses, instances = self._all()
        return Trace(
            tuple(opened),
            tuple(Use(u.ref, _moved(u.at, values)) for u in uses),
            tuple(replace(i, values=_moved(i.values, values)) for i in instances),
        )


@dataclass(frozen=True)
class Term:
    """``coef`` times the product of the factors, summed over a box."""

    coef: Fraction
    factors: tuple[Factor, ...] = ()
    box: Mapping[str, Range] = field(default_factory=dict)
    trace: Trace = field(default=Trace(), compare=False)

    def scaled(self, factor: Fraction) -> Term:
        return replace(self, coef=self.coef * factor)

    def through(self, trace: Trace) -> Term:
        return replace(self, trace=trace | self.trace)

    def leaves(self) -> list[Leaf]:
        """All leaves, those under functions included."""
        return [leaf for f in self.factors for leaf in _leaves(f)]

    def substitute(self, values: Mapping[str, Affine], box: Mapping[str, Range]) -> Term:
        """The term with bound symbols replaced, over another box."""
        return Term(
            self.coef, tuple(_factor(f, values) for f in self.factors), box, self.trace.substitute(values)
        )


Sum = list[Term]


def _leaves(factor: Factor) -> list[Leaf]:
    if isinstance(factor, Leaf):
        return [factor]
    return [leaf for a in factor.arguments for fs, _ in a for f in fs for leaf in _leaves(f)]


def _moved(at: Forms, values: Mapping[str, Affine]) -> Forms:
    return tuple(f.substitute(values) for f in at)


def _factor(factor: Factor, values: Mapping[str, Affine]) -> Factor:
    if isinstance(factor, Leaf):
        return Leaf(factor.ref, _moved(factor.at, values))
    return _call(
        factor.function,
        [[(tuple(_factor(f, values) for f in fs), c) for fs, c in a] for a in factor.arguments],
    )


def _call(function: str, arguments: Sequence[Sequence[tuple[tuple[Factor, ...], Fraction]]]) -> Call:
    """The call with its arguments in normal form; a maximum has no order of its arguments."""
    normal = []
    for argument in arguments:
        total = combined((tuple(sorted(factors, key=str)), coef) for factors, coef in argument)
        normal.append(tuple(sorted(total.items(), key=str)))
    return Call(function, tuple(sorted(normal, key=str) if function in ("max2", "min2") else normal))


def added(*parts: Sum) -> Sum:
    """The sum of sums."""
    total = [t for p in parts for t in p]
    if len(total) > MAX_TERMS:
        raise Unfollowable(f"more than {MAX_TERMS} terms")
    return total


def multiplied(left: Sum, right: Sum) -> Sum:
    """The product of two sums, multiplied out."""
    if len(left) * len(right) > MAX_PRODUCTS:
        raise Unfollowable(f"more than {MAX_PRODUCTS} terms of a product")
    out = []
    for a, b in itertools.product(left, right):
        coef = a.coef * b.coef
        factors = (*a.factors, *b.factors) if coef else ()
        out.append(Term(coef, factors, {**a.box, **b.box}, a.trace | b.trace))
    return out


def applied(function: str, arguments: Sequence[Sum]) -> Sum:
    """A free function of sums; the reciprocal of a number is a number."""
    trace = Trace()
    for term in itertools.chain(*arguments):
        if term.box:
            raise Unfollowable(f"{function} of a sum")
        trace |= term.trace
    call = _call(function, [[(t.factors, t.coef) for t in a] for a in arguments])
    if function == "recip":
        (argument,) = call.arguments
        if not argument:
            raise Unfollowable("the reciprocal of zero")
        if len(argument) == 1 and not argument[0][0]:
            return [Term(1 / argument[0][1], (), {}, trace)]
    return [Term(Fraction(1), (call,), {}, trace)]


def split(term: Term, error: Cut | Digits, fresh: Callable[[], str]) -> Sum:
    """The term with one of its bound symbols cut, or written in digits."""
    symbol = error.symbol
    lo, hi = term.box[symbol]
    rest = {s: r for s, r in term.box.items() if s != symbol}
    if isinstance(error, Cut):
        if not lo < error.position < hi:
            raise Unfollowable(f"cut of {symbol} at {error.position} outside {lo}..{hi}")
        parts = []
        for a, b in ((lo, error.position), (error.position, hi)):
            name = fresh()
            # What starts at 0 can be a digit of a position.
            parts.append(term.substitute({symbol: Affine.symbol(name) + a}, {**rest, name: (0, b - a)}))
        return parts
    if (lo + error.shift) % error.base or (hi + error.shift) % error.base:
        raise Unfollowable(f"{symbol} in {lo}..{hi} is not aligned to {error.base}")
    first = (lo + error.shift) // error.base
    high, low = fresh(), fresh()
    form = Affine.of(first * error.base - error.shift, {high: error.base, low: 1})
    count = (hi + error.shift) // error.base - first
    return [term.substitute({symbol: form}, {**rest, high: (0, count), low: (0, error.base)})]


def grounded(term: Term) -> Term:
    """The term without bound symbols of one value."""
    fixed = {s: Affine(lo) for s, (lo, hi) in term.box.items() if hi - lo == 1}
    if not fixed:
        return term
    return term.substitute(fixed, {s: r for s, r in term.box.items() if s not in fixed})


Key = tuple[tuple[int, ...], tuple[Factor, ...]]


def collected(terms: Sum) -> dict[Key, Fraction]:
    """Coefficients of products that differ in more than the names of their bound symbols."""
    found = ((_canonical(term), term) for term in terms if term.coef)
    return combined((key, term.coef * count) for (key, count), term in found)


def amounts(terms: Sum) -> dict[tuple[str, ...], Fraction]:
    """How much there is of products of the same tensors, wherever these are read: the same, however the boxes
    of a sum are cut."""
    return combined(
        (
            tuple(sorted(f"{f.ref}" if isinstance(f, Leaf) else f"{f.function}()" for f in t.factors)),
            t.coef * math.prod(hi - lo for lo, hi in t.box.values()),
        )
        for t in terms
    )


def members(terms: Sum) -> dict[Key, Fraction]:
    """Coefficients of the products that a maximum or minimum is of: how often one occurs does not matter."""
    found: dict[Key, Fraction] = {}
    for term in terms:
        key, _ = _canonical(term)
        if found.setdefault(key, term.coef) != term.coef:
            raise Unfollowable("the largest of two multiples of one product")
    return found


def _canonical(term: Term) -> tuple[Key, int]:
    """The product with its bound symbols named in an order of their own, all from 0; how often it stands."""
    term = grounded(term)
    places: dict[str, list[str]] = {s: [] for s in term.box}
    for factor in term.factors:
        _occurrences(factor, "", places)
    count = math.prod((hi - lo for s, (lo, hi) in term.box.items() if not places[s]), start=1)
    marks: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for s, (lo, hi) in term.box.items():
        if places[s]:
            marks.setdefault((hi - lo, tuple(sorted(places[s]))), []).append(s)
    groups = [marks[m] for m in sorted(marks)]
    if math.prod(math.factorial(len(g)) for g in groups) > MAX_ORDERS:
        raise Unfollowable("too many bound symbols that look alike")
    found = []
    for orders in itertools.product(*(itertools.permutations(g) for g in groups)):
        names = [s for order in orders for s in order]
        values = {s: Affine.symbol(f"%{i}") + term.box[s][0] for i, s in enumerate(names)}
        factors = sorted((_factor(f, values) for f in term.factors), key=str)
        found.append((str(factors), tuple(factors)))
    sizes = tuple(size for size, _ in sorted(marks) for _ in marks[size, _])
    return (sizes, min(found)[1]), count


def _occurrences(factor: Factor, path: str, places: dict[str, list[str]]) -> None:
    """Where in a factor each bound symbol occurs, and how."""
    if isinstance(factor, Leaf):
        for c, form in enumerate(factor.at):
            for s, step in form.terms:
                if s in places:
                    places[s].append(f"{path}{factor.ref} {c} {step}")
        return
    for n, argument in enumerate(factor.arguments):
        # A maximum has no order of its arguments, and neither has a sum.
        here = f"{path}{factor.function} {n if factor.function not in ('max2', 'min2') else ''} "
        for factors, coef in argument:
            for f in factors:
                _occurrences(f, f"{here}{coef} ", places)
