"""A step that reads a file is refused; one that writes a log is not."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.capture.errors import StateError
from orchestrator.capture.reading import no_files


def refused(reads: Callable[[], object]) -> list[StateError]:
    found: list[StateError] = []
    with no_files(found.append):
        reads()
    return found


def through_open(path: Path) -> None:
    with open(path) as file:
        file.read()


def again_and_again(path: Path) -> None:
    with open(path, "a+") as file:
        file.read()


@pytest.mark.parametrize("reads", [through_open, again_and_again, Path.read_text, Path.read_bytes])
def test_a_file_that_is_read_is_refused_by_line(reads: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "flag"
    path.write_text("1")
    (error,) = refused(lambda: reads(path))
    assert "reads the file" in error.message and str(path) in error.message
    assert error.frame is not None and error.frame[0] == __file__
    assert "entry of the batch" in (error.instead or "")


def test_a_log_is_written_and_a_line_is_shown(tmp_path: Path) -> None:
    def logs() -> None:
        with open(tmp_path / "log", "a") as file:
            file.write("a step\n")
        (tmp_path / "mark").write_text("done")
        linecache.clearcache()
        assert linecache.getline(__file__, 1)

    assert refused(logs) == []


def test_nobody_is_told_afterwards(tmp_path: Path) -> None:
    assert refused(lambda: None) == []
    (tmp_path / "flag").write_text("1")
    assert (tmp_path / "flag").read_text() == "1"
