"""A step that decides by the time or by a file is refused; one that measures, shows or writes is not."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from os.path import exists
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from orchestrator.capture.answers import Seconds, Ticks
from orchestrator.capture.asking import asked
from orchestrator.capture.counters import counted, numbers
from orchestrator.capture.errors import StateError

START = time.time()
LOOP = asyncio.new_event_loop()
LOOP.close()  # its clock goes on


def refused(does: Callable[[], object]) -> list[str]:
    """What is said against it; a refusal here does not end what it is about."""
    found: list[StateError] = []
    with asked(found.append):
        does()
    return [error.message for error in found]


@pytest.mark.parametrize(
    "decides",
    [
        lambda: time.time() - START > 36000,
        lambda: perf_counter() > 1,
        lambda: abs(-perf_counter()) > 1,
        lambda: 2 * time.monotonic() > 1,
        lambda: int(time.time()) % 100 == 7,
        lambda: float(time.process_time()),
        lambda: time.time_ns() // 10**9 % 100 == 7,
        lambda: math.floor(time.time()) == 3,
        lambda: min(time.thread_time(), 5.0),
        lambda: "late" if round(time.time()) % 2 else "soon",
        lambda: LOOP.time() > 1,
    ],
)
def test_who_decides_by_the_time_is_refused(decides: Callable[[], object]) -> None:
    """After ten hours it left out the all-reduce; no trace lasts so long."""
    assert refused(decides)[0] == "the step decides by the time"


@pytest.mark.parametrize(
    "decides",
    [
        lambda: int(threading.Thread(target=print).name.split("-")[1].split()[0]) > 400,
        lambda: threading.Thread().name == "Thread-7",
        lambda: nn.Linear(1, 1).register_forward_hook(print).id > 400,
        lambda: torch.zeros(1, requires_grad=True).register_hook(print).id % 100 == 7,
    ],
)
def test_how_many_threads_and_hooks_there_were_decides_nothing(decides: Callable[[], object]) -> None:
    """Python and PyTorch number them; after some hundred steps a gradient was divided by 3."""
    assert refused(decides)


def test_hooks_and_threads_work_as_before_and_go_on_being_numbered() -> None:
    layer, seen = nn.Linear(1, 1), list[str]()
    before = RemovableHandle.next_id

    def uses() -> None:
        first = layer.register_forward_hook(lambda *_: seen.append("first"))
        layer.register_forward_hook(lambda *_: seen.append("second"))
        layer(torch.zeros(1))
        first.remove()
        layer(torch.zeros(1))
        thread = threading.Thread(target=lambda: seen.append("thread"))
        thread.start()
        thread.join()

    assert refused(uses) == [] and seen == ["first", "second", "second", "thread"]
    assert type(RemovableHandle.next_id) is int and RemovableHandle.next_id == before + 2


def test_a_time_may_be_measured_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    def step() -> None:
        start = time.perf_counter()
        elapsed = (time.perf_counter() - start) * 1000
        logging.getLogger("step").warning(
            "%.2f ms, %d ns, %s tokens/s", elapsed, time.time_ns(), 8 / (elapsed + 1)
        )
        assert (
            f"{round(elapsed, 2):.1f}" and isinstance(elapsed, Seconds) and isinstance(time.time_ns(), Ticks)
        )
        time.sleep(0)

    assert refused(step) == [] and "tokens/s" in caplog.text
    assert type(time.time()) is float


def test_a_library_is_given_plain_numbers() -> None:
    """A queue with a timeout, a record of a log: what they do with the time is theirs."""
    scope: dict[str, object] = {"time": time, "given": []}
    text = "def wait():\n    given.append(time.monotonic())\n    return given[0] > 1"
    exec(compile(text, os.__file__, "exec"), scope)
    wait, given = scope["wait"], scope["given"]
    assert callable(wait) and isinstance(given, list)
    assert refused(wait) == [] and list(map(type, given)) == [float]


def test_a_library_that_hands_on_to_another_one_gives_it_plain_numbers() -> None:
    """An event loop asks its own clock when it waits."""
    loop = asyncio.new_event_loop()

    def step() -> None:
        loop.run_until_complete(asyncio.wait_for(asyncio.sleep(0), 5))

    assert refused(step) == []
    loop.close()


def is_there(path: Path) -> None:
    exists(path)


@pytest.mark.parametrize(
    "asks",
    [
        is_there,
        Path.exists,
        Path.is_file,
        os.path.getsize,
        lambda path: os.stat(path).st_size,
        lambda path: os.access(path, os.R_OK),
        lambda path: os.listdir(path.parent),
        lambda path: list(path.parent.glob("*")),
        lambda path: list(os.walk(path.parent)),
    ],
)
def test_who_asks_for_a_file_is_refused_by_its_name(asks: Callable[[Path], object], tmp_path: Path) -> None:
    """`if os.path.exists("stop")` decides in a later step what no trace of this one shows."""
    path = tmp_path / "flag"
    path.write_text("1")
    (message, *_) = refused(lambda: asks(path))
    assert message.startswith(f"the step asks for the file {tmp_path}")


@pytest.mark.parametrize(
    ("asks", "what"),
    [
        (lambda: dist.HashStore().add("steps", 1), "a store (add)"),
        (lambda: os.read(os.open(os.devnull, os.O_RDONLY), 1), "the system (os.read)"),
        (lambda: os.times().user, "the system (os.times)"),
        (lambda: gc.get_stats(), "the system (gc.get_stats)"),
        (lambda: torch.get_num_threads() == 1, "the system (torch.get_num_threads)"),
        (lambda: subprocess.run(["true"], check=True), "another program"),
    ],
)
def test_who_asks_another_process_or_the_system_is_refused(asks: Callable[[], object], what: str) -> None:
    """`if store.add("steps", 1) % 100` leaves out a reduction that two steps of a trace have."""
    (message, *_) = refused(asks)
    assert message == f"the step asks {what}"
    assert subprocess.run(["true"], check=True).returncode == 0 and dist.HashStore().add("steps", 1) == 1


def test_a_step_may_write_a_log_and_make_its_folder(tmp_path: Path) -> None:
    def step() -> None:
        for _ in range(2):
            os.makedirs(tmp_path / "logs" / "a", exist_ok=True)
            (tmp_path / "logs" / "b").mkdir(parents=True, exist_ok=True)
        (tmp_path / "logs" / "loss.txt").write_text("1")
        with open(tmp_path / "loss.txt", "a") as log:
            log.write("1")

    assert refused(step) == []


@pytest.mark.parametrize(
    "makes",
    [
        lambda: torch.ones(2) * (1 + time.monotonic() // 1e9),
        lambda: torch.ones(2).mul_(1 + time.monotonic() // 1e9),
        lambda: torch.full((2,), time.time()),
        lambda: torch.tensor([1.0, time.time()]),
        lambda: torch.ones(2)[time.monotonic_ns() // 10**30],
        lambda: torch.add(torch.ones(2), torch.ones(2), alpha=os.getpid()),
    ],
)
def test_no_tensor_is_made_of_an_answer(makes: Callable[[], object]) -> None:
    """``loss * (1 + time.monotonic() // 36000)`` is twice the loss after ten hours, and was VALID."""
    refused(lambda: time.time())  # from then on it is looked for
    assert any(message.startswith("the step decides by ") for message in refused(makes))


def test_a_time_that_is_kept_for_the_next_step_is_no_counter() -> None:
    """A meter of how long the last step took: who decides by it is refused, and it differs each time."""
    meter = SimpleNamespace(begun=0.0)

    def step() -> None:
        logging.info("%.3f", time.perf_counter() - meter.begun)
        meter.begun = time.perf_counter()

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    looked = [numbers(step, model, optimizer)]
    for _ in range(2):
        assert refused(step) == []
        looked.append(numbers(step, model, optimizer))
    assert [counted(before, after) for before, after in pairwise(looked)] == [None, None]
    meter.begun = 7.0
    error = counted(looked[-1], numbers(step, model, optimizer))
    assert error is not None and "meter.begun" in error.message
