"""A backward pass reads what a thread of its own holds, as in a job, and not what the step has set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch

from orchestrator.capture import device_threads
from orchestrator.capture.device_threads import held_for_the_engine, threads_of_the_engine
from orchestrator.capture.processes import survey, trace_ranks

from .in_backward_passes import (
    SET,
    count_here,
    count_in_a_variable,
    of_which_number,
    of_which_thread,
    stepping,
)
from .world import one_layer


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("asks", SET)
def test_what_the_step_has_set_is_unset_in_its_backward_pass(asks: str, hooked: bool) -> None:
    """Gradients were times 31 in a trace, and in no job on a GPU."""
    for traced in trace_ranks(one_layer("asked", stepping(SET[asks], hooked)), [None, 1], 1):
        assert traced.program is not None
        constants = [str(d.attr("value")) for d in traced.program.drafts if d.name == "constant"]
        assert "31" not in constants and "17" not in constants


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (count_here, "LOCAL, in backward passes['count'], which is no tensor, from"),
        (count_in_a_variable, "COUNTED, in backward passes, which is no tensor, from"),
        (of_which_thread, "threading.current_thread() asks on which thread a backward pass runs"),
        (of_which_number, "threading.get_ident() asks on which thread a backward pass runs"),
    ],
)
def test_who_counts_or_asks_there_is_refused(asks: Callable[[], bool], says: str) -> None:
    (problem,) = survey(one_layer("asked", stepping(asks, False)), [None], 1)
    assert says in str(problem)


def passed(hook: Callable[[Any], None]) -> None:
    """One backward pass in which the hook runs."""
    x: Any = torch.ones(2, requires_grad=True)
    x.register_hook(hook)
    x.sum().backward()


def test_what_a_backward_pass_sets_the_next_one_finds_and_the_step_does_not() -> None:
    local, variable, found = threading.local(), ContextVar("variable", default=0), list[object]()

    def hook(_: Any) -> None:
        found.append((getattr(local, "n", 0), variable.get()))
        local.n = getattr(local, "n", 0) + 1
        variable.set(variable.get() + 10)

    with threads_of_the_engine():
        local.n = 7
        passed(hook)
        passed(hook)
        assert found == [(0, 0), (1, 10)]
        assert (local.n, variable.get()) == (7, 0)
        assert (held_for_the_engine(local), held_for_the_engine(variable)) == ({"n": 2}, 20)
    with threads_of_the_engine():
        assert (held_for_the_engine(local), held_for_the_engine(variable)) == (None, None)
    assert local.n == 7


def test_a_pass_inside_of_a_pass_runs_on_its_thread() -> None:
    local, found = threading.local(), list[object]()

    def outer(_: Any) -> None:
        local.n = 1
        with torch.enable_grad():
            passed(lambda _: found.append(vars(local).copy()))

    with threads_of_the_engine():
        passed(outer)
        assert found == [{"n": 1}]
        assert held_for_the_engine(local) == {"n": 1} and not vars(local)


def test_an_exception_leaves_the_thread_as_it_was() -> None:
    local = threading.local()
    local.n = 7

    def hook(_: Any) -> None:
        raise ValueError(hasattr(local, "n"))

    with threads_of_the_engine():
        with pytest.raises(ValueError, match="False"):
            passed(hook)
        assert local.n == 7


def test_locals_of_libraries_stay() -> None:
    """PyTorch's own says in a trace which tensors are fake."""
    tls = torch._subclasses.fake_tensor.fake_tensor_tls
    found = list[object]()
    with threads_of_the_engine():
        passed(lambda _: found.append(tls.allow_non_fake_inputs_override))
    assert found == [None]


def test_where_python_keeps_them_otherwise_a_set_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "SWAPS", False)
    (problem,) = survey(one_layer("asked", stepping(SET["attribute"], False)), [None], 1)
    assert "the step sets a threading.local before a backward pass" in str(problem)
