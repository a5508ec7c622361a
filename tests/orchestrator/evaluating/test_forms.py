"""Index forms on boxes: their arithmetic is that of every point; where it is not, the box is split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evaluating.forms import (
    Cut,
    Form,
    Split,
    TooFine,
    bounds,
    combine,
    compose,
    covering,
    digits,
    divide,
    regroup,
    regrouped,
    scaled,
    substitute,
    threshold,
)

SIZES = (2, 3, 4)
FORMS = st.tuples(
    st.integers(-9, 9), st.dictionaries(st.integers(0, 2), st.integers(-7, 7).filter(bool), max_size=3)
).map(lambda f: (f[0], tuple(sorted(f[1].items()))))


def points(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, sizes))


def at(form: Form, point: Sequence[int]) -> int:
    return form[0] + sum(c * point[v] for v, c in form[1])


@given(FORMS, FORMS, st.integers(-3, 3).filter(bool), st.integers(0, 2))
def test_forms_are_added_scaled_and_put_into_one_another(x: Form, y: Form, k: int, var: int) -> None:
    for p in points(SIZES):
        assert at(combine(x, y, k), p) == at(x, p) + k * at(y, p)
        assert at(scaled(x, k, 5), p) == k * at(x, p) + 5
        replaced = tuple(at(y, p) if v == var else n for v, n in enumerate(p))
        assert at(substitute(x, var, y), p) == at(x, replaced)
        assert at(compose(x, [y, x, y]), p) == at(x, (at(y, p), at(x, p), at(y, p)))
    values = [at(x, p) for p in points(SIZES)]
    assert bounds(x, SIZES) == (min(values), max(values))


@given(FORMS, st.integers(-20, 20))
def test_between_the_cuts_a_comparison_has_one_answer(form: Form, value: int) -> None:
    """Without it a mask would be taken for true on a cell where it is true at one corner."""
    cuts: dict[int, set[int]] = {}
    threshold(form, SIZES, value, cuts)
    cells: dict[tuple[int, ...], set[bool]] = {}
    for p in points(SIZES):
        cell = tuple(sum(c <= n for c in cuts.get(v, ())) for v, n in enumerate(p))
        cells.setdefault(cell, set()).add(at(form, p) >= value)
    assert all(len(answers) == 1 for answers in cells.values())


def test_a_comparison_that_changes_at_every_position_is_given_up() -> None:
    with pytest.raises(TooFine, match="falls into single positions"):
        threshold((0, ((0, 1), (1, 1))), (1 << 20, 1 << 20), 1 << 20, {})


@given(FORMS, st.integers(1, 7))
def test_quotients_hold_at_every_point_or_ask_for_a_split(form: Form, by: int) -> None:
    try:
        quotient, rest = divide(form, by, SIZES)
    except Split as split:
        assert 1 < split.radix < SIZES[split.var]
        return
    except Cut as cut:
        assert any(cut.cuts.values())
        assert all(0 < c < SIZES[v] for v, found in cut.cuts.items() for c in found)
        return
    for p in points(SIZES):
        assert (at(quotient, p), at(rest, p)) == divmod(at(form, p), by)


def test_positions_have_their_row_major_digits() -> None:
    form = (0, ((0, 12), (1, 4), (2, 1)))
    assert digits(form, SIZES, SIZES) == [(0, ((0, 1),)), (0, ((1, 1),)), (0, ((2, 1),))]


@pytest.mark.parametrize(("start", "stop", "radix", "size"), [(0, 12, 4, 12), (2, 10, 4, 12), (1, 9, 3, 9)])
def test_a_split_covers_every_position_once(start: int, stop: int, radix: int, size: int) -> None:
    """In an order of its own; what is before, behind and left over included."""
    parts = regrouped((((0, ((0, 1),)),), (size,)), Split(0, radix, start, stop))
    covered = [at(forms[0], p) for forms, sizes in parts for p in points(sizes)]
    assert sorted(covered) == list(range(size))


@given(st.lists(st.integers(1, 4), max_size=5), st.randoms(use_true_random=False))
def test_shapes_of_one_size_fall_into_parts_of_equal_products(source: list[int], rng: object) -> None:
    target = list(source)
    rng.shuffle(target)  # type: ignore[attr-defined]
    found = regroup(source, target)
    assert [d for part, _ in found for d in part] == list(range(len(source)))
    assert [d for _, part in found for d in part] == list(range(len(target)))
    assert all(math.prod(source[d] for d in a) == math.prod(target[d] for d in b) for a, b in found)


def test_a_piece_covers_an_index_by_its_digits_or_not_at_all() -> None:
    """A shard of 4 of 12 rows from row 4 on, in two digits."""
    piece: list[Form] = [(4, ((0, 2), (1, 1)))]
    assert covering([(4, ((0, 1),))], [(4, ((0, 1),))], (4,), (4,)) == [(0, ((0, 1),))]
    assert covering([(7, ())], piece, (2, 2), ()) == [(1, ()), (1, ())]
    assert covering([(8, ())], piece, (2, 2), ()) is None
    assert covering([(3, ())], piece, (2, 2), ()) is None
    with pytest.raises(Cut) as cut:
        covering([(0, ((0, 1),))], [(4, ((0, 1),))], (4,), (12,))
    assert cut.value.cuts == {0: {4, 8}}
