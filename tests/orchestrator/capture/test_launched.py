"""A process says to the user's code what it says where a launcher has started it."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from orchestrator.capture.errors import CaptureError
from orchestrator.capture.fitting import Sample
from orchestrator.capture.launched import by_a_launcher
from orchestrator.capture.processes import survey, trace_ranks

from .asking_processes import OF_TRACES, asking, off_and_on, starts, starts_several
from .world import one_layer


def taken(asks: Callable[[Any], bool]) -> list[bool]:
    """Was the answer yes, on the single device and on the second rank?"""
    traces = trace_ranks(one_layer("asked", asking(asks)), [None, 1], 1)
    return [_scaled(each) for each in traces]


def _scaled(traced: Sample) -> bool:
    assert traced.program is not None
    return "31" in [str(d.attr("value")) for d in traced.program.drafts if d.name == "constant"]


@pytest.mark.parametrize("asks", OF_TRACES)
def test_what_only_a_trace_is_or_has_is_not_there(asks: str) -> None:
    """Each was another branch in a trace, with a plan that was VALID."""
    assert taken(OF_TRACES[asks]) == [False, False]


def test_what_the_code_has_set_is_what_it_is_told() -> None:
    assert taken(off_and_on) == [True, True]


@pytest.mark.parametrize("asks", [starts, starts_several])
def test_another_process_is_refused_even_where_the_exception_is_caught(asks: Callable[[Any], bool]) -> None:
    """A trace runs in a process that may have no children: it raised, and a job went on."""
    problem: CaptureError
    (problem,) = survey(one_layer("asked", asking(asks)), [None], 1)
    assert "begins another process" in str(problem)


def test_the_process_is_afterwards_what_it_was() -> None:
    before = multiprocessing.current_process(), multiprocessing.parent_process()
    collects, built = gc.isenabled, dist.is_nccl_available
    with by_a_launcher():
        assert multiprocessing.current_process() is not before[0]
        assert gc.isenabled is not collects
    assert (multiprocessing.current_process(), multiprocessing.parent_process()) == before
    assert gc.isenabled is collects and dist.is_nccl_available is built


def test_libraries_are_told_what_this_machine_has() -> None:
    """Else PyTorch would make a process group of a backend that is not there."""
    scope: dict[str, Any] = {"__name__": "torch.asked", "dist": dist}
    exec(compile("def asks(): return dist.is_nccl_available()", dist.__file__, "exec"), scope)
    here = dist.is_nccl_available()
    with by_a_launcher():
        assert scope["asks"]() is here
        assert dist.is_nccl_available()
