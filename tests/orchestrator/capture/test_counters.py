"""Numbers in Python that a step can reach: a counter that is not seen makes one step stand for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.capture.counters import Numbers, counted, line_of, numbers, place_of


class Counting(nn.Linear):
    calls = 0


def model() -> tuple[nn.Module, torch.optim.Optimizer]:
    made = Counting(2, 2)
    return made, torch.optim.SGD(made.parameters(), lr=0.1)


def step() -> None: ...


def hook(kind: str) -> Callable[[nn.Module], Numbers]:
    """A module's hook that holds a counter."""

    def change(made: nn.Module) -> Numbers:
        held = {"calls": 0}

        def called(*_: Any, held: Any = held) -> None: ...

        getattr(made, kind)(called)
        return held

    return change


@pytest.mark.parametrize(
    "kind", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_a_counter_in_a_hook_is_seen(kind: str) -> None:
    made, optimizer = model()
    held: Any = hook(kind)(made)
    before = dict(numbers(step, made, optimizer))
    held["calls"] += 1
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and "calls" in error.message and "from 0 to 1" in error.message


@pytest.mark.parametrize("name", ["calls", "_calls", "training"])
def test_an_attribute_of_a_module_counts_public_or_private(name: str) -> None:
    made, optimizer = model()
    setattr(made, name, 0)
    before = dict(numbers(step, made, optimizer))
    setattr(made, name, 1)
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and f"model.{name}" in error.message


def test_a_module_that_the_step_holds_counts_like_the_model() -> None:
    """A teacher, a loss module: in a closure, a global or an object of the user's."""
    made, optimizer = model()
    teacher = nn.Sequential(nn.Linear(2, 2))
    teacher[0]._calls = 0

    def taught() -> object:
        return teacher

    before = dict(numbers(taught, made, optimizer))
    teacher[0]._calls = 1
    error = counted(before, numbers(taught, made, optimizer))
    assert error is not None and "teacher.0._calls" in error.message


@pytest.mark.parametrize("name", ["calls", "_calls"])
def test_an_attribute_of_an_optimizer_counts_public_or_private(name: str) -> None:
    made, optimizer = model()
    setattr(optimizer, name, 0)
    before = dict(numbers(step, made, optimizer))
    setattr(optimizer, name, 1)
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and f"optimizer.{name}" in error.message


def test_the_attributes_of_an_optimizer_and_its_groups_count() -> None:
    made, optimizer = model()
    before = dict(numbers(step, made, optimizer))
    optimizer.param_groups[0]["momentum"] = 0.5
    error = counted(before, numbers(step, made, optimizer))
    assert error is not None and "param_groups[0]['momentum']" in error.message


def test_a_generator_counts_by_its_position_and_its_variables() -> None:
    def count() -> Iterator[int]:
        n = 0
        while n < 3:
            n += 1
            yield n

    made, optimizer = model()
    source = count()

    def reads() -> int:
        return next(source)

    before = dict(numbers(reads, made, optimizer))
    reads()
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "a later step may do something else" in error.message
    first = dict(numbers(reads, made, optimizer))
    reads()
    error = counted(first, numbers(reads, made, optimizer))
    assert error is not None and "changes n," in error.message and "from 1 to 2" in error.message
    assert list(source) == [3]  # its frame is gone
    assert numbers(reads, made, optimizer)["the position of source"] == -1


@pytest.mark.parametrize(("depth", "seen"), [(3, True), (9, False)])
def test_containers_are_followed_to_a_depth(depth: int, seen: bool) -> None:
    innermost: list[Any] = [0]
    held: list[Any] = innermost
    for _ in range(depth):
        held = [held]

    def reads() -> Any:
        return held

    made, optimizer = model()
    before = dict(numbers(reads, made, optimizer))
    innermost[0] = 1
    assert (counted(before, numbers(reads, made, optimizer)) is not None) == seen


class Lazy(dict[str, Any]):
    """A dictionary that would import what it can give, as a registry of models does."""

    def items(self) -> Any:
        raise ImportError("a model that needs another library")

    def __len__(self) -> int:
        raise ImportError("a model that needs another library")


def test_a_lazy_dictionary_counts_by_what_it_holds() -> None:
    held = Lazy(calls=0)

    def reads() -> Any:
        return held

    made, optimizer = model()
    before = dict(numbers(reads, made, optimizer))
    held["calls"] = 1
    assert counted(before, numbers(reads, made, optimizer)) is not None
    before = dict(numbers(reads, made, optimizer))
    held["more"] = None
    error = counted(before, numbers(reads, made, optimizer))
    assert error is not None and "the position of held" in error.message


def test_the_line_that_changes_a_number_is_found() -> None:
    """The line of the definition says nothing to somebody who has to find `n += 1` in a large project."""
    made, optimizer = model()
    held = {"calls": 0, "others": 0}

    def helps() -> int:
        held["others"] += 1
        return 1

    def reads() -> None:
        held["others"] += 1
        held["calls"] += helps()
        held["others"] += 1

    place = place_of("held['calls']", reads, made, optimizer)
    assert place is not None and place.holder is held
    first = reads.__code__.co_firstlineno
    assert line_of(place.read, reads) == (__file__, first + 2, "reads")
    assert line_of(lambda: held["others"], reads) == (__file__, first + 1, "reads")
    assert line_of(lambda: 0, reads) is None


def test_a_number_that_a_library_changes_is_told_at_the_line_that_calls_it() -> None:
    made, optimizer = model()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)

    def schedules() -> None:
        optimizer.step()
        scheduler.step()

    place = place_of("scheduler.last_epoch", schedules, made, optimizer)
    assert place is not None and place.holder is scheduler
    line = schedules.__code__.co_firstlineno + 2
    assert line_of(place.read, schedules) == (__file__, line, "schedules")


def changes_nothing() -> None: ...


def test_a_run_that_fails_leaves_a_refusal_without_a_line() -> None:
    made, optimizer = model()

    def fails() -> None:
        raise ValueError

    made.calls = 1
    before = dict(numbers(changes_nothing, made, optimizer))
    made.calls = 2
    error = counted(
        before,
        numbers(changes_nothing, made, optimizer),
        lambda path: place_of(path, changes_nothing, made, optimizer),
        fails,
    )
    assert error is not None and error.frame is None and "model.calls" in error.message
