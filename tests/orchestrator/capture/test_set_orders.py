"""In a process that watches them, sets are gone through in another order wherever an order can be seen."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from orchestrator.capture.set_orders import gone_through, shuffled, turned, watch_sets


class Thing:
    """It lies somewhere, and that is its hash."""


NAMES = {"a", "b", "c"}
THINGS = {Thing(), Thing()}
TENSORS = {torch.zeros(1), torch.zeros(1)}


def _inside(look: Callable[[], object], change: Any, ends: Any) -> None:
    before = look()
    watch_sets(change)
    ends.send((before, look(), gone_through()))


def in_a_fork(look: Callable[[], object], change: Any = turned) -> tuple[Any, Any, tuple[int, int]]:
    """What it sees before and after, and how often a set was gone through: by the user, by a library."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_inside, args=(look, change, theirs))
    process.start()
    theirs.close()  # a fork that fails is an end, and nothing to wait for
    found: tuple[Any, Any, tuple[int, int]] = ours.recv()
    process.join()
    return found


def _unpacked() -> list[str]:
    a, b, c = NAMES
    return [a, b, c]


def _popped() -> list[str]:
    names = set(NAMES)
    return [names.pop(), names.pop(), names.pop()]


@pytest.mark.parametrize(
    "look",
    [
        lambda: list(NAMES),
        lambda: [x for x in NAMES],
        lambda: [*NAMES],
        lambda: [*map(str, frozenset(NAMES))],
        lambda: [*dict.fromkeys(NAMES)],
        lambda: [*"".join(NAMES)],
        lambda: [*{name: 1 for name in NAMES}],
        _unpacked,
        _popped,
    ],
)
def test_texts_are_gone_through_in_another_order(look: Callable[[], list[str]]) -> None:
    before, after, times = in_a_fork(look)
    assert sorted(before) == sorted(after) and times[0] >= 1 and not times[1]
    assert all(a != b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("things", [THINGS, TENSORS, weakref.WeakSet(THINGS)])
def test_so_are_objects(things: Iterable[object]) -> None:
    before, after, times = in_a_fork(lambda: [id(x) for x in things])
    assert before == after[::-1] and times == (1, 0)


def test_a_library_goes_through_tensors_in_the_users_name() -> None:
    shapes = {torch.zeros(1), torch.zeros(2)}
    before, after, times = in_a_fork(lambda: torch.nn.utils.parameters_to_vector(shapes).shape)
    assert before == after == (3,) and times == (0, 1)


@pytest.mark.parametrize(
    "look",
    [
        lambda: sorted(NAMES),
        lambda: ("a" in NAMES, len(NAMES), NAMES | {"b"} == NAMES),
        lambda: list({1, 2, 3, (4, 5.0), frozenset((6, 7))}),
        lambda: list({"a"}),
    ],
)
def test_what_has_one_order_or_none_stays(look: Callable[[], object]) -> None:
    """Numbers have one hash everywhere."""
    before, after, _ = in_a_fork(look)
    assert before == after


def test_membership_does_not_count_and_a_watched_order_may_stay() -> None:
    assert in_a_fork(lambda: "a" in NAMES and {"a", "b", "c"} >= NAMES) == (True, True, (0, 0))
    before, after, times = in_a_fork(lambda: list(NAMES), None)
    assert before == after and times == (1, 0)


def test_orders_that_are_drawn_are_alike_if_their_seed_is() -> None:
    items = [*range(20)]
    assert shuffled(3)(items) == shuffled(3)(items) != shuffled(4)(items)
    assert sorted(shuffled(3)(items)) == items
