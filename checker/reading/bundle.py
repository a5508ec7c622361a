"""Reads a bundle folder: plain files only, no links, nothing outside, sizes capped."""

from __future__ import annotations

import gzip
import io
import os
import stat
from pathlib import Path

from ..errors import Malformed, need
from .strict import MAX_BYTES

MAX_FILES, MAX_TOTAL = 100_000, 1 << 29


def read_file(path: Path, what: str) -> bytes:
    """The bytes of a regular file that is no link."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            need(stat.S_ISREG(os.fstat(handle).st_mode), f"{what}: no plain file")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Malformed(f"{what}: cannot be read ({error.strerror})") from None
    need(len(data) <= MAX_BYTES, f"{what}: larger than {MAX_BYTES} bytes")
    return data


def read_plan_file(path: Path) -> bytes:
    """A plan file's uncompressed bytes; `.gz` is decompressed under the same cap."""
    data = read_file(path, str(path))
    try:
        if path.suffix == ".gz":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES + 1)
    except (OSError, EOFError, ValueError, ArithmeticError) as error:
        raise Malformed(f"{path}: cannot be read ({type(error).__name__})") from None
    need(len(data) <= MAX_BYTES, f"{path}: larger than {MAX_BYTES} bytes")
    return data


def read_bundle(folder: Path) -> dict[str, bytes]:
    """Every file of the bundle by its relative name; `obligations` is the only folder inside."""
    need(folder.is_dir() and not folder.is_symlink(), f"{folder}: no folder")
    members: dict[str, bytes] = {}
    total = 0
    for prefix in ("", "obligations/"):
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
                need(name == "obligations", f"{name!r:.80}: an unexpected folder")
                continue
            members[name] = read_file(Path(entry.path), name)
            total += len(members[name])
            need(len(members) <= MAX_FILES and total <= MAX_TOTAL, "the bundle is too large")
    for name in ("manifest.json", "plan.json", "proof.json"):
        need(name in members, f"{name} is missing")
    return members
