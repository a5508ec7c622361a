"""Pairs that agree at reduced sizes by accident: null vectors of families of terms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

from checker.language.proof import Element, Tensor
from checker.rules.normalise import Normaliser

from .stages import Direct, Pair
from .terms import FUNCTIONS, Random, Sizes, Term, free, number


def total(terms: Sequence[Term]) -> Term:
    result = terms[0]
    for t in terms[1:]:
        result = ("+", result, t)
    return result


def product(terms: Sequence[Term]) -> Term:
    result = terms[-1]
    for t in reversed(terms[:-1]):
        result = ("*", t, result)
    return result


def diagrams(g: Random, scope: tuple[str, ...]) -> list[Term]:
    """Sums of products of one multiset of atoms, variables identified at random (sums of powers, traces)."""
    rng = g.rng
    if not scope and rng.random() < 0.1:
        return power_sums(g, rng.randint(2, 4))
    style, wrapped = rng.choice(("power", "trace", "mixed", "function")), rng.choice((0, 0, 0.2, 1))
    degree, count = rng.randint(2, 4), rng.randint(4, 7)
    found = []
    for _ in range(count):
        bound = tuple(g.variable("i") for _ in range(rng.randint(1, min(degree, 3))))
        pool = (*bound, *bound, *scope)
        atoms: list[Term] = []
        for k in range(degree):
            v, w = rng.choice(pool), rng.choice(pool)
            matrix = style == "trace" or (style == "mixed" and k % 2 == 1)
            atom: Term = ("L", "c", (v, w)) if matrix else ("L", "a", (v,))
            atoms.append(("F", FUNCTIONS[k % 2], atom) if style == "function" else atom)
        found.append(summed(g, bound, atoms, wrapped))
    return found


def power_sums(g: Random, degree: int) -> list[Term]:
    """All products of power sums of this degree; half of the time every sum is written `m(t, t)`."""
    wrapped, letter = g.rng.random() < 0.5, g.rng.choice("ab")
    found = []
    for cuts in itertools.product((False, True), repeat=degree - 1):
        parts = [1]
        for cut in cuts:
            parts[-1:] = [parts[-1], 1] if cut else [parts[-1] + 1]
        if parts != sorted(parts):
            continue
        factors = []
        for power in parts:
            v = g.variable("i")
            t: Term = ("S", v, product([("L", letter, (v,))] * power))
            factors.append(("m", t, t) if wrapped else t)
        found.append(product(factors))
    return found


def summed(g: Random, bound: Sequence[str], atoms: Sequence[Term], wrapped: float) -> Term:
    """The sum of a product over the bound variables, as a product of connected parts; some are `m(t, t)`."""
    parts: list[tuple[set[str], list[Term]]] = []
    for atom in atoms:
        inside, rest = set(free(atom)) & set(bound), []
        joined = [atom]
        for names, members in parts:
            if names & inside:
                inside, joined = inside | names, members + joined
            else:
                rest.append((names, members))
        parts = [*rest, (inside, joined)]
    factors = []
    for names, members in parts:
        t = product(members)
        for v in sorted(names):
            t = ("S", v, t)
        factors.append(("m", t, t) if names and g.rng.random() < wrapped else t)
    return product(factors)


def arguments(g: Random, scope: tuple[str, ...]) -> list[Term]:
    """Sums of functions whose arguments coincide when a class has few representatives."""
    rng = g.rng
    function, fold, few = rng.choice(FUNCTIONS), rng.choice("SSSM"), rng.choice((1, 2, 2, 3))
    found = []
    for _ in range(rng.randint(3, 6)):
        v, w, k = g.variable("i"), g.variable("i"), g.variable("i")
        letters: list[Term] = [("L", "a", (rng.choice((v, v, w, *scope)),)) for _ in range(2)]
        ratio = number(rng.choice((1, 1, -1, 2)), 1, "i", few)
        parts: list[Term] = [
            rng.choice((("*", ratio, letters[0]), ("*", number(rng.choice((2, -1))), letters[0]), letters[0]))
        ]
        if rng.random() < 0.6:
            parts.append(("S", k, ("L", "a", (k,))))
        if rng.random() < 0.4:
            parts.append(("*", number(-1, 1, "i", few), letters[1]))
        t: Term = total(parts)
        t = ("F", function, t) if rng.random() < 0.8 or fold == "S" else t
        for name in (v, w):
            if name in free(t):
                t = (fold, name, t)
        found.append(t)
    return found


def accidents(g: Random, family: Sequence[Term], sizes: Sizes, lower: int) -> list[tuple[Term, Term]]:
    """Pairs built from linear relations that hold at the width less `lower`, though perhaps not beyond."""
    together = Pair(number(0), total(family), sizes)
    needed = together.width()
    stage = together.stage(together.representatives(needed, lower))
    normaliser = Normaliser(Direct(together.sides, stage, "", needed).cases[0][2])
    reps = [r for rep in stage.cases[0].reps[1:] for r in rep]
    forms = []
    for t in family:
        name, own = together.sides.known["s", t]
        at = tuple((0, reps[i]) for i, v in enumerate(together.dims) if v in own)
        forms.append(normaliser.normal(Element(Tensor("s", name), at)))
    pairs = []
    for vector in relations(forms):
        left = [scaled(c, t) for c, t in zip(vector, family, strict=True) if c > 0]
        right = [scaled(-c, t) for c, t in zip(vector, family, strict=True) if c < 0]
        pairs.append((total(left), total(right) if right else number(0)))
    g.rng.shuffle(pairs)
    return pairs


def scaled(c: Fraction, t: Term) -> Term:
    return t if c == 1 else ("*", number(c), t)


def relations(forms: Sequence[Mapping[tuple[int, ...], Fraction]]) -> list[list[Fraction]]:
    """A basis of the vectors c with sum_k c_k forms[k] = 0."""
    monomials = list(dict.fromkeys(m for form in forms for m in form))
    rows = [[form.get(m, Fraction(0)) for form in forms] for m in monomials]
    pivots: list[int] = []
    done = 0
    for column in range(len(forms)):
        at = next((i for i in range(done, len(rows)) if rows[i][column]), None)
        if at is None:
            continue
        rows[done], rows[at] = rows[at], rows[done]
        head = rows[done][column]
        rows[done] = [x / head for x in rows[done]]
        for i, row in enumerate(rows):
            if i != done and row[column]:
                factor = row[column]
                rows[i] = [x - factor * y for x, y in zip(row, rows[done], strict=True)]
        pivots.append(column)
        done += 1
    basis = []
    for column in range(len(forms)):
        if column not in pivots:
            vector = [Fraction(0)] * len(forms)
            vector[column] = Fraction(1)
            for i, pivot in enumerate(pivots):
                vector[pivot] = -rows[i][column]
            basis.append(vector)
    return basis
