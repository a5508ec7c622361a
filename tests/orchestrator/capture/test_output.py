"""``tv-capture`` writes new files and plan files; nothing else of the user's is ever in danger."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from certificates.plan.writing import dump
from orchestrator.capture.output import objection
from tests.conftest import build_mlp


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text("definition = 3")
    return file


@pytest.mark.parametrize("force", [True, False])
def test_a_new_file_and_a_plan_file_are_written(tmp_path: Path, source: Path, force: bool) -> None:
    dump(build_mlp(), tmp_path / "plan.json.gz")
    for name in ("new.json", "plan.json.gz"):
        assert objection(tmp_path / name, source, force) is None


@pytest.mark.parametrize("name", ["notes.txt", "notes.json", "weights.json.gz"])
def test_another_file_needs_a_word(tmp_path: Path, source: Path, name: str) -> None:
    """Neither its name nor what it says of a format makes it a plan."""
    (tmp_path / name).write_text('{"format":"trainverify-plan"}, they say')
    assert "is not a plan file" in (objection(tmp_path / name, source, force=False) or "")
    assert objection(tmp_path / name, source, force=True) is None


def test_no_word_gives_up_the_captured_file_a_device_or_a_folder(tmp_path: Path, source: Path) -> None:
    link, fifo = tmp_path / "link.json", tmp_path / "fifo"
    link.symlink_to(source)
    os.mkfifo(fifo)
    for out, reason in (
        *((out, "the file that is captured") for out in (source, link)),
        *((out, "not a regular file") for out in (Path(os.devnull), tmp_path, fifo)),
        (tmp_path / "nowhere" / "plan.json", "is no folder; make it first"),
    ):
        assert reason in (objection(out, source, force=True) or ""), out
