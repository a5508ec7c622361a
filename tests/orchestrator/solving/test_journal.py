"""The journal of a run: nothing finished is lost, nothing unfinished is believed."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.errors import ForeignFile
from orchestrator.solving.journal import HEADER, Journal, key


def test_entries_survive(tmp_path: Path) -> None:
    Journal(tmp_path / "j").put("a", [1, 2])
    Journal(tmp_path / "j").put("b", None)
    found = Journal(tmp_path / "j")
    assert found.get("a") == [1, 2] and "b" in found and found.get("b") is None and len(found) == 2


@pytest.mark.parametrize("lost", [1, 5, 9])
def test_a_line_that_was_cut_short_is_dropped_and_the_next_is_whole(tmp_path: Path, lost: int) -> None:
    journal = Journal(tmp_path / "j")
    journal.put("a", 1)
    journal.put("b", [2, 3])
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-lost])
    Journal(tmp_path / "j").put("c", 4)
    found = Journal(tmp_path / "j")
    assert found.get("a") == 1 and "b" not in found and found.get("c") == 4


def test_strange_lines_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(HEADER + b'["a", 1]\n[1]\n7\n\xff\xfe\n[["x"], 2]\n["b", 2]\n')
    found = Journal(tmp_path / "j")
    assert len(found) == 2 and found.get("b") == 2


def test_keys_tell_the_parts_apart() -> None:
    assert len({key("ab", "c"), key("a", "bc"), key("abc"), key("abc", "")}) == 4


# Files of others -----------------------------------------------------------------------------------------

FOREIGN = {
    "a text": b"shopping list\n",
    "without a line end": b"precious",
    "numbers": b'["a", 1]\n["b", 2]\n',
    "a later version": b'["trainverify-journal", 2]\n',
    "a header with more behind it": HEADER[:-1] + b", really\n",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_others_is_never_read_changed_or_deleted(tmp_path: Path, name: str) -> None:
    """``--answers notes.txt`` dropped its last line, and a file called X.journal was deleted."""
    path = tmp_path / "j"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(ForeignFile, match="no file of answers; it is not changed"):
        Journal(path)
    journal = Journal(tmp_path / "other")
    journal.put("a", 1)
    journal.path = path  # it took the place of ours while the emission ran
    for change in (lambda: journal.put("b", 2), lambda: journal.keep_parts({"c": 3}), journal.delete):
        with pytest.raises(ForeignFile):
            change()
    assert path.read_bytes() == FOREIGN[name]


def test_neither_folders_nor_pipes_nor_devices_are_files_of_answers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(ForeignFile, match="not a regular file"):
            Journal(path)
    with pytest.raises(OSError, match="Is a directory"):
        Journal(tmp_path)


@pytest.mark.parametrize("size", [0, 1, len(HEADER) - 1])
def test_a_file_that_was_just_begun_is_ours(tmp_path: Path, size: int) -> None:
    (tmp_path / "j").write_bytes(HEADER[:size])
    Journal(tmp_path / "j").put("a", 1)
    assert Journal(tmp_path / "j").get("a") == 1


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    journal = Journal(tmp_path / "link")
    journal.put("a", 1)
    journal.keep_parts({"0" * 64: [1]})
    assert (tmp_path / "link").is_symlink() and Journal(tmp_path / "there").get("a") == 1


# Several emissions, full disks ---------------------------------------------------------------------------


def _emission(path: Path, number: int, lines: int) -> None:
    journal = Journal(path)
    for i in range(lines):
        journal.put(f"{number}.{i}", "x" * 5000)
        if i == lines // 2:
            journal.keep_parts({f"{number:064}": ["part", number]})


def test_emissions_at_one_time_lose_no_answer(tmp_path: Path) -> None:
    """Two training plans checked side by side, with one file of answers."""
    path, fork = tmp_path / "j", multiprocessing.get_context("fork")
    racing = [fork.Process(target=_emission, args=(path, n, 40)) for n in range(4)]
    for process in racing:
        process.start()
    for process in racing:
        process.join()
    found = Journal(path)
    assert len(found) == 4 * 40 and all(found.get(f"{n}.{i}") for n in range(4) for i in range(40))
    assert list(tmp_path.iterdir()) == [path]


def test_parts_of_the_emission_before_go_and_those_of_one_at_the_same_time_stay(tmp_path: Path) -> None:
    before = Journal(tmp_path / "j")
    before.keep_parts({"0" * 64: "before"})
    ours, theirs = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    ours.keep_parts({"1" * 64: "ours"})
    theirs.keep_parts({"2" * 64: "theirs"})
    found = Journal(tmp_path / "j")
    assert [found.part(n * 64) for n in "012"] == [None, "ours", "theirs"]


def test_a_line_torn_by_a_killed_emission_takes_no_other_with_it(tmp_path: Path) -> None:
    ours = Journal(tmp_path / "j")
    ours.put("a", 1)
    with (tmp_path / "j").open("ab") as killed:
        killed.write(b'["torn", ')
    ours.put("b", 2)
    found = Journal(tmp_path / "j")
    assert (found.get("a"), found.get("b"), "torn" in found) == (1, 2, False)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk that is full as soon as a file has this many bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.put("a", 1)
    journal.keep_parts({"0" * 64: [1]})
    before = path.read_bytes()
    with largest_file(len(before) + 100):
        with pytest.raises(OSError, match="File too large"):
            journal.put("b", "x" * 500)
        with pytest.raises(OSError, match="File too large"):
            journal.keep_parts({"1" * 64: "x" * 500})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    journal.put("c", 3)
    assert Journal(path).get("c") == 3
