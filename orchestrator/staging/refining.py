"""Variables of a recipe cut at digits that others have at the same coordinate.

Rows of a rank times all rows, ``x[4 * dp + i, k] * x[k, j]``: the first coordinate of ``x`` has the digits
``dp`` and ``i``, and ``k`` without any. A tree has one piece for all of a coordinate, so ``k`` is
``4 * k' + k''`` there, and ``j`` likewise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from networkx.utils import UnionFind

from certificates.plan.affine import Affine
from smtlib_emit.model import Model

from ..relating.recipes import AlgebraRecipe, Forms, Use
from .algebra import Coordinate, aligned_by


def refined(model: Model, recipe: AlgebraRecipe) -> AlgebraRecipe | None:
    """The recipe with all variables cut; ``None`` if there is nothing to cut."""
    found = recipe
    while True:
        at = next(_cuts(model, found), None)
        if at is None:
            return None if found is recipe else found
        found = _cut(found, *at)


def _cuts(model: Model, recipe: AlgebraRecipe) -> Iterator[tuple[str, int]]:
    """Variables with a number of their values after which another one at their coordinate has a digit."""
    aligned = UnionFind()
    for x, y in aligned_by(model, recipe.expand, dict.fromkeys(use.ref for use in recipe.uses)):
        aligned.union(x, y)
    digits: dict[Coordinate, dict[tuple[int, str], None]] = {}
    for use in recipe.uses:
        for c, form in enumerate(use.at):
            here = digits.setdefault(aligned[use.ref, c], {})
            here |= {(coef, s): None for s, coef in form.terms if coef > 0 and _size(recipe, s) > 1}
    for here in digits.values():
        marks = sorted({mark for coef, s in here for mark in (coef, coef * _size(recipe, s))})
        for coef, symbol in here:
            end = coef * _size(recipe, symbol)
            inside = (m for m in marks if coef < m < end and m % coef == 0 and end % m == 0)
            yield from ((symbol, mark // coef) for mark in inside)


def _size(recipe: AlgebraRecipe, symbol: str) -> int:
    low, high = recipe.ranges[symbol]
    return high - low


def _cut(recipe: AlgebraRecipe, symbol: str, step: int) -> AlgebraRecipe:
    """The recipe with two variables for one: multiples of ``step``, and what lies between."""
    low, high = recipe.ranges[symbol]
    major, minor = f"{symbol}>", f"{symbol}<"
    value = {symbol: Affine.of(low, {major: step, minor: 1})}

    def at(forms: Forms) -> Forms:
        return tuple(form.substitute(value) for form in forms)

    ranges = {s: r for s, r in recipe.ranges.items() if s != symbol}
    return replace(
        recipe,
        instances=tuple(replace(i, values=at(i.values)) for i in recipe.instances),
        uses=tuple(Use(use.ref, at(use.at)) for use in recipe.uses),
        ranges={**ranges, major: (0, (high - low) // step), minor: (0, step)},
        goal={s: form.substitute(value) for s, form in recipe.goal.items()},
        pairs=(),
    )
