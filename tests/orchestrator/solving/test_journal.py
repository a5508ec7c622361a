"""The journal of a run: nothing finished is lost, nothing unfinished is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.solving.journal import Journal, key


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
    (tmp_path / "j").write_bytes(b'["a", 1]\n[1]\n7\n\xff\xfe\n[["x"], 2]\n["b", 2]\n')
    found = Journal(tmp_path / "j")
    assert len(found) == 2 and found.get("b") == 2


def test_keys_tell_the_parts_apart() -> None:
    assert len({key("ab", "c"), key("a", "bc"), key("abc"), key("abc", "")}) == 4
