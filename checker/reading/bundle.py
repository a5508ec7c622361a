"""Reads the files of a bundle, a folder or an archive: plain files only, no links, nothing outside, capped.

What a bag is: RFC 8493. That its files are those which it lists is obligation 1."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import Malformed, need
from .strict import MAX_BYTES

MAX_FILES, MAX_TOTAL = 100_000, 1 << 29
MAX_ARCHIVE = MAX_TOTAL + 2048 * MAX_FILES
TAGS = "tagmanifest-sha256.txt"
FOLDERS = ("", "obligations/", "data/", "data/obligations/", "data/schemas/")
PLACE = re.compile(rf"[a-z0-9-]{{1,60}}/({'|'.join(FOLDERS)})[A-Za-z0-9][A-Za-z0-9._-]{{0,60}}")


def read_file(path: Path, what: str, most: int = 0) -> bytes:
    """The bytes of a regular file that is no link; `most` of them, by default those of one member."""
    most = most or MAX_BYTES
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            need(stat.S_ISREG(found.st_mode), f"{what}: no plain file")
            data = file.read(min(most, found.st_size) + 1)
    except OSError as error:
        raise Malformed(f"{what}: cannot be read ({error.strerror})") from None
    need(len(data) <= most, f"{what}: larger than {most} bytes")
    return data


def unpacked(data: bytes, what: str, most: int) -> bytes:
    """Without the compression of gzip, if it has that; under a cap."""
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most + 1)
    except (OSError, EOFError, ValueError, ArithmeticError, zlib.error) as error:
        raise Malformed(f"{what}: cannot be read ({type(error).__name__})") from None
    need(len(data) <= most, f"{what}: larger than {most} bytes")
    return data


def read_plan_file(path: Path) -> bytes:
    """A plan file's uncompressed bytes."""
    return unpacked(read_file(path, str(path)), str(path), MAX_BYTES)


def read_bundle(path: Path) -> dict[str, bytes]:
    """Every file of a bundle: of version 1 by its name in the folder, of a bag by its name in `data/`, or in
    the bag if it is the bag's own."""
    files = dict(_folder(path) if path.is_dir() or path.is_symlink() else _archive(path))
    members, bag = dict[str, bytes](), "bagit.txt" in files or TAGS in files
    for name, data in files.items():
        own = name.removeprefix("data/") if bag else name
        need(own not in members, f"{own[:80]!r} stands both in data/ and beside it")
        members[own] = data
    for name in ("manifest.json", "plan.json", "proof.json"):
        need(name in members, f"{name} is missing")
    return members


def _folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files only, and no folder but those of a bundle."""
    need(not folder.is_symlink(), f"{folder}: a link")
    count = total = 0
    for prefix in FOLDERS:
        try:
            entries = sorted(os.scandir(folder / prefix), key=lambda e: e.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Malformed(f"{prefix or folder}: cannot be read ({error.strerror})") from None
        for entry in entries:
            name = prefix + entry.name
            need(not entry.is_symlink(), f"{name!r:.80}: a link")
            if entry.is_dir(follow_symlinks=False):
                need(f"{name}/" in FOLDERS, f"{name!r:.80}: an unexpected folder")
                continue
            data = read_file(Path(entry.path), name)
            count, total = count + 1, total + len(data)
            need(count <= MAX_FILES and total <= MAX_TOTAL, "the bundle is too large")
            yield name, data


def _archive(path: Path) -> dict[str, bytes]:
    """The files of an archive, which must be what `tv-emit` writes of them: no other byte is in it."""
    data = unpacked(read_file(path, str(path), MAX_ARCHIVE), str(path), MAX_ARCHIVE)
    files: dict[str, bytes] = {}
    root, total = "", 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for entry in tar:
                first, _, name = entry.name.partition("/")
                where = f"{path}: {entry.name[:80]!r}"
                root, total = root or first, total + entry.size
                need(entry.type == tarfile.REGTYPE and not entry.sparse, f"{where} is no plain file")
                need(
                    first == root and PLACE.fullmatch(entry.name) is not None,
                    f"{where} is no file of a bundle",
                )
                need(name not in files, f"{where} is there twice")
                need(entry.size <= MAX_BYTES, f"{where} is larger than {MAX_BYTES} bytes")
                need(len(files) < MAX_FILES and total <= MAX_TOTAL, "the bundle is too large")
                files[name] = tar.extractfile(entry).read()  # type: ignore[union-attr]
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise Malformed(f"{path}: no archive of a bundle ({type(error).__name__})") from None
    need(
        bool(files) and data == _packed(root, files),
        f"{path}: not packed as tv-emit does; unpack it, check that",
    )
    return files


def _packed(root: str, files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size = len(files[name])
            tar.addfile(entry, io.BytesIO(files[name]))
    return out.getvalue()
