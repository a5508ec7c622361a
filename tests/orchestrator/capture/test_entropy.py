"""What the user's code draws from the system counts, whichever way it does."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import uuid
from collections.abc import Callable
from os import urandom
from secrets import token_hex

import pytest
from torch import nn, optim

from orchestrator.capture.counters import counted, numbers, place_of
from orchestrator.capture.entropy import drawn, draws_counted

OURS = random.SystemRandom()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: secrets.randbelow(10),
        lambda: token_hex(4),
        lambda: os.urandom(4),
        lambda: urandom(4),
        lambda: OURS.random(),
        lambda: uuid.uuid4(),
    ],
)
def test_random_numbers_of_the_system_count(draw: Callable[[], object]) -> None:
    """A step that trains on one draw in a thousand otherwise was proved."""
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with draws_counted():
        before = dict(numbers(draw, model, optimizer))
        draw()
        after = numbers(draw, model, optimizer)
    error = counted(before, after, lambda path: place_of(path, draw, model, optimizer))
    assert error is not None and "random numbers of the system" in error.message
    assert "an entry of the batch" in (error.instead or "")


def test_what_others_draw_does_not_count() -> None:
    was = drawn()
    with draws_counted():
        random.random()
        tempfile.mktemp()
    os.urandom(4)
    assert drawn() == was
