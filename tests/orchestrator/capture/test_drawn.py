"""Random routings: what is told apart by them must differ in them, and every token has different keys."""

from __future__ import annotations

import pytest
import torch

from orchestrator.capture.lowering.drawn import DRAWS, OF_MANY, Choice, drawn_keys

#: [tokens, keys, chosen]: few of many keys, and so many that all are ranked.
SIZES = ((300, 64, 4), (300, 6, 2), (5, 3, 3), (40, 8, 1))


def drawn(kind: str, ranks: int, tokens: int, count: int, chosen: int, seed: int = 0) -> torch.Tensor:
    return drawn_keys(kind, ranks, tokens, count, chosen, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", OF_MANY)
@pytest.mark.parametrize(("tokens", "count", "chosen"), SIZES)
def test_a_token_has_different_keys(kind: str, tokens: int, count: int, chosen: int) -> None:
    keys = drawn(kind, 3, tokens, count, chosen)
    assert keys.shape == (3, tokens, chosen) and keys.dtype == torch.int64
    assert all(len(set(row)) == chosen for row in keys.reshape(-1, chosen).tolist())
    assert int(keys.min()) >= 0 and int(keys.max()) < count


@pytest.mark.parametrize(("count", "chosen"), [(64, 4), (12, 4)])
def test_kinds_are_as_even_as_they_say(count: int, chosen: int) -> None:
    def counts(kind: str) -> torch.Tensor:
        return torch.bincount(drawn(kind, 1, 4000, count, chosen).flatten(), minlength=count)

    mean = 4000 * chosen / count
    assert (counts("even") - mean).abs().max() < mean / 4
    assert counts("uneven").max() > 2 * mean and 0 < counts("uneven").min() < mean / 2
    assert sorted(counts("one choice").tolist())[-chosen:] == [4000] * chosen
    never = counts("some never")
    assert int((never == 0).sum()) == count // 2 and (never[never > 0] - 2 * mean).abs().max() < mean / 2


@pytest.mark.parametrize("kind", OF_MANY)
def test_ranks_are_not_alike(kind: str) -> None:
    """Not in their keys, and not in how many tokens each key has."""
    keys = drawn(kind, 8, 200, 64, 4)
    counts = {tuple(torch.bincount(k.flatten(), minlength=64).tolist()) for k in keys}
    assert len(counts) == 8


def test_each_place_of_a_token_has_each_key() -> None:
    """No key is first because of its number."""
    keys = drawn("even", 1, 4000, 16, 3)[0]
    for place in range(3):
        seen = torch.bincount(keys[:, place], minlength=16)
        assert (seen - 250).abs().max() < 80


def test_a_choice_is_drawn_alike_each_time_and_apart_from_others() -> None:
    one = Choice((8, 2), 1, 5, 0, DRAWS)
    again, other = Choice((8, 2), 1, 5, 0, DRAWS), Choice((8, 2), 1, 5, 1, DRAWS)

    def same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
        return all(map(torch.equal, a, b))

    assert same(one.here(), again.here()) and not same(one.here(), other.here())
    assert all(map(same, one.elsewhere(3), again.elsewhere(3)))
    assert not any(same(one.here(), numbers) for numbers in one.elsewhere(3))


def test_keys_lie_along_their_dimension() -> None:
    numbers = Choice((2, 3, 7, 4), 1, 9, 0, OF_MANY).here()
    assert [n.shape for n in numbers] == [(2, 3, 7, 4)] * len(OF_MANY)
    assert all((n[:, 0] != n[:, 1]).all() and (n[:, 1] != n[:, 2]).all() for n in numbers)
