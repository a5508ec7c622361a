"""Folders and files of a bundle: plain ones only, of a capped size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checker.errors import Malformed
from checker.reading import bundle as folders

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import row_parallel


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")
    found = folders.read_bundle(folder)
    assert sorted(found) == [
        "manifest.json",
        "obligations/0001.smt2",
        "obligations/0002.smt2",
        "plan.json",
        "proof.json",
    ]
    assert found["plan.json"] == (folder / "plan.json").read_bytes()
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "link", tmp_path / "file", tmp_path / "none"):
        with pytest.raises(Malformed, match="no folder"):
            folders.read_bundle(wrong)
    total = sum(map(len, found.values()))
    for name, least in (("MAX_FILES", 5), ("MAX_TOTAL", total)):
        with monkeypatch.context() as patch:
            patch.setattr(folders, name, least)
            assert folders.read_bundle(folder) == found
            patch.setattr(folders, name, least - 1)
            with pytest.raises(Malformed, match="the bundle is too large"):
                folders.read_bundle(folder)
    (folder / "obligations" / "more").mkdir()
    with pytest.raises(Malformed, match="an unexpected folder"):
        folders.read_bundle(folder)
    (folder / "obligations" / "more").rmdir()
    for name in ("manifest.json", "plan.json", "proof.json"):
        (folder / name).rename(tmp_path / "aside")
        with pytest.raises(Malformed, match=f"{name} is missing"):
            folders.read_bundle(folder)
        (tmp_path / "aside").rename(folder / name)


def test_a_bundle_without_obligations(tmp_path: Path) -> None:
    folder = row_parallel().write(tmp_path / "b")
    for path in (folder / "obligations").iterdir():
        path.unlink()
    (folder / "obligations").rmdir()
    assert sorted(folders.read_bundle(folder)) == ["manifest.json", "plan.json", "proof.json"]
    (folder / "obligations").write_text("")
    with pytest.raises(Malformed, match="obligations/: cannot be read"):
        folders.read_bundle(folder)


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders.os, "scandir", refuse)
    with pytest.raises(Malformed, match=rf"^{folder}: cannot be read \(Permission denied\)"):
        folders.read_bundle(folder)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    import os

    (tmp_path / "f").write_bytes(b"12345")
    assert folders.read_file(tmp_path / "f", "f") == folders.read_plan_file(tmp_path / "f") == b"12345"
    (tmp_path / "l").symlink_to(tmp_path / "f")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("l", "l: cannot be read"),
        ("none", "none: cannot be read"),
        ("pipe", "no plain file"),
        (".", "cannot be read|no plain file"),
    ):
        with pytest.raises(Malformed, match=reason):
            folders.read_file(tmp_path / name, name)
    (tmp_path / "p.gz").write_bytes(gzip.compress(b"12345"))
    assert folders.read_plan_file(tmp_path / "p.gz") == b"12345"
    for cap in (5, 4):
        monkeypatch.setattr(folders, "MAX_BYTES", cap)
        if cap == 5:
            assert folders.read_file(tmp_path / "f", "f") == b"12345"
        else:
            with pytest.raises(Malformed, match="f: larger than 4 bytes"):
                folders.read_file(tmp_path / "f", "f")
    monkeypatch.setattr(folders, "MAX_BYTES", 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * 1000))
    assert len(folders.read_plan_file(tmp_path / "bomb.gz")) == 1000
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * 1001))
    with pytest.raises(Malformed, match="larger than 1000 bytes"):
        folders.read_plan_file(tmp_path / "bomb.gz")
    for broken in (b"", b"no gzip", gzip.compress(b"12345")[:-9], gzip.compress(b"12345")[:-1]):
        (tmp_path / "broken.gz").write_bytes(broken)
        if broken:
            with pytest.raises(Malformed, match=r"broken.gz: cannot be read"):
                folders.read_plan_file(tmp_path / "broken.gz")
