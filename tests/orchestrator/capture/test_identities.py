"""A step that moves objects is refused, whatever they look like; one that makes new ones is not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from orchestrator.capture.identities import Known, Which, states_among, told_by_itself
from orchestrator.capture.processes import survey

from .moving_objects import KEPT, kept, making, moving, passing


@pytest.mark.parametrize("what", KEPT)
def test_objects_that_move_are_noticed_before_another_one_arrives(what: str) -> None:
    """Eleven that look alike, and another one that arrives in the twelfth step: the plan was VALID."""
    (problem,) = survey(kept(what, moving), [1], 1)
    assert "the step changes" in str(problem) and "model.kept[" in str(problem)


@pytest.mark.parametrize("what", ["groups", "locks", "tensors"])
def test_what_is_said_of_them(what: str) -> None:
    name = {"groups": "ProcessGroup", "locks": "lock", "tensors": "Tensor"}[what]
    (problem,) = survey(kept(what, moving), [1], 1)
    assert f"which object model.kept[0] is, from one {name} to another that was there" in str(problem)
    assert "model.kept.update" in str(problem) and "each object under one name of its own" in str(problem)


@pytest.mark.parametrize("change", [making, passing])
@pytest.mark.parametrize("what", KEPT)
def test_objects_that_stay_or_are_new_are_not(what: str, change: Callable[[Any], None]) -> None:
    assert survey(kept(what, change), [1], 1) == []


class Dull:
    """Nothing tells when it goes."""

    __slots__ = ()


@pytest.mark.parametrize("kind", [threading.Event, Dull])
def test_another_object_is_one_that_was_there(kind: type) -> None:
    before, after = Known(), Known()
    first, second, new = kind(), kind(), kind()
    was, other = Which(first, before), Which(second, before)
    assert was == Which(first, after) and other == Which(second, after)
    assert was != Which(second, after) and was == Which(new, after)
    assert was != 3
    assert repr(was) == f"one {kind.__qualname__}"


def test_an_object_that_is_gone_is_no_other() -> None:
    known, held = Known(), [threading.Event()]
    was = Which(threading.Event(), known)
    Which(held[0], known)
    after = Which(held[0], Known())
    assert was != after
    held.clear()
    gc.collect()
    assert was == after


def test_what_is_made_anew_or_told_by_what_it_holds_is_not_told_by_itself() -> None:
    assert not any(map(told_by_itself, (list, dict, tuple, set, torch.Tensor, type(iter([])))))
    assert all(map(told_by_itself, (object, type(threading.Lock()), torch.nn.Module, type, type(gc))))


def test_states_are_inputs_and_outputs_by_name() -> None:
    """An optimizer may well exchange what it keeps: the next step reads what lies there."""
    model = torch.nn.Linear(2, 2, bias=False)
    model.register_buffer("buffer", torch.zeros(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = set(map(id, states_among(model, optimizer)))
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    rate = optimizer.param_groups[0]["lr"]
    wanted = (model.weight, model.weight.grad, model.buffer, momentum, rate)
    assert set(map(id, wanted)) <= found
