"""Drawn routings: what integers made of them are, and what has no numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from certificates.plan.types import TensorType
from orchestrator.capture.builder import Builder, Value
from orchestrator.capture.errors import LoweringError
from orchestrator.capture.lowering import routing as module
from orchestrator.capture.lowering.drawn import DRAWS, OF_MANY
from orchestrator.capture.lowering.routing import Routing, covered


def chosen(tokens: int = 8, k: int = 2, count: int = 5) -> tuple[Routing, Value]:
    b = Builder()
    ids = b.input("ids", TensorType("i64", (tokens, k)))
    routing = Routing(b)
    routing.choose(ids, count, 1)
    return routing, ids


def test_a_draw_has_different_keys_for_each_token() -> None:
    routing, ids = chosen()
    numbers = routing.of(ids)
    assert numbers is not None and len(numbers) == len(DRAWS)
    for draw in numbers:
        assert draw.shape == (8, 2) and (draw[:, 0] != draw[:, 1]).all() and int(draw.max()) < 5


def test_other_ranks_choose_otherwise_and_always_alike() -> None:
    routing, ids = chosen()
    mine, (one, other) = routing.of(ids), routing.elsewhere(ids, 2)
    assert mine is not None and one is not None and other is not None
    assert not torch.equal(mine[0], one[0]) and not torch.equal(one[0], other[0])
    again = routing.elsewhere(ids, 2)[0]
    assert again is not None and torch.equal(one[0], again[0])


def test_what_is_moved_has_moved_numbers_and_keys() -> None:
    routing, ids = chosen()
    moved = routing.b.flat(routing.b.transpose(ids, (1, 0)))
    before, after = routing.of(ids), routing.of(moved)
    assert before is not None and after is not None and routing.keys(moved) == 5
    assert torch.equal(after[3], before[3].t().reshape(-1))
    assert routing.keys(routing.b.binary("add", ids, ids)) is None


def test_of_many_choices_few_draws_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first choice says how many: numbers of all values are compared draw by draw."""
    monkeypatch.setattr(module, "MANY", 16)
    for tokens, draws in ((8, OF_MANY), (7, DRAWS)):
        routing, ids = chosen(tokens)
        later = routing.b.input("later", TensorType("i64", (9, 2)))
        routing.choose(later, 5, 1)
        zero = routing.b.constant(0, TensorType("i64", (2,)))
        assert {len(routing.of(x) or ()) for x in (ids, later, zero)} == {len(draws)}


def test_what_is_moved_from_known_numbers_takes_no_room() -> None:
    routing, ids = chosen()
    numbers = routing.of(ids)
    assert numbers is not None
    before = routing.numbers.bytes
    flat = routing.b.reshape(ids, (ids.type.size,))
    turned = routing.b.transpose(ids, (1, 0))
    routing.note(flat, tuple(n.reshape(-1) for n in numbers))
    routing.note(turned, tuple(n.t() for n in numbers))
    assert routing.numbers.bytes == before
    found = routing.of(flat)
    assert found is not None and all(
        torch.equal(a, b.reshape(-1)) for a, b in zip(found, numbers, strict=True)
    )
    with pytest.raises(LoweringError, match="two sorts of equal numbers"):
        routing.note(flat, tuple(n.reshape(-1).flip(0) for n in numbers))


def test_what_nothing_reads_any_more_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's integers, of every draw at true sizes, would stay for all other layers."""
    monkeypatch.setattr(module, "KEPT", 8 * 300)
    routing, ids = chosen()
    before = routing.of(ids)
    twice, thrice = routing.b.binary("add", ids, ids), routing.b.binary("multiply", ids, ids)
    assert before is not None and not routing.full
    for made in (twice, thrice):
        routing.note(made, before)
    assert routing.full
    moved = routing.b.transpose(thrice, (1, 0))
    routing.forget([moved])
    assert routing.of(twice) is None and not routing.rests(twice), "refused, as what never had numbers"
    assert routing.of(moved) is not None and routing.of(thrice) is not None, "what it is moved from stays"
    again = routing.of(ids)
    assert again is not None and all(map(torch.equal, before, again)), "a choice is drawn again"
    assert not routing.full


def test_what_is_computed_twice_must_be_the_same() -> None:
    routing, ids = chosen()
    twice = routing.b.binary("add", ids, ids)
    numbers = routing.of(ids)
    assert numbers is not None
    routing.note(twice, numbers)
    with pytest.raises(LoweringError, match="two sorts"):
        routing.note(twice, tuple(n + 1 for n in numbers))


def numbers(*draws: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(d) for d in draws)


@pytest.mark.parametrize(
    ("at", "size", "whole"),
    [
        (numbers([0, 1], [2, 0]), 3, True),  # every place is named in some draw
        (numbers([0, 1], [1, 0]), 3, False),
        (numbers([0, 3], [1, 2]), 3, False),
        (numbers([1, 1], [1, 1]), 3, True),  # no number of a routing
        (numbers([0, 2], [1, 1]), -1, True),  # of a sort: all numbers up to the largest
        (numbers([0, 3], [1, 1]), -1, False),
        (None, 3, True),
    ],
)
def test_every_place_is_named_in_some_draw(at: Any, size: int, whole: bool) -> None:
    assert covered(at, None, size) is whole


def test_of_as_many_rows_as_a_routing_decides_every_draw_names_all() -> None:
    of = numbers([5, 5], [5, 5, 5])
    assert covered(numbers([1, 0], [2, 0, 1]), of, 3)
    assert not covered(numbers([1, 0], [2, 0, 0]), of, 3)
