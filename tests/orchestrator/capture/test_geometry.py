"""Where tensors lie, against the sets of elements that PyTorch shows."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from orchestrator.capture.geometry import Geometry, meet


def elements(place: Geometry) -> list[int]:
    """In row-major order."""
    index = itertools.product(*(range(n) for n in place.size))
    return [place.offset + sum(i * s for i, s in zip(at, place.stride, strict=True)) for at in index]


def random_place(rng: random.Random) -> Geometry:
    rank = rng.randint(1, 3)
    size = [rng.randint(1, 4) for _ in range(rank)]
    return Geometry.of(size, [rng.choice([0, 1, 1, 2, 3, 4, 6, 8, 12, 24]) for _ in size], rng.randint(0, 9))


def test_tensors_meet_where_they_share_an_element() -> None:
    """Against the sets of elements: never "no" where there is a common one."""
    base = torch.arange(24).reshape(4, 6)
    views = [base, base[1], base[:, 2], base[::2], base[1::2, 1:4], base.t()[2:, 1:3], base.flatten()[5:17]]
    for a in views:
        for b in views:
            common = bool(set(a.flatten().tolist()) & set(b.flatten().tolist()))
            places = [Geometry.of(v.shape, v.stride(), v.storage_offset()) for v in (a, b)]
            shown = meet(*places)
            assert shown or not common


@pytest.mark.parametrize("seed", range(20))
def test_a_tensor_that_is_called_distinct_shows_no_element_twice(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        place = random_place(rng)
        found = elements(place)
        assert not place.distinct or len(set(found)) == len(found), place
        assert place.distinct or not place.dense


def test_columns_and_diagonals_are_distinct_and_windows_are_not() -> None:
    whole = torch.arange(24).reshape(4, 6)
    views = (whole[:, 2:4], whole.t()[1:3], whole.diagonal(), whole[::2, ::3], whole[:, :1].expand(4, 2))
    found = [Geometry.of(v.shape, v.stride(), v.storage_offset()).distinct for v in views]
    assert found == [True, True, True, True, False]
    assert not Geometry.of((4, 3), (1, 1), 0).distinct
    assert not Geometry.of((3, 0), (1, 1), 0).distinct, "nothing lies nowhere"


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_a_tensor_with_gaps_lies_among_its_elements(seed: int) -> None:
    """Numbers of the elements of the one, counted by falling strides, are what the other shows."""
    rng = random.Random(seed)
    inside = 0
    for _ in range(300):
        place, part = random_place(rng), random_place(rng)
        if not place.distinct:
            continue
        own = {element: number for number, element in enumerate(sorted(elements(place)))}
        found = part.within(place)
        if found is not None:
            inside += 1
            assert elements(found) == [own[element] for element in elements(part)], (place, part)
        assert place.within(place) is not None
        if place.dense and set(elements(part)) <= own.keys() and part.size == (1,):
            assert found is not None
    assert inside
