"""Joining facts about pieces of one tensor, as long as anything joins.

Pieces come from splits that code along the way asked for; halves, single positions and interleaved strides of
what is one relation are put together again, so that later steps see few pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from certificates.plan.affine import ZERO, Affine, Range
from certificates.proof.facts import Fact
from smtlib_emit.model import Model

from ..cells import Cell, Unfollowable, explore
from .solving_facts import make_fact, merge, solve

#: Strides up to this are joined.
MAX_STRIDE = 64


def join(model: Model, pieces: Sequence[Fact]) -> list[Fact]:
    """Facts that say the same as ``pieces``, fewer if some of them join."""
    facts = merge([_normal(model, f) for f in pieces]) if len(pieces) > 1 else list(pieces)
    while len(facts) > 1:
        following = _strides(model, _points(model, _edges(model, facts)))
        following = merge([_normal(model, f) for f in following])
        if len(following) >= len(facts):
            break
        facts = following
    whole = _as_one(model, facts) if len(facts) > 1 else None
    return [whole] if whole is not None else [_remade(model, _grounded(f)) for f in facts]


def _as_one(model: Model, facts: Sequence[Fact]) -> Fact | None:
    """One fact about a whole tensor, of pieces that all say that an element is the one at the same place, or
    a fixed way from it: those of windows that were rolled, say, which do not join one after the other."""
    first, ranges = facts[0], model.tensors.ranges(facts[0].lhs)
    if any((f.lhs, f.rhs, f.coef) != (first.lhs, first.rhs, first.coef) for f in facts):
        return None
    if sum(_size(f.ranges.values()) for f in facts) != _size(ranges):
        return None
    axes = model.tensors.mesh_axes(first.lhs)
    names = [*axes, *(f"o{d}" for d in range(len(ranges) - len(axes)))]
    left, right = [Affine.symbol(n) for n in names], list[Affine]()
    for d in range(len(first.rhs_index)):
        shared = frozenset.intersection(*(_ways(f, d, len(axes)) for f in facts))
        if not shared:
            return None
        place, way = min(shared, key=lambda found: found[0])
        right.append(left[place] + way if place >= 0 else way)
    cell = Cell.whole(dict(zip(names, ranges, strict=True)))
    if not _all_said(facts, cell):
        return None
    return make_fact(model, cell, first.lhs, left, first.rhs, right, first.coef)


def _all_said(facts: Sequence[Fact], whole: Cell) -> bool:
    """Is every element one of which a fact speaks?"""

    def said(cell: Cell) -> None:
        at = list(cell.at.values())
        if all(solve(f.lhs_index, f.ranges, at, cell.ranges) is None for f in facts):
            raise Unfollowable("an element of which none speaks")

    try:
        explore(whole, said)
    except Unfollowable:
        return False
    return True


def _ways(fact: Fact, d: int, axes: int) -> frozenset[tuple[int, Affine]]:
    """The left coordinates from which a right one is as far wherever the fact holds, and how far; -1 for none
    of them."""
    here, left = fact.rhs_index[d], fact.lhs_index
    found = [(-1, here), *((i, here - left[i]) for i in range(axes, len(left)))]
    return frozenset((i, way) for i, way in found if not any(s.startswith("z") for s in way.symbols))


def _size(spans: Iterable[Range]) -> int:
    return math.prod(hi - lo for lo, hi in spans)


def _remade(model: Model, fact: Fact) -> Fact:
    cell = Cell(fact.ranges, {})
    return make_fact(model, cell, fact.lhs, fact.lhs_index, fact.rhs, fact.rhs_index, fact.coef)


def _normal(model: Model, fact: Fact) -> Fact:
    return _anchored(_remade(model, fact))


def _anchored(fact: Fact) -> Fact:
    """The fact with offsets of the left side in the ranges of its digits, so that neighbours look alike.

    What is a whole step of a digit is carried to it: ``48*a + b`` from -48 + 48 on is ``48*a + b`` from 0 on.
    """
    for i in range(len(fact.lhs_index)):
        form = fact.lhs_index[i]
        digits = sorted((c, s) for s, c in form.terms if c > 0 and s.startswith("z") and _once(fact, s))
        if not digits or digits[-1][0] == 1 == len(form.terms):
            continue
        step, lowest = digits[0]
        fact = _counted_from(fact, lowest, -(form.const // step))
        for (low, digit), (high, above) in pairwise(digits):
            carried, rest = divmod(fact.ranges[digit][0] * low, high)
            if carried and high % low == 0 and rest % low == 0:
                fact = _counted_from(fact, digit, carried * high // low)
                fact = _counted_from(fact, above, -carried)
    return fact


def _counted_from(fact: Fact, symbol: str, start: int) -> Fact:
    """The fact with a symbol that is less by ``start``."""
    if not start:
        return fact
    moved = {symbol: Affine.symbol(symbol) + start}
    return replace(
        fact,
        symbols=tuple(
            (s, lo - start, hi - start) if s == symbol else (s, lo, hi) for s, lo, hi in fact.symbols
        ),
        lhs_index=tuple(f.substitute(moved) for f in fact.lhs_index),
        rhs_index=tuple(f.substitute(moved) for f in fact.rhs_index),
    )


def _grounded(fact: Fact) -> Fact:
    """The fact with digits that start at 0, which is what solving for them relies on."""
    digits = {s for f in fact.lhs_index if len(f.terms) > 1 for s in f.symbols}
    moved = {
        s: Affine.symbol(s) + lo for s, lo, _ in fact.symbols if s in digits and lo and s.startswith("z")
    }
    return replace(
        fact,
        symbols=tuple((s, 0, hi - lo) if s in moved else (s, lo, hi) for s, lo, hi in fact.symbols),
        lhs_index=tuple(f.substitute(moved) for f in fact.lhs_index),
        rhs_index=tuple(f.substitute(moved) for f in fact.rhs_index),
    )


def _once(fact: Fact, symbol: str) -> bool:
    """Does one coordinate of the left side alone depend on a symbol?"""
    return sum(symbol in f.symbols for f in fact.lhs_index) == 1


def _moved(model: Model, fact: Fact, symbol: str, form: Affine) -> Fact:
    """The fact with a symbol replaced."""
    here = {symbol: form}
    return _normal(
        model,
        replace(
            fact,
            lhs_index=tuple(f.substitute(here) for f in fact.lhs_index),
            rhs_index=tuple(f.substitute(here) for f in fact.rhs_index),
        ),
    )


def _edges(model: Model, facts: Sequence[Fact]) -> list[Fact]:
    """Add single positions to the ranges that they continue."""
    left = dict.fromkeys(_normal(model, f) for f in facts)
    for fact in sorted(left, key=lambda f: -len(f.symbols)):
        if fact not in left:
            continue
        grown = fact
        for i, (name, lo, hi) in enumerate(fact.symbols):
            while True:
                for edge in (lo - 1, hi):
                    single = _moved(model, grown, name, Affine(edge))
                    if single != grown and left.pop(single, 0) is None:
                        lo, hi = min(lo, edge), max(hi, edge + 1)
                        break
                else:
                    break
                symbols = (*grown.symbols[:i], (name, lo, hi), *grown.symbols[i + 1 :])
                grown = replace(grown, symbols=symbols)
        if grown != fact:
            del left[fact]
            left[grown] = None
    return list(left)


def _points(model: Model, facts: Sequence[Fact]) -> list[Fact]:
    """Make a range of two single positions that follow each other on both sides, or are one literal."""
    left = dict.fromkeys(facts)
    for fact in facts:
        for i, form in enumerate(fact.lhs_index):
            if fact not in left or not form.is_const:
                continue
            following = (f for f in left if f.lhs_index[i] == form + 1)
            joined = next(((f, p) for f in following if (p := _pair(model, fact, f, i)) is not None), None)
            if joined is not None:
                del left[fact], left[joined[0]]
                left[joined[1]] = None
    return list(left)


def _pair(model: Model, fact: Fact, after: Fact, i: int) -> Fact | None:
    """One fact of two that differ in a left coordinate by one, and in some right ones by one."""
    rest = [(f, g) for j, (f, g) in enumerate(zip(fact.lhs_index, after.lhs_index, strict=True)) if j != i]
    if (fact.lhs, fact.rhs, fact.coef, fact.symbols) != (after.lhs, after.rhs, after.coef, after.symbols):
        return None
    steps = [g - f for f, g in zip(fact.rhs_index, after.rhs_index, strict=True)]
    if any(f != g for f, g in rest) or any(d not in (ZERO, ZERO + 1) for d in steps):
        return None
    if steps and not any(d == ZERO + 1 for d in steps):  # one element twice
        return None
    name = f"z{len(fact.symbols)}"
    while name in fact.ranges:
        name += "0"
    digit = Affine.symbol(name)
    return _normal(
        model,
        replace(
            fact,
            symbols=(*fact.symbols, (name, 0, 2)),
            lhs_index=tuple(f + digit if j == i else f for j, f in enumerate(fact.lhs_index)),
            rhs_index=tuple(
                f + digit if d != ZERO else f for f, d in zip(fact.rhs_index, steps, strict=True)
            ),
        ),
    )


def _strides(model: Model, facts: Sequence[Fact]) -> list[Fact]:
    """Join facts about positions ``k*s``, ``k*s + 1``, … ``k*s + k - 1``."""
    left = dict.fromkeys(_normal(model, f) for f in facts)
    for fact in list(left):
        for name, k in _steps(fact):
            family = [fact, *(_shifted(model, fact, name, k, j) for j in range(1, k))]
            if all(f in left for f in family):
                for f in family:
                    del left[f]
                left[_widened(model, fact, name, k)] = None
                break
    return list(left)


def _steps(fact: Fact) -> Iterator[tuple[str, int]]:
    """Symbols whose coefficients have a common factor."""
    for name, _, _ in fact.symbols:
        k = math.gcd(*(f.coef(name) for f in (*fact.lhs_index, *fact.rhs_index)))
        if 1 < k <= MAX_STRIDE and fact.lhs_index and any(f.coef(name) for f in fact.lhs_index):
            yield name, k


def _shifted(model: Model, fact: Fact, name: str, k: int, j: int) -> Fact:
    def shift(f: Affine) -> Affine:
        return f + f.coef(name) // k * j

    moved = replace(
        fact,
        lhs_index=tuple(map(shift, fact.lhs_index)),
        rhs_index=tuple(map(shift, fact.rhs_index)),
    )
    return _normal(model, moved)


def _widened(model: Model, fact: Fact, name: str, k: int) -> Fact:
    """One symbol for position and stride."""

    def widen(f: Affine) -> Affine:
        c = f.coef(name)
        return f - Affine.of(0, {name: c}) + Affine.of(0, {name: c // k}) if c else f

    symbols = tuple((s, lo * k, hi * k) if s == name else (s, lo, hi) for s, lo, hi in fact.symbols)
    return _normal(
        model,
        replace(
            fact,
            symbols=symbols,
            lhs_index=tuple(map(widen, fact.lhs_index)),
            rhs_index=tuple(map(widen, fact.rhs_index)),
        ),
    )
