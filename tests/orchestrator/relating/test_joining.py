"""Joining pieces: nothing is said that they did not say, and one relation in pieces becomes one fact."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates.plan.affine import Affine
from certificates.proof.facts import Fact
from orchestrator.relating.joining import join
from smtlib_emit.model import Model
from tests.orchestrator.relating.test_reordered import two

Row = tuple[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(two(lambda b, x, y, z: x + y, lambda b, x, y, z: x + y))


def rows(fact: Fact) -> list[Row]:
    """The equations that a fact stands for."""
    names = [s for s, _, _ in fact.symbols]
    out = []
    for values in itertools.product(*(range(lo, hi) for _, lo, hi in fact.symbols)):
        at = dict(zip(names, values, strict=True))
        out.append(
            (tuple(f.evaluate(at) for f in fact.lhs_index), tuple(f.evaluate(at) for f in fact.rhs_index))
        )
    return out


def piece(left: Affine, right: Affine, *symbols: tuple[str, int, int]) -> Fact:
    return Fact("s:x", "s:y", symbols, (left, Affine()), (right, Affine()), Fraction(1))


Z0, Z1 = Affine.symbol("z0"), Affine.symbol("z1")


def test_single_positions_strides_and_ranges_become_one(model: Model) -> None:
    """What a fused projection with interleaved rotary halves comes apart into."""
    pieces = [
        piece(Affine(0), Affine(7)),
        piece(Affine(1), Affine(8)),
        piece(Z0.scale(2), Z0.scale(2) + 7, ("z0", 1, 5)),
        piece(Z0.scale(2) + 1, Z0.scale(2) + 8, ("z0", 1, 4)),
        piece(Affine(9), Affine(16)),
        piece(Z0 + 10, Z0 + 17, ("z0", 0, 6)),
    ]
    (whole,) = join(model, pieces)
    assert sorted(rows(whole)) == [((p, 0), (p + 7, 0)) for p in range(16)]


def test_digits_are_joined_over_a_missing_edge(model: Model) -> None:
    pieces = [
        piece(Z0.scale(4) + Z1, Z0.scale(4) + Z1 + 3, ("z0", 1, 3), ("z1", 0, 4)),
        piece(Z0, Z0 + 3, ("z0", 0, 4)),
    ]
    (whole,) = join(model, pieces)
    assert len(rows(whole)) == 12 and len(whole.symbols) == 1


def test_what_begins_a_period_early_is_joined(model: Model) -> None:
    """Periods of 6 whose last two places are apart, counted from the first period or from one before."""
    whole = piece(Z0.scale(6) + Z1, Z0.scale(6) + Z1, ("z0", 0, 4), ("z1", 4, 6))
    early = piece(Z0.scale(6) + Z1, Z0.scale(6) + Z1, ("z0", -1, 3), ("z1", 6, 10))
    (joined,) = join(model, [whole, early])
    assert sorted(rows(joined)) == [((p, 0), (p, 0)) for p in range(24)]


def test_single_places_of_each_period_are_joined_whichever_period_begins(model: Model) -> None:
    """Left over where a first period came apart otherwise than the others."""
    pieces = [
        *(piece(Affine(p), Affine(p)) for p in range(4)),
        *(piece(Z0.scale(6) + p, Z0.scale(6) + p, ("z0", 0, 3)) for p in (6, 7, 8, 9)),
        piece(Z0.scale(6) + Z1 + 4, Z0.scale(6) + Z1 + 4, ("z0", 0, 4), ("z1", 0, 2)),
    ]
    (joined,) = join(model, pieces)
    assert sorted(rows(joined)) == [((p, 0), (p, 0)) for p in range(24)]


def test_different_factors_and_targets_stay_apart(model: Model) -> None:
    a = piece(Z0, Z0, ("z0", 0, 2))
    b = Fact("s:x", "s:y", (("z0", 2, 4),), (Z0, Affine()), (Z0, Affine()), Fraction(2))
    assert len(join(model, [a, b])) == 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_is_added_or_lost(model: Model, data: st.DataObject) -> None:
    """Random pieces of a random map, some of them left out."""
    n, slope, shift = 24, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 5))
    free, pieces = set(range(n)), []
    while free:
        start = min(free)
        step = data.draw(st.sampled_from([1, 1, 2, 3]))
        count = 1
        limit = data.draw(st.integers(1, 8))
        while count < limit and start + step * count in free:
            count += 1
        taken = [start + step * i for i in range(count)]
        free -= set(taken)
        if data.draw(st.integers(0, 5)) == 0:
            continue
        if count == 1:
            pieces.append(piece(Affine(start), Affine(slope * start + shift)))
        else:
            right = Z0.scale(slope * step) + slope * start + shift
            pieces.append(piece(Z0.scale(step) + start, right, ("z0", 0, count)))
    joined = join(model, pieces)
    assert len(joined) <= len(pieces)
    assert sorted(r for f in joined for r in rows(f)) == sorted(r for f in pieces for r in rows(f))


def test_pieces_at_one_distance_are_one_whatever_they_are(model: Model) -> None:
    """Corners, edges and the middle, as of windows that were rolled: no two of them join."""
    ranges = model.tensors.ranges("s:x")
    first, rest = Affine(), [Affine(i) for i in range(1, ranges[0][1])]
    facts = [Fact("s:x", "s:y", (("z0", *ranges[1]),), (at, Z0), (at, Z0), Fraction(1)) for at in rest[::2]]
    facts += [
        Fact("s:x", "s:y", (), (at, Affine(i)), (at, Affine(i)), Fraction(1))
        for at in [first, *rest[1::2]]
        for i in reversed(range(ranges[1][1]))
    ]
    (whole,) = join(model, facts)
    assert sorted(rows(whole)) == sorted(row for fact in facts for row in rows(fact))
    assert len(join(model, facts[:-1])) > 1, "an element is missing"
    assert len(join(model, [*facts[:-1], facts[0]])) > 1, "another one is there twice"
