"""Archives of bundles: the same bytes everywhere, and nothing but plain files comes out of one."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from certificates.bundle.archive import is_archive, read_files, read_member, tar_bytes
from certificates.errors import FormatError

FILES = {"data/manifest.json": b"{}\n", "bagit.txt": b"x" * 600}


def test_an_archive_has_the_same_bytes_on_every_machine() -> None:
    """A digest that stands here: no date, owner, umask or version of a library has a part in it."""
    data = tar_bytes("root", FILES)
    assert data == tar_bytes("root", dict(reversed(FILES.items())))
    assert hashlib.sha256(data).hexdigest() == DIGEST
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(t.name, t.mtime, t.uid, t.uname, t.mode) for t in tar] == [
            ("root/bagit.txt", 0, 0, "", 0o644),
            ("root/data/manifest.json", 0, 0, "", 0o644),
        ]


DIGEST = "44bf54fea5957184bf5d8ba543ef60d4f58cdba829ae69b896705e426d04101e"


def test_files_are_read_from_folders_and_archives(tmp_path: Path) -> None:
    (tmp_path / "b/data").mkdir(parents=True)
    for name, content in FILES.items():
        (tmp_path / "b" / name).write_bytes(content)
    (tmp_path / "b.tar").write_bytes(tar_bytes("root", FILES))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(tar_bytes("root", FILES)))
    for name in ("b", "b.tar", "b.tar.gz"):
        assert read_files(tmp_path / name) == FILES
        assert read_member(tmp_path / name, "manifest.json") == b"{}\n"
        with pytest.raises(FormatError, match=r"plan\.json"):
            read_member(tmp_path / name, "plan.json")
    assert not is_archive(tmp_path / "b") and is_archive(tmp_path / "b.tar.gz")


def entry(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("root/a"))
        strange = tarfile.TarInfo(name)
        strange.type, strange.linkname = kind, "/etc/passwd"
        tar.addfile(strange)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (entry("root/../x"), "no plain file of a bundle"),
        (entry("/x"), "no plain file of a bundle"),
        (entry("x"), "no plain file of a bundle"),
        (entry("root/x", tarfile.SYMTYPE), "no plain file of a bundle"),
        (entry("root/x", tarfile.CHRTYPE), "no plain file of a bundle"),
        (entry("other/x"), "no archive of one folder"),
        (b"", "no archive"),
        (b"junk" * 200, "no archive"),
    ],
)
def test_hostile_archives(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(FormatError, match=reason):
        read_files(tmp_path / "b.tar")
