"""What stops a command from outside has an exit code of its own and one line, and is no verdict."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from certificates.endings import (
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    TERMINATED,
    Terminated,
    ending,
    scratch,
    terminable,
)


def run(task: Callable[[], None]) -> Result:
    @click.command(name="tv-try")
    @ending("tv-try")
    def command() -> None:
        task()

    return CliRunner().invoke(command, [])


def raising(error: BaseException) -> Callable[[], None]:
    def task() -> None:
        raise error

    return task


@pytest.mark.parametrize(
    ("task", "code", "line"),
    [
        (raising(KeyboardInterrupt()), INTERRUPTED, "tv-try: interrupted\n"),
        (lambda: signal.raise_signal(signal.SIGINT), INTERRUPTED, "tv-try: interrupted\n"),
        (lambda: signal.raise_signal(signal.SIGTERM), TERMINATED, "tv-try: terminated\n"),
        (
            raising(OSError(28, "No space left on device")),
            FAILED,
            "tv-try: [Errno 28] No space left on device\n",
        ),
        (raising(MemoryError()), FAILED, "tv-try: out of memory\n"),
        (raising(BrokenPipeError()), PIPE_CLOSED, ""),
    ],
)
def test_each_has_its_code_and_one_line(task: Callable[[], None], code: int, line: str) -> None:
    result = run(task)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")
    assert code not in range(6)


def test_what_a_command_decides_itself_is_left_alone() -> None:
    """Exit codes of verdicts, usage, and mistakes of ours, which must be seen."""
    assert run(lambda: None).exit_code == 0
    assert run(raising(SystemExit(3))).exit_code == 3
    assert run(raising(click.UsageError("no"))).exit_code == 2
    assert isinstance(run(raising(ValueError("ours"))).exception, ValueError)


def test_termination_is_no_error_that_could_be_taken_for_an_answer() -> None:
    with pytest.raises(Terminated), terminable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            pytest.fail("an error handler caught it")
    assert signal.getsignal(signal.SIGTERM) is not None


class Finalised:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(100))  # the signal arrives here, where Python drops what is raised


def test_an_interruption_in_a_finaliser_is_not_lost() -> None:
    """Terms of a solver are finalised all the time; `tv-emit` went on to its verdict after Ctrl-C."""
    with pytest.raises(KeyboardInterrupt), terminable():
        thing = Finalised()
        del thing
        time.sleep(60)


def test_who_ignores_interruptions_is_not_interrupted() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


STOPS = [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]


@pytest.mark.parametrize(("number", "error"), STOPS)
def test_a_folder_that_is_being_made_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]
) -> None:
    """`tv-verify` left one if it was stopped just then."""
    make = tempfile.mkdtemp

    def stopped(*args: str, **kwargs: str) -> str:
        made = make(*args, **kwargs)
        os.kill(os.getpid(), number)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", stopped)
    with pytest.raises(error), terminable(), scratch("tv-", tmp_path):
        pytest.fail("it went on")
    assert list(tmp_path.iterdir()) == []
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


def test_a_folder_goes_when_its_use_is_over(tmp_path: Path) -> None:
    with scratch("tv-", tmp_path) as folder:
        assert folder.name.startswith("tv-")
        (folder / "x").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_the_handler_of_the_caller_comes_back_and_threads_have_none() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before

    def inside() -> None:
        with terminable():
            pass

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
