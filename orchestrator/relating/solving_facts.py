"""Facts in normal form: solving for their symbols, and joining those that say one thing in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from certificates.plan.affine import Affine, Range
from certificates.plan.types import format_rational
from certificates.proof.facts import Fact, Ref
from smtlib_emit.model import Model

from ..cells import Cell, Cut, Digits, Unfollowable, quotient, within

Literal = Fraction | bool


def solve(
    forms: Sequence[Affine],
    symbols: Mapping[str, Range],
    index: Sequence[Affine],
    ranges: Mapping[str, Range],
) -> dict[str, Affine] | None:
    """Values of ``symbols`` (in range) with ``forms = index`` on the whole box; ``None`` if there are none.

    Raises a split where only a part of the box has a solution. Symbols that no form mentions get their
    smallest value: such a fact holds for all of them.
    """
    if any(lo for lo, _ in symbols.values()) and any(_carries(form, symbols) for form in forms):
        return _from_zero(forms, symbols, index, ranges)
    # A digit of one value says nothing of the index; a mesh coordinate keeps its symbol even then.
    values = {s: Affine(lo) for s, (lo, hi) in symbols.items() if hi - lo == 1 and s.startswith("z")}
    rests: list[Affine] = []
    for form, target in zip(forms, index, strict=True):
        if form.terms and all(c < 0 for _, c in form.terms):  # counted from the end, on both sides
            form, target = form.scale(-1), target.scale(-1)
        rest = target - form.const
        terms = sorted(form.terms, key=lambda t: -t[1])
        if any(c < 0 for _, c in terms):
            return _turned(forms, symbols, index, ranges)
        for n, (symbol, coef) in enumerate(terms):
            if symbol in values:
                rest = rest - values[symbol].scale(coef)
                continue
            try:
                values[symbol], rest = quotient(rest, coef, ranges)
            except (Cut, Digits) as split:
                # Cut off what is out of reach first: its digits belong to other facts. Not so where all high
                # digits are in reach: then only low ones are not, the same ones after each.
                first, last = Affine.of(0, terms[n:]).interval(symbols)
                blocks = [value // coef for value in rest.interval(ranges)]
                if (
                    isinstance(split, Digits)
                    and symbols[symbol][0] <= blocks[0]
                    and blocks[1] < symbols[symbol][1]
                ):
                    raise
                if not within(rest, first, last + 1, ranges):
                    return None
                raise
        rests.append(rest)
    wanted = [(v, *symbols[s]) for s, v in values.items()] + [(r, 0, 1) for r in rests]
    # A box that has no solution at all must not be split in search of one.
    for form, lo, hi in wanted:
        first, last = form.interval(ranges)
        if last < lo or first >= hi:
            return None
    if not all([within(form, lo, hi, ranges) for form, lo, hi in wanted]):
        return None
    return {s: values.get(s, Affine(lo)) for s, (lo, _) in symbols.items()}


def _turned(
    forms: Sequence[Affine],
    symbols: Mapping[str, Range],
    index: Sequence[Affine],
    ranges: Mapping[str, Range],
) -> dict[str, Affine] | None:
    """As :func:`solve`, where some symbols run downwards: each is counted from its end.

    The ranks of a ring that have the sequence in a zigzag read their second piece so.
    """
    signs: dict[str, set[bool]] = {}
    for form in forms:
        for symbol, coef in form.terms:
            signs.setdefault(symbol, set()).add(coef < 0)
    down = {s for s, found in signs.items() if True in found}
    if any(len(signs[s]) > 1 for s in down):
        raise Unfollowable(f"index forms {', '.join(map(str, forms))} run upwards and downwards")
    turned = {s: Affine(lo + hi - 1) - Affine.symbol(s) for s, (lo, hi) in symbols.items() if s in down}
    values = solve([form.substitute(turned) for form in forms], symbols, index, ranges)
    return values and {s: turned[s].substitute({s: v}) if s in down else v for s, v in values.items()}


def _carries(form: Affine, symbols: Mapping[str, Range]) -> bool:
    """Do low digits that do not begin at 0 reach the next high one, as ``v`` in ``2*u + v`` with ``v`` in [1,
    3) does?"""
    terms, reach = sorted((term for term in form.terms if term[1] > 0), key=lambda term: term[1]), 0
    for symbol, coef in terms:
        if reach >= coef:
            return any(symbols[s][0] for s, c in terms if c < coef)
        reach += coef * (symbols[symbol][1] - 1)
    return False


def _from_zero(
    forms: Sequence[Affine],
    symbols: Mapping[str, Range],
    index: Sequence[Affine],
    ranges: Mapping[str, Range],
) -> dict[str, Affine] | None:
    """As :func:`solve`, with symbols counted from the first of their values."""
    moved = {s: Affine.symbol(s) + lo for s, (lo, _) in symbols.items()}
    spans = {s: (0, hi - lo) for s, (lo, hi) in symbols.items()}
    values = solve([form.substitute(moved) for form in forms], spans, index, ranges)
    return values and {s: value + symbols[s][0] for s, value in values.items()}


def as_there(
    fact: Fact,
    names: Mapping[str, Affine],
    index: Sequence[Affine],
    ranges: Mapping[str, Range],
    like: Mapping[str, Affine],
) -> dict[str, Affine] | None:
    """The symbols of a fact at the coordinates of ``like``, if it has the element there and elsewhere too."""
    if not any(_ambiguous(form, fact.ranges) for form in fact.rhs_index):
        return None
    values = {
        form.symbols[0]: like[name]
        for name, form in names.items()
        if form.symbols
        and form == Affine.symbol(form.symbols[0])
        and name in like
        and set(like[name].symbols) <= ranges.keys()
    }
    if values.keys() != fact.ranges.keys() or any(
        form.substitute(values) != target for form, target in zip(fact.rhs_index, index, strict=True)
    ):
        return None
    for s, (lo, hi) in fact.ranges.items():
        first, last = values[s].interval(ranges)
        if first < lo or last >= hi:
            return None
    return values


def _ambiguous(form: Affine, ranges: Mapping[str, Range]) -> bool:
    """Does a form take a value more than once: do low digits reach what a high one counts?"""
    reach = 0
    for symbol, coef in sorted(form.terms, key=lambda term: abs(term[1])):
        lo, hi = ranges[symbol]
        if reach >= abs(coef) and hi - lo > 1:
            return True
        reach += abs(coef) * (hi - lo - 1)
    return False


def literal_ref(sort: str, value: Literal) -> str:
    """The REF of a literal of a sort."""
    if isinstance(value, bool):
        return f"#b:{str(value).lower()}"
    return f"#{'i' if sort == 'Int' else 'f'}:{format_rational(value)}"


def _literal(ref: Ref, coef: Fraction) -> tuple[Ref, Fraction]:
    """A literal takes its coefficient in."""
    if isinstance(ref, str) and ref[:3] in ("#f:", "#i:") and coef != 1:
        return f"{ref[:3]}{coef * Fraction(ref[3:])}", Fraction(1)
    return ref, coef


def make_fact(
    model: Model,
    cell: Cell,
    lhs: Ref,
    left: Sequence[Affine],
    rhs: Ref,
    right: Sequence[Affine],
    coef: Fraction,
) -> Fact:
    """A fact over a cell, in normal form: digits joined where they can be, mesh axes by name, then ``z0,
    z1, …``.
    """
    axes = model.tensors.mesh_axes(lhs)
    forms, ranges = [*left, *right], dict(cell.ranges)
    mesh = {
        f.symbols[0]: a for f, a in zip(left, axes, strict=False) if len(f.terms) == 1 and f.terms[0][1] == 1
    }
    used = {s for f in forms for s in f.symbols}
    fixed = {s: Affine(ranges[s][0]) for s in used if ranges[s][1] - ranges[s][0] == 1 and s not in mesh}
    forms = [f.substitute(fixed) for f in forms]
    forms, ranges = _join_digits(forms, ranges, set(mesh))
    count = len(left)
    # A digit that is a coordinate of the left side takes that coordinate's values.
    shift: dict[str, Affine] = {}
    for f in forms[:count]:
        if len(f.terms) == 1 and f.terms[0][1] == 1 and f.const and f.terms[0][0] not in {*mesh, *shift}:
            s = f.terms[0][0]
            shift[s] = Affine.symbol(s) - f.const
            ranges[s] = (ranges[s][0] + f.const, ranges[s][1] + f.const)
    forms = [f.substitute(shift) for f in forms]
    names: dict[str, str] = {}
    for f, a in zip(forms, axes, strict=False):
        if len(f.terms) == 1 and f.terms[0][0] in mesh:
            names[f.terms[0][0]] = a
    for f in forms:
        for s, _ in sorted(f.terms, key=lambda t: -abs(t[1])):
            if s not in names:
                names[s] = f"z{sum(n.startswith('z') for n in names.values())}"
    renaming = {s: Affine.symbol(n) for s, n in names.items()}
    forms = [f.substitute(renaming) for f in forms]
    symbols = sorted(names, key=lambda s: (names[s].startswith("z"), list(names).index(s)))
    rhs, coef = _literal(rhs, coef)
    return Fact(
        lhs,
        rhs,
        tuple((names[s], *ranges[s]) for s in symbols),
        tuple(forms[:count]),
        tuple(forms[count:]),
        coef,
    )


def _join_digits(
    forms: list[Affine], ranges: dict[str, Range], mesh: set[str]
) -> tuple[list[Affine], dict[str, Range]]:
    """Replace ``b*u + v`` by one symbol wherever two digits only ever occur so."""
    while True:
        symbols = sorted({s for f in forms for s in f.symbols} - mesh)
        for v in symbols:
            lo, hi = ranges[v]
            if lo != 0:
                continue
            pairs = [u for u in symbols if u != v and all(f.coef(u) == hi * f.coef(v) for f in forms)]
            if pairs:
                u = pairs[0]
                joined = f"{u}|{v}"
                first, last = ranges[u]
                ranges = ranges | {joined: (first * hi, last * hi)}
                one = Affine.symbol(joined)
                forms = [f.substitute({u: Affine(), v: Affine()}) + one.scale(f.coef(v)) for f in forms]
                break
        else:
            return forms, ranges


def merge(pieces: Sequence[Fact]) -> list[Fact]:
    """Join facts that differ in one symbol's range only, where the ranges touch."""
    out: dict[int, Fact] = {}
    alike: dict[object, list[int]] = {}  # of the facts in ``out``: numbers of those that could be joined
    for number, fact in enumerate(pieces):
        key = (fact.lhs, fact.rhs, fact.coef, fact.lhs_index, tuple(s for s, _, _ in fact.symbols))
        others = alike.setdefault(key, [])
        while True:
            found = ((n, _joined(out[n], fact)) for n in others)
            partner = next(((n, joined) for n, joined in found if joined is not None), None)
            if partner is None:
                break
            others.remove(partner[0])
            del out[partner[0]]
            fact = partner[1]
        out[number] = fact
        others.append(number)
    return list(out.values())


