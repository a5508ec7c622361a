"""What the user's code draws from the system counts, whichever way it does."""

from __future__ import annotations

import multiprocessing
import os
import random
import secrets
import tempfile
import uuid
from collections.abc import Callable
from os import urandom
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from orchestrator.capture.counters import counted, numbers, place_of
from orchestrator.capture.entropy import begin_anew, drawn, draws_counted, standing

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


def _in_a_fork(draw: Callable[[], object], ends: Any) -> None:
    begin_anew()
    with draws_counted():
        draw()
        ends.send(standing())


def where(draw: Callable[[], object]) -> str:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_a_fork, args=(draw, theirs))
    process.start()
    found: str = ours.recv()
    process.join()
    return found


def _seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(3)
    random.random()


def _seeded_late() -> None:
    random.random()
    random.seed(0)


def test_where_generators_stand_says_whether_a_seed_was_given() -> None:
    assert where(lambda: None) == where(lambda: torch.randperm(3)) == ""
    assert where(_seeded) == where(_seeded) != ""


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: np.random.rand(),
        lambda: np.random.default_rng().random(),
        lambda: random.Random().random(),
        lambda: os.urandom(1),
        torch.seed,
        _seeded_late,
    ],
)
def test_without_a_seed_they_never_stand_alike(draw: Callable[[], object]) -> None:
    assert "" != where(draw) != where(draw) != ""
