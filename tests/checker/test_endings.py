"""What stops the checker is no verdict: an exit code of its own and one line."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from certificates import endings as theirs
from certificates.words import VERSION
from checker import endings
from checker.endings import FAILED, INTERRUPTED, PIPE_CLOSED, TERMINATED, ending, version


def run(task: Callable[[], None], *options: str) -> Result:
    @click.command(name="tv-try")
    @version
    @ending("tv-try")
    def command() -> None:
        task()

    return CliRunner().invoke(command, options)


def raising(error: BaseException) -> Callable[[], None]:
    def task() -> None:
        raise error

    return task


@pytest.mark.parametrize(
    ("task", "code", "line"),
    [
        (raising(KeyboardInterrupt()), INTERRUPTED, "tv-try: interrupted: no verdict\n"),
        (lambda: signal.raise_signal(signal.SIGTERM), TERMINATED, "tv-try: terminated: no verdict\n"),
        (raising(OSError(28, "No space left")), FAILED, "tv-try: failed: [Errno 28] No space left\n"),
        (raising(MemoryError()), FAILED, "tv-try: failed: out of memory\n"),
        (raising(BrokenPipeError()), PIPE_CLOSED, ""),
    ],
)
def test_each_has_its_code_and_one_line(task: Callable[[], None], code: int, line: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    result = run(task)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")
    assert signal.getsignal(signal.SIGTERM) is before


def test_verdicts_and_usage_are_left_alone() -> None:
    assert run(lambda: None).exit_code == 0
    assert run(raising(SystemExit(1))).exit_code == 1
    assert run(raising(click.UsageError("no"))).exit_code == 2


def test_a_mistake_of_the_checker_is_unknown_and_shown() -> None:
    """Python would end with 1, *refuted*."""
    result = run(raising(ValueError("ours")))
    assert result.exit_code == 3 and "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1] == "tv-try: unknown: internal error ValueError"


def test_both_sides_of_the_wall_mean_the_same_by_their_codes() -> None:
    """They share no code, so a test compares them."""
    for name in ("FAILED", "INTERRUPTED", "PIPE_CLOSED", "TERMINATED"):
        assert getattr(endings, name) == getattr(theirs, name)
    assert run(lambda: None, "--version").stdout == f"tv-try, TrainVerify {VERSION}\n"


def test_python_is_prepared_for_a_whole_bundle() -> None:
    """Rare collections, and calls as deep as a sum of a thousand summands, within C's stack."""
    threshold, frames = gc.get_threshold(), sys.getrecursionlimit()
    try:
        endings.prepare()
        assert gc.get_threshold() == (100_000, 20, 100) and sys.getrecursionlimit() == 5_000
    finally:
        gc.set_threshold(*threshold)
        sys.setrecursionlimit(frames)
