"""Ops that regroup indices (reshape, all_gather, all_to_all): how coordinates correspond, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from certificates.plan.affine import ZERO, Affine, Range


@dataclass(frozen=True, slots=True)
class Part:
    """Operand coordinates ``arg`` and result coordinates ``at`` with equal products; sizes row-major."""

    arg: tuple[int, ...]
    at: tuple[int, ...]
    arg_sizes: tuple[int, ...]
    at_sizes: tuple[int, ...]


def reshape_parts(operand: Sequence[int], result: Sequence[int]) -> list[Part]:
    """The finest parts of a reshape, left to right; coordinates of size 1 join the part on their left."""
    cuts: list[tuple[list[int], list[int]]] = []
    sides = [[d for d, n in enumerate(shape) if n > 1] for shape in (operand, result)]
    i = j = 0
    while i < len(sides[0]):
        a, b = [sides[0][i]], [sides[1][j]]
        x, y = operand[a[0]], result[b[0]]
        i, j = i + 1, j + 1
        while x != y:
            if x < y:
                a.append(sides[0][i])
                x *= operand[sides[0][i]]
                i += 1
            else:
                b.append(sides[1][j])
                y *= result[sides[1][j]]
                j += 1
        cuts.append((a, b))
    if not cuts:
        cuts.append(([], []))
    groups = []
    for side, shape in ((0, operand), (1, result)):
        owner = {d: p for p, cut in enumerate(cuts) for d in cut[side]}
        current = 0
        members: list[list[int]] = [[] for _ in cuts]
        for d in range(len(shape)):
            current = owner.get(d, current)
            members[current].append(d)
        groups.append(members)
    return [
        Part(tuple(a), tuple(b), tuple(operand[d] for d in a), tuple(result[d] for d in b))
        for a, b in zip(*groups, strict=True)
    ]


def linear(forms: Sequence[Affine], sizes: Sequence[int]) -> Affine:
    """Row-major position of coordinates."""
    total = ZERO
    for form, size in zip(forms, sizes, strict=True):
        total = total.scale(size) + form
    return total


def unlinear(form: Affine, sizes: Sequence[int], ranges: Mapping[str, Range]) -> list[Affine] | None:
    """Coordinates of a row-major position, if they are affine in the symbols and evidently in range."""
    out: list[Affine] = []
    for size in reversed(sizes[1:]):
        quotient = Affine.of(form.const // size, [(s, c // size) for s, c in form.terms if c % size == 0])
        rest = form - quotient.scale(size)
        lo, hi = _interval(rest, ranges)
        if lo is None or hi is None or lo < 0 or hi >= size:
            return None
        out.append(rest)
        form = quotient
    if not sizes:
        return [] if form == ZERO else None
    lo, hi = _interval(form, ranges)
    if lo is None or hi is None or lo < 0 or hi >= sizes[0]:
        return None
    return [form, *reversed(out)]


def _interval(form: Affine, ranges: Mapping[str, Range]) -> tuple[int, int] | tuple[None, None]:
    return form.interval(ranges) if all(s in ranges for s in form.symbols) else (None, None)
