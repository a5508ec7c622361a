"""What the processes in which ranks are traced tell, whichever way they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch

from orchestrator.capture import Batch, Definition, bytecode
from orchestrator.capture.processes import survey


def built(build: Callable[[], Any]) -> Definition:
    return Definition(
        name="processes",
        mesh={"dp": 2},
        build=build,
        parallelize=lambda model, mesh: model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, optimizer, batch: {},
        batch={"x": Batch((4, 4))},
    )


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os._exit(7), "ended with exit code 7 (single device)"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "ended by SIGSEGV (single device)"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "ended by SIGKILL; perhaps memory ran out: try --jobs 1 (single device)",
        ),
    ],
)
def test_a_process_that_dies_is_told_by_how_it_ended(end: Callable[[], Any], how: str) -> None:
    (problem,) = survey(built(end), [None], 1)
    assert str(problem) == f"capture: the process that traced it {how}"


def of_the_users(optimizer: Any) -> None:
    """Code of a module that is loaded."""
    optimizer.step()


def test_code_is_read_before_ranks_are_forked() -> None:
    """Each traced rank asks what the user's code names: what its parent has read it need not read."""
    bytecode.chains.cache_clear()

    def build() -> NoReturn:
        before = bytecode.chains.cache_info().misses
        bytecode.chains(of_the_users.__code__)
        raise ValueError(f"read {bytecode.chains.cache_info().misses - before} times")

    (problem,) = survey(built(build), [None], 1)
    assert problem.message == "ValueError: read 0 times"


def test_an_interrupt_is_for_the_parent_alone() -> None:
    """Ctrl-C reaches all processes of a terminal: only one may speak of it."""

    def build() -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("went on")

    (problem,) = survey(built(build), [None], 1)
    assert problem.message == "ValueError: went on"


def test_processes_end_with_the_one_that_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter waits for children that are no daemons; a trace may take long."""
    start, daemons = multiprocessing.process.BaseProcess.start, list[bool]()

    def noting(process: multiprocessing.process.BaseProcess) -> None:
        daemons.append(process.daemon)
        start(process)

    def build() -> NoReturn:
        raise ValueError("no model")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", noting)
    survey(built(build), [None], 1)
    assert daemons == [True]


def test_the_last_ranks_that_run_are_waited_for() -> None:
    """Nothing waits for its turn any more, and one of two is still at work."""

    def build() -> NoReturn:
        if "RANK" in os.environ:
            time.sleep(0.5)
        raise ValueError("no model")

    problems = survey(built(build), [None, 0], 2)
    assert sorted(str(p.rank) for p in problems) == ["0", "None"]
    assert [p.single for p in problems if p.rank is None] == [True]
