"""Nothing of the user's that was begun before a step goes on beside it."""

from __future__ import annotations

import concurrent.futures
import gc
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.capture.beside import begun_outside
from orchestrator.capture.errors import CaptureError, StateError
from orchestrator.capture.frames import is_own
from orchestrator.capture.processes import survey
from orchestrator.capture.userfile import load_definition

from .validating_steps import validating

END = threading.Event()


class Waiting(threading.Thread):
    def run(self) -> None:
        END.wait(9)


def begins_a_thread() -> None:
    threading.Thread(target=END.wait, daemon=True, args=(0.01,)).start()
    threading.Thread(target=lambda: END.wait(9), daemon=True).start()


def begins_one_of_its_own() -> None:
    Waiting(daemon=True).start()


def begins_work() -> None:
    concurrent.futures.ThreadPoolExecutor(1).submit(lambda: END.wait(9))


def collects(*_: object) -> None:
    """What the collector calls."""


class Collects:
    def __call__(self, *_: object) -> None:
        """What the collector calls."""


def begins_nothing() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    assert pool.submit(lambda: 3).result() == 3
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@pytest.mark.parametrize("begins", [begins_a_thread, begins_one_of_its_own, begins_work])
def test_a_thread_of_the_users_that_runs_on_is_refused(begins: Callable[[], None]) -> None:
    END.clear()
    try:
        with pytest.raises(StateError, match="a thread that runs on is begun before"), begun_outside():
            begins()
    finally:
        END.set()


@pytest.mark.parametrize("called", [collects, Collects()])
def test_what_the_collector_calls_is_refused(called: Callable[..., None]) -> None:
    try:
        with pytest.raises(StateError, match=r"gc\.callbacks"), begun_outside():
            gc.callbacks.append(called)
        with begun_outside():
            pass
    finally:
        gc.callbacks.remove(called)


def test_timers_and_alarms_are_refused_and_may_be_called_off() -> None:
    with begun_outside():
        begins_nothing()
        with pytest.raises(StateError, match="a timer is begun before the step"):
            threading.Timer(9, print).start()
        with pytest.raises(StateError, match="an alarm is begun before the step"):
            signal.alarm(9)
        with pytest.raises(StateError, match="an alarm") as caught:
            signal.setitimer(signal.ITIMER_VIRTUAL, 9.0)
    assert caught.value.frame is not None and caught.value.frame[0] == __file__


def test_threads_of_packages_and_of_python_are_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.capture.beside.is_installed", lambda file: file == __file__)
    monkeypatch.setattr("orchestrator.capture.beside.is_own", lambda file: is_own(file) and file != __file__)
    monkeypatch.setattr("orchestrator.capture.beside.users_own", lambda _: False)
    END.clear()
    with begun_outside():
        for begins in (begins_one_of_its_own, begins_work, begins_a_thread):
            begins()
        gc.callbacks.append(collects)
    gc.callbacks.remove(collects)
    END.set()


def test_what_a_definition_begins_is_refused(tmp_path: Path) -> None:
    """A step that asked for what the thread had left was proved as it was before."""

    def begun(model: Any, *_: Any) -> Any:
        begins_one_of_its_own()
        return model

    END.clear()
    made = validating(lambda _: None)
    cases = replace(made, parallelize=begun), replace(made, build=lambda: begun(made.build()))
    for each in (*cases, replace(made, optimizer=lambda p: begun(made.optimizer(p)))):
        (error,) = survey(each, [0], 1)
        assert error.message.startswith("a thread that runs on is begun before")
    (file := tmp_path / "begins.py").write_text(
        "import threading\ndefinition = 3\nthreading.Timer(9, print).start()\n"
    )
    with pytest.raises(CaptureError, match="a timer is begun before the step"):
        load_definition(file)
