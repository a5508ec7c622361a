"""Regrouping of indices: which coordinates of an operand and of a result correspond."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from certificates.plan.affine import Affine
from smtlib_emit.regroup import linear, reshape_parts, unlinear

PRIMES = st.lists(st.sampled_from([1, 2, 2, 3, 5]), min_size=0, max_size=6)


def grouped(draw: st.DrawFn, factors: Sequence[int]) -> tuple[int, ...]:
    """Some shape whose sizes are products of neighbouring factors."""
    shape, size = [], 1
    for f in factors:
        size *= f
        if draw(st.booleans()):
            shape.append(size)
            size = 1
    return (*shape, size) if size > 1 else tuple(shape)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    factors = draw(PRIMES)
    return grouped(draw, factors), grouped(draw, factors)


@given(reshapes(), st.randoms(use_true_random=False))
def test_parts_tell_where_an_element_goes(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], rng: random.Random
) -> None:
    operand, result = shapes
    parts = reshape_parts(operand, result)
    assert [d for p in parts for d in p.arg] == list(range(len(operand))), "each coordinate once, in order"
    assert [d for p in parts for d in p.at] == list(range(len(result)))
    assert all(math.prod(p.arg_sizes) == math.prod(p.at_sizes) for p in parts)
    flat = rng.randrange(math.prod(operand))
    arg, at = np.unravel_index(flat, operand), np.unravel_index(flat, result)
    for p in parts:
        left = linear([Affine(int(arg[d])) for d in p.arg], p.arg_sizes)
        right = linear([Affine(int(at[d])) for d in p.at], p.at_sizes)
        assert left == right


@given(reshapes())
def test_parts_are_the_finest(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Coarser parts would be true as well, but the checker cuts as finely as it can and compares bytes."""
    for p in reshape_parts(*shapes):
        left = {math.prod(p.arg_sizes[:i]) for i in range(1, len(p.arg_sizes))}
        right = {math.prod(p.at_sizes[:i]) for i in range(1, len(p.at_sizes))}
        whole = math.prod(p.arg_sizes)
        assert not (left & right) - {1, whole}


@given(st.lists(st.integers(1, 5), max_size=4))
def test_unlinear_undoes_linear(sizes: list[int]) -> None:
    names = [f"x{i}" for i in range(len(sizes))]
    forms = [Affine.symbol(n) if size > 1 else Affine() for n, size in zip(names, sizes, strict=True)]
    ranges = {n: (0, size) for n, size in zip(names, sizes, strict=True)}
    assert unlinear(linear(forms, sizes), sizes, ranges) == forms


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(-3, 3),
    st.lists(st.tuples(st.integers(-7, 7), st.integers(1, 5)), max_size=3),
)  # fmt: skip
def test_unlinear_says_nothing_that_is_not_so(
    sizes: list[int], const: int, terms: list[tuple[int, int]]
) -> None:
    """Whatever form is asked for: an answer is in range everywhere, and linear gives the form back."""
    form = Affine.of(const, [(f"x{i}", c) for i, (c, _) in enumerate(terms)])
    ranges = {f"x{i}": (0, n) for i, (_, n) in enumerate(terms)}
    found = unlinear(form, sizes, ranges)
    if found is not None:
        assert linear(found, sizes) == form
        for f, size in zip(found, sizes, strict=True):
            lo, hi = f.interval(ranges)
            assert lo >= 0 and hi < size