def _joined(a: Fact, b: Fact) -> Fact | None:
    """One fact instead of two that are alike but for ranges of symbols and the right index."""
    differing = [i for i, (x, y) in enumerate(zip(a.symbols, b.symbols, strict=True)) if x != y]
    if len(differing) != 1:
        return None
    i = differing[0]
    (name, lo, hi), (_, lo2, hi2) = a.symbols[i], b.symbols[i]
    if hi != lo2 and hi2 != lo:
        return None
    right = []
    for f, g in zip(a.rhs_index, b.rhs_index, strict=True):
        joined = _line(name, f, (lo, hi), g, (lo2, hi2))
        if joined is None:
            return None
        right.append(joined)
    symbols = (*a.symbols[:i], (name, min(lo, lo2), max(hi, hi2)), *a.symbols[i + 1 :])
    return Fact(a.lhs, a.rhs, symbols, a.lhs_index, tuple(right), a.coef)


def _line(name: str, f: Affine, here: Range, g: Affine, there: Range) -> Affine | None:
    """One form that is ``f`` on a range of a symbol and ``g`` on another;
    a single position fits any slope.
    """
    if f == g:
        return f
    if here[1] - here[0] > 1 and there[1] - there[0] > 1:
        return None
    if here[1] - here[0] > 1:
        f, here, g, there = g, there, f, here
    base = f.substitute({name: Affine(here[0])})
    if there[1] - there[0] > 1:
        return g if g.substitute({name: Affine(here[0])}) == base else None
    step = g.substitute({name: Affine(there[0])}) - base
    if not step.is_const or step.const % (there[0] - here[0]):
        return None
    slope = step.const // (there[0] - here[0])
    return base + Affine.of(-slope * here[0], {name: slope})
