"""Folders and files of a bundle: plain ones only, of a capped size."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from checker.errors import Malformed
from checker.reading import bundle as folders
from checker.reporting import NAMES

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import BAG, row_parallel


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")
    found = folders.read_bundle(folder)
    assert sorted(found) == sorted(
        (
            *BAG,
            *NAMES,
            "manifest.json",
            "obligations/0001.smt2",
            "obligations/0002.smt2",
            "plan.json",
            "proof.json",
        )
    )
    assert found["plan.json"] == (folder / "data/plan.json").read_bytes()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(Malformed, match="link: a link"):
        folders.read_bundle(tmp_path / "link")
    total = sum(map(len, found.values()))
    for name, least in (("MAX_FILES", len(found)), ("MAX_TOTAL", total)):
        with monkeypatch.context() as patch:
            patch.setattr(folders, name, least)
            assert folders.read_bundle(folder) == found
            patch.setattr(folders, name, least - 1)
            with pytest.raises(Malformed, match="the bundle is too large"):
                folders.read_bundle(folder)
    for more in ("data/obligations/more", "more"):
        (folder / more).mkdir()
        with pytest.raises(Malformed, match=f"'{more}': an unexpected folder"):
            folders.read_bundle(folder)
        (folder / more).rmdir()
    for name in ("manifest.json", "plan.json", "proof.json"):
        (folder / "data" / name).rename(tmp_path / "aside")
        with pytest.raises(Malformed, match=f"{name} is missing"):
            folders.read_bundle(folder)
        (tmp_path / "aside").rename(folder / "data" / name)
    (folder / "plan.json").write_bytes(b"")
    with pytest.raises(Malformed, match=r"'plan.json' stands both in data/ and beside it"):
        folders.read_bundle(folder)


def test_a_bundle_of_version_1_is_a_plain_folder(tmp_path: Path) -> None:
    bundle = row_parallel()
    bundle.version = 1
    folder = bundle.write(tmp_path / "b")
    assert folders.read_bundle(folder) == bundle.members()
    for path in (folder / "obligations").iterdir():
        path.unlink()
    (folder / "obligations").rmdir()
    assert sorted(folders.read_bundle(folder)) == ["manifest.json", "plan.json", "proof.json"]
    (folder / "obligations").write_text("")
    with pytest.raises(Malformed, match="obligations/: cannot be read"):
        folders.read_bundle(folder)


# Archives ---------------------------------------------------------------------------------------------------

Entry = tuple[str, bytes, dict[str, Any]]


def tar(*entries: Entry, form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data, special in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            for key, value in special.items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def packed(root: str = "trainverify-00") -> list[Entry]:
    """The sample as entries of an archive, in the order of names."""
    data = row_parallel().members()
    names = {n if n in BAG else f"data/{n}": d for n, d in data.items()}
    return [(f"{root}/{n}", names[n], {}) for n in sorted(names)]


def refused(path: Path, data: bytes, reason: str) -> None:
    path.write_bytes(data)
    with pytest.raises(Malformed, match=reason):
        folders.read_bundle(path)


def test_archives(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    for data in (tar(*packed()), gzip.compress(tar(*packed()))):
        path.write_bytes(data)
        assert folders.read_bundle(path) == row_parallel().members()


ROOT = "trainverify-00"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ((f"{ROOT}/../x", b"", {}), "is no file of a bundle"),
        ((f"{ROOT}/data/../../x", b"", {}), "is no file of a bundle"),
        (("/etc/passwd", b"", {}), "is no file of a bundle"),
        ((f"{ROOT}//x", b"", {}), "is no file of a bundle"),
        ((f"{ROOT}/data/deep/x", b"", {}), "is no file of a bundle"),
        (("other/x", b"", {}), "is no file of a bundle"),
        ((f"{ROOT}/.hidden", b"", {}), "is no file of a bundle"),
        ((f"{ROOT}/x", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}), "is no plain file"),
        ((f"{ROOT}/x", b"", {"type": tarfile.LNKTYPE, "linkname": f"{ROOT}/bagit.txt"}), "is no plain file"),
        ((f"{ROOT}/x", b"", {"type": tarfile.FIFOTYPE}), "is no plain file"),
        ((f"{ROOT}/x", b"", {"type": tarfile.CHRTYPE}), "is no plain file"),
        ((f"{ROOT}/data", b"", {"type": tarfile.DIRTYPE}), "is no plain file"),
        ((f"{ROOT}/bagit.txt", b"", {}), "is there twice"),
        ((f"{ROOT}/x", b"1", {"mtime": 1}), "not packed as tv-emit does"),
        ((f"{ROOT}/x", b"1", {"uname": "me"}), "not packed as tv-emit does"),
    ],
)
def test_hostile_entries(entry: Entry, reason: str, tmp_path: Path) -> None:
    """Paths that lead out, links, devices, names that stand twice, and what says where it was made."""
    refused(tmp_path / "b.tar", tar(*packed(), entry), reason)


def test_hostile_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, good = tmp_path / "b.tar", tar(*packed())
    for at in (0, 100, 136, 150, 257, 345, 600, len(good) - 1):  # name, mode, date, sums, magic, padding
        refused(path, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], "b.tar: ")
    refused(path, good + b"more", "not packed as tv-emit does; unpack it, check that")
    refused(path, good[:-512], "not packed as tv-emit does")
    refused(path, tar(*reversed(packed())), "not packed as tv-emit does")
    refused(path, tar(*packed(), form=tarfile.PAX_FORMAT)[:5000], "b.tar: ")
    refused(path, b"", "b.tar: ")
    refused(path, b"no archive" * 100, "no archive of a bundle")
    refused(path, tar(), "not packed as tv-emit does")
    refused(path, gzip.compress(good)[:-9], "b.tar: cannot be read")
    refused(tmp_path / "none", b"", "none: ")
    (tmp_path / "link.tar").symlink_to(path)
    with pytest.raises(Malformed, match=r"link.tar: a link"):
        folders.read_bundle(tmp_path / "link.tar")
    with pytest.raises(Malformed, match="nothing: cannot be read"):
        folders.read_bundle(tmp_path / "nothing")
    for name, least, reason in (
        ("MAX_FILES", len(packed()), "too large"),
        ("MAX_TOTAL", sum(len(d) for _, d, _ in packed()), "too large"),
        ("MAX_BYTES", max(len(d) for _, d, _ in packed()), "is larger than"),
        ("MAX_ARCHIVE", len(good), "larger than"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(folders, name, least)
            path.write_bytes(good)
            folders.read_bundle(path)
            patch.setattr(folders, name, least - 1)
            refused(path, good, reason)
            refused(path, gzip.compress(good), reason)


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_parallel().write(tmp_path / "b")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders.os, "scandir", refuse)
    with pytest.raises(Malformed, match=rf"^{folder}: cannot be read \(Permission denied\)"):
        folders.read_bundle(folder)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for broken in (gzip.compress(b"12345")[:-9], gzip.compress(b"12345")[:-1]):
        (tmp_path / "broken.gz").write_bytes(broken)
        with pytest.raises(Malformed, match=r"broken.gz: cannot be read"):
            folders.read_plan_file(tmp_path / "broken.gz")
    (tmp_path / "plain.gz").write_bytes(b"no gzip")
    assert folders.read_plan_file(tmp_path / "plain.gz") == b"no gzip", "the content says, not the name"
