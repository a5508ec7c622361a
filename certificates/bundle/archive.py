"""Where a bundle lies: a folder, or one archive, the same bytes on every machine.

The archive is a plain ustar file: what a compressor writes depends on its version. Whoever sends one may
compress it (``.tar.gz`` is read).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..canonical import MAX_BYTES, read_bytes
from ..errors import FormatError

SUFFIXES = (".tar", ".tar.gz")


def is_archive(path: Path) -> bool:
    """By its name: what is written there is an archive."""
    return path.name.endswith(SUFFIXES)


def tar_bytes(root: str, files: Mapping[str, bytes]) -> bytes:
    """One archive with all files in the folder ``root``, in the order of names, without dates and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode = len(files[name]), 0o644
            tar.addfile(entry, io.BytesIO(files[name]))
    return out.getvalue()


def read_files(path: Path) -> dict[str, bytes]:
    """Every file of a folder or an archive by its name inside; links and devices are a ``FormatError``."""
    if path.is_dir():
        return {
            str(p.relative_to(path)): read_bytes(p)
            for p in sorted(path.rglob("*"))
            if p.is_symlink() or not p.is_dir()
        }
    files = dict(_entries(path))
    if len({name.partition("/")[0] for name in files}) != 1:
        raise FormatError(f"{path} is no archive of one folder")
    return {name.partition("/")[2]: data for name, data in files.items()}


def read_member(path: Path, name: str) -> bytes:
    """One member of a bundle, as it is; its digest is not looked at."""
    if path.is_dir():
        return read_bytes(path / "data" / name if (path / "data").is_dir() else path / name)
    files = read_files(path)
    if f"data/{name}" not in files:
        raise FormatError(f"{path} has no data/{name}")
    return files[f"data/{name}"]


def _entries(path: Path) -> Iterator[tuple[str, bytes]]:
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(read_bytes(path)), mode="r:") as tar:
            for entry in tar:
                if entry.isdir():
                    continue
                parts = entry.name.split("/")
                total += entry.size
                if not entry.isreg() or total > MAX_BYTES or len(parts) < 2 or {"", ".", ".."} & set(parts):
                    raise FormatError(f"{path} holds {entry.name[:80]!r}, which is no plain file of a bundle")
                content = tar.extractfile(entry)
                yield entry.name, content.read() if content else b""
    except (tarfile.TarError, EOFError) as error:
        raise FormatError(f"{path} is no archive of a bundle: {error}") from None
