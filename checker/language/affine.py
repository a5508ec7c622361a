"""Affine forms over named integer symbols, with exact interval arithmetic (docs/format.md, AFFINE)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Ranges = Mapping[str, tuple[int, int] | None]
"""Half-open range of every symbol; None is unbounded."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`const` plus the sum of coefficient times symbol; terms sorted by name, no zero coefficient."""

    const: int
    terms: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def symbol(name: str) -> Affine:
        return Affine(0, ((name, 1),))

    @staticmethod
    def total(parts: Iterable[tuple[int, Affine]]) -> Affine:
        """The sum of coefficient times form."""
        const, terms = 0, dict[str, int]()
        for factor, form in parts:
            const += factor * form.const
            for name, c in form.terms:
                terms[name] = terms.get(name, 0) + factor * c
        return Affine(const, tuple(sorted((s, c) for s, c in terms.items() if c)))

    def shift(self, offset: int) -> Affine:
        return Affine(self.const + offset, self.terms)

    def names(self) -> set[str]:
        return {name for name, _ in self.terms}

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        return Affine.total([(1, Affine(self.const))] + [(c, values[s]) for s, c in self.terms])

    def interval(self, ranges: Ranges) -> tuple[float, float]:
        """Smallest closed interval that holds all values; the ends are integers or infinite."""
        low: float = self.const
        high: float = self.const
        for name, c in self.terms:
            bounds = ranges[name]
            if bounds is None:
                return (-math.inf, math.inf)
            ends = c * bounds[0], c * (bounds[1] - 1)
            low, high = low + min(ends), high + max(ends)
        return (low, high)


def row_major(forms: Iterable[Affine], sizes: Iterable[int]) -> Affine:
    """The row-major number of an index in a box of these sizes."""
    result = Affine(0)
    for form, size in zip(forms, sizes, strict=True):
        result = Affine.total([(size, result), (1, form)])
    return result


def evident(form: Affine, low: int | None, high: int | None, ranges: Ranges) -> bool:
    """`low <= form` and `form < high`, by interval arithmetic over the symbols' ranges (None: not asked)."""
    first, last = form.interval(ranges)
    return (low is None or low <= first) and (high is None or last < high)
