"""Reads a bundle folder: plain files only, no links, nothing outside, sizes capped."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

from .errors import Malformed
from .reader import MAX_BYTES

MAX_FILES = 100_000


def read_file(path: Path, what: str) -> bytes:
    """The bytes of a regular file that is no link."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Malformed(f"{what}: no plain file")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Malformed(f"{what}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise Malformed(f"{what}: larger than {MAX_BYTES} bytes")
    return data


def read_plan_file(path: Path) -> bytes:
    """A plan file's uncompressed bytes; `.gz` is decompressed under the same cap."""
    if path.suffix != ".gz":
        return read_file(path, str(path))
    try:
        with gzip.open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, ValueError) as error:
        raise Malformed(f"{path}: cannot be read ({type(error).__name__})") from None
    if len(data) > MAX_BYTES:
        raise Malformed(f"{path}: larger than {MAX_BYTES} bytes")
    return data


def read_bundle(folder: Path) -> dict[str, bytes]:
    """Every file of the bundle by its relative name; `obligations` is the only folder inside."""
    if folder.is_symlink() or not folder.is_dir():
        raise Malformed(f"{folder}: no folder")
    members: dict[str, bytes] = {}
    for prefix in ("", "obligations/"):
        place = folder / prefix
        if prefix and not os.path.lexists(place.parent / "obligations"):
            continue
        try:
            entries = sorted(os.scandir(place), key=lambda e: e.name)
        except OSError as error:
            raise Malformed(f"{prefix or folder}: cannot be read ({error.strerror})") from None
        for entry in entries:
            name = prefix + entry.name
            if entry.is_symlink():
                raise Malformed(f"{name!r:.80}: a link")
            if entry.is_dir(follow_symlinks=False):
                if name != "obligations":
                    raise Malformed(f"{name!r:.80}: an unexpected folder")
                continue
            if len(members) >= MAX_FILES:
                raise Malformed("too many files")
            members[name] = read_file(Path(entry.path), name)
    for name in ("manifest.json", "plan.json", "proof.json"):
        if name not in members:
            raise Malformed(f"{name} is missing")
    return members
