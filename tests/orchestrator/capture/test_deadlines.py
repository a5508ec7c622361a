"""A step decides by no wait that time ends, and reads nothing that a thread may have left or not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.capture import steps
from orchestrator.capture.asking import asked
from orchestrator.capture.deadlines import deadlines
from orchestrator.capture.errors import StateError
from orchestrator.capture.pace import PACE
from orchestrator.capture.work import Work

SOON = timedelta(seconds=30)


#: A function of the package's, as what runs a step is: no handler around it is the step's.
OURS: dict[str, Any] = {}
exec(compile("def run(does):\n    does()", steps.__file__, "exec"), OURS)


def refused(does: Callable[[], object]) -> list[str]:
    """What is said against it; a refusal here does not end what it is about."""
    found: list[StateError] = []
    with asked(found.append), deadlines(found.append):
        OURS["run"](does)
    return [error.message for error in found if error.frame and error.frame[0] == __file__]


def work() -> Work:
    return Work([], [])


def goes_on() -> None:
    try:
        work().wait(SOON)
    except RuntimeError:
        print("late")


def goes_on_after_another() -> None:
    try:
        try:
            work().wait(timeout=SOON)
        except ValueError:
            raise
        finally:
            print()
    except RuntimeError as error:
        print(error)


def is_handled_outside() -> None:
    try:
        ends()
    except Exception:
        print("late")


def suppresses() -> None:
    with contextlib.suppress(RuntimeError):
        work().wait(SOON)
    with contextlib.nullcontext():
        print()


def gets() -> None:
    held = queue.Queue[int]()
    held.put(1)
    try:
        held.get(timeout=1)
    except queue.Empty:
        print("late")


def ends() -> None:
    with contextlib.nullcontext():
        try:
            work().wait(SOON)
        except RuntimeError as error:
            print(error)
            raise
        finally:
            print()


def waits_as_long_as_it_takes() -> None:
    try:
        work().wait()
    except RuntimeError:
        print("late")


def handles_what_comes_before_and_later() -> None:
    with contextlib.suppress(RuntimeError):
        print()
    with contextlib.nullcontext():
        work().wait(SOON)
    with contextlib.suppress(RuntimeError):
        print()
    try:
        print()
    except RuntimeError:
        print("late")


@pytest.mark.parametrize("does", [goes_on, goes_on_after_another, is_handled_outside, suppresses, gets])
def test_who_goes_on_after_a_wait_that_took_too_long_is_refused(does: Callable[[], None]) -> None:
    """A slow network would leave a gradient as it was; in a trace no wait takes long."""
    (said,) = refused(does)
    assert said.startswith("the step goes on where a wait has taken too long (") and "slow machine" in said


@pytest.mark.parametrize("does", [ends, waits_as_long_as_it_takes, handles_what_comes_before_and_later])
def test_a_wait_that_ends_the_job_or_nothing_is_none_to_decide_by(does: Callable[[], None]) -> None:
    assert refused(does) == []


@pytest.mark.parametrize(
    "waits",
    [
        lambda: work().wait(SOON),
        lambda: threading.Event().wait(0),
        lambda: threading.Semaphore().acquire(timeout=1),
        lambda: threading.Event().wait(timeout=0.01),
    ],
)
def test_whether_a_wait_was_long_enough_decides_nothing(waits: Callable[[], Any]) -> None:
    assert refused(lambda: 1 if waits() else 2) == ["the step decides by the time"]
    assert refused(lambda: print(waits())) == []


def test_waits_without_a_timeout_say_what_they_say() -> None:
    event, pool = threading.Event(), concurrent.futures.ThreadPoolExecutor(1)
    event.set()

    def step() -> None:
        assert event.wait() is True and work().wait() is True and threading.Semaphore().acquire() is True
        assert pool.submit(lambda: 3).result() == 3 and pool.submit(lambda: 3).result(timeout=9) == 3

    assert refused(step) == []
    pool.shutdown()


@pytest.mark.parametrize(
    ("comes", "what"),
    [
        (lambda: signal.alarm(60), "an alarm"),
        (lambda: signal.setitimer(signal.ITIMER_REAL, 60.0), "an alarm"),
        (lambda: TIMER.start(), "a timer"),
    ],
)
def test_what_comes_between_any_two_lines_is_refused(comes: Callable[[], object], what: str) -> None:
    assert refused(comes) == [f"the step sets {what}: what that does comes between any two lines"]
    TIMER.cancel()
    signal.alarm(0)


TIMER = threading.Timer(60, print)


def test_an_alarm_is_called_off_as_before() -> None:
    """How much was left of it, is a time."""
    assert refused(lambda: (signal.alarm(0), signal.setitimer(signal.ITIMER_REAL, 0.0))) == []
    assert refused(lambda: signal.alarm(0) > 0) == ["the step decides by the time"]


def left(does: Callable[[threading.Event], object]) -> list[object]:
    """What a thread has left for the step, in two steps that are recorded one after the other."""
    found: list[object] = []
    for _ in range(2):
        event = threading.Event()

        def step(event: threading.Event = event) -> None:
            found.append(does(event))

        assert refused(step) == []
    return found


def begun(event: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=lambda: (time.sleep(0.05), event.set()))
    thread.start()
    return thread


def after(event: threading.Event, wait: Callable[[threading.Thread], object]) -> bool:
    wait(begun(event))
    return event.is_set()


def test_what_a_thread_has_left_before_anybody_waits_is_there_in_every_other_step() -> None:
    """Then the two steps are two programs, and refused."""
    assert sorted(map(bool, left(lambda event: after(event, lambda thread: None)))) == [False, True]


def test_what_a_thread_has_left_when_it_was_waited_for_is_there() -> None:
    def by_queue(_: threading.Thread) -> object:
        held = queue.Queue[int]()
        threading.Thread(target=held.put, args=(1,)).start()
        return held.get()

    assert left(lambda event: after(event, threading.Thread.join)) == [True, True]
    assert left(lambda event: after(event, lambda thread: event.wait())) == [True, True]
    assert left(lambda event: by_queue(threading.current_thread())) == [1, 1]


def test_a_step_is_over_when_its_threads_are() -> None:
    for _ in range(2):
        event = threading.Event()
        assert refused(lambda event=event: begun(event)) == [] and event.is_set()  # type: ignore[misc]


def test_threads_that_other_threads_start_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PACE, "turn", lambda: None)
    monkeypatch.setattr(PACE, "_between", 1)
    inner = threading.Event()

    def outer() -> None:
        begun(inner).join()

    def step() -> None:
        thread = threading.Thread(target=outer)
        thread.start()
        thread.join()
        assert inner.is_set()

    assert refused(step) == []
