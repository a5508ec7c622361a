"""A function stands for another one in whatever holds it by itself, and nowhere afterwards."""

from __future__ import annotations

import datetime
import functools
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

from orchestrator.capture.answers import Answer
from orchestrator.capture.asking import asked
from orchestrator.capture.counters import reached
from orchestrator.capture.errors import StateError
from orchestrator.capture.holders import standing_in


def _default(now: Any = time.monotonic) -> Any:
    return now()


def _by_name(*, now: Any = time.monotonic) -> Any:
    return now()


class Kept:
    def __init__(self, now: Any = time.monotonic) -> None:
        self.now = now


class Slotted:
    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = time.monotonic


class Own:
    now = time.monotonic
    static = staticmethod(time.monotonic)
    since = property(lambda self: self.now())


@dataclass
class Timer:
    begun: float = field(default_factory=time.monotonic)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.inner.now = time.monotonic


KEPT, SLOTTED, NET = Kept(), Slotted(), Net()
TABLE = {"clocks": [(time.monotonic, 1)]}
PARTIAL = functools.partial(functools.partial(time.monotonic))
SET, SETS = {time.monotonic}, {frozenset((time.monotonic,))}
PAIR = namedtuple("Pair", "now other")(time.monotonic, 0)
TODAY = datetime.datetime.now
ENCLOSED = (lambda now: lambda: now())(time.monotonic)
HELD: dict[str, Callable[[], Any]] = {
    "a default": lambda: _default(),
    "a default by name": lambda: _by_name(),
    "an attribute": lambda: KEPT.now(),
    "a slot": lambda: SLOTTED.now(),
    "a variable of a class": lambda: Own().now(),
    "a static method": lambda: Own.static(),
    "a property": lambda: Own().since,
    "a factory": lambda: Timer().begun,
    "a tuple in a list in a dictionary": lambda: TABLE["clocks"][0][0](),
    "a partial": lambda: PARTIAL(),
    "a named tuple": lambda: PAIR.now(),
    "a set": lambda: next(iter(SET))(),
    "a frozen set in a set": lambda: next(iter(next(iter(SETS))))(),
    "a method of a class": lambda: TODAY(),
    "a closure": lambda: ENCLOSED(),
    "a module of the model": lambda: NET.inner.now(),
}


def _holders(step: Callable[[], Any]) -> tuple[tuple[str, object], ...]:
    return reached(step, NET, SGD(NET.parameters(), lr=0.1)).holders


@pytest.mark.parametrize("held", HELD)
def test_what_a_held_clock_gives_is_known_to_come_from_one(held: str) -> None:
    """``def late(now=time.monotonic): return now() > 3600`` left out an all-reduce, and was VALID."""
    step = HELD[held]
    holders = _holders(step)
    with asked(lambda error: None), standing_in(holders):
        assert type(step()).__module__ == Answer.__module__
    assert not isinstance(step(), Answer)


@pytest.mark.parametrize(
    ("held", "path"),
    [(lambda: iter(time.monotonic, None), "held.0"), (lambda: map(time.strftime, ["%H"]), "held.0")],
)
def test_what_cannot_be_changed_is_refused(held: Callable[[], Any], path: str) -> None:
    holders = _holders(_holding(held()))
    with pytest.raises(StateError) as error, asked(lambda error: None), standing_in(holders):
        raise AssertionError("it stands for nothing here")
    assert error.value.message.startswith(f"{path} is held where a trace cannot follow what it gives (")
    assert error.value.instead == "a call of the function by its own name, as time.monotonic()"


def _holding(held: object) -> Callable[[], object]:
    return lambda: held


def test_what_the_step_puts_elsewhere_stays() -> None:
    kept = Kept()
    with asked(lambda error: None), standing_in(_holders(lambda: kept.now())):
        kept.now = len
    assert kept.now is len


def test_a_function_that_nothing_stands_for_is_left_alone() -> None:
    kept = Kept(now=max)
    with asked(lambda error: None), standing_in(_holders(lambda: kept.now(1, 2))):
        assert kept.now is max


def test_a_class_that_is_a_base_or_in_an_annotation_is_not_held() -> None:
    class Later(datetime.timedelta): ...

    def wait(until: datetime.timedelta | int | None = None) -> None: ...

    wait.__annotations__["until"] = datetime.timedelta | int
    base, said = datetime.timedelta, wait.__annotations__["until"]
    with asked(lambda error: None), standing_in(_holders(lambda: wait(Later(1)))):
        assert Later.__mro__[1] is base and wait.__annotations__["until"] is said


def test_what_stands_for_a_function_goes_on_holding_it() -> None:
    """It called itself without an end."""
    with asked(lambda error: None):
        stands = time.monotonic
        with standing_in(_holders(lambda: stands())):
            assert isinstance(stands(), Answer)


def test_what_the_step_takes_away_stays_away() -> None:
    table, queue, members = {"now": time.monotonic}, [time.monotonic], {time.monotonic}

    def step() -> None:
        table.clear(), queue.clear(), members.clear()

    with asked(lambda error: None), standing_in(_holders(step)):
        step()
    assert not table and not queue and not members
