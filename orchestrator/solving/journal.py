"""What runs have finished, in a file: a killed run continues there, the next one has what still holds.

Emissions may share such a file at one time: each holds it alone while it adds to it, so that no answer is
lost or torn. Only files that begin with :data:`HEADER` are read, changed or deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from ..errors import ForeignFile

HEADER = b'["trainverify-journal", 1]\n'
_PART, _DIGITS = b'["part", "', 64


@dataclass
class Journal:
    """Solver answers by key, one JSON line each; without a path they are kept in memory only.

    A kill can cut the last line short; it is dropped. A file of others is a :class:`ForeignFile`. Whatever is
    read back is a guess or is keyed by everything that it depends on (see :func:`key`). Beside answers there
    may be *parts* of finished proofs, which are large and decoded when they are asked for.
    """

    path: Path | None = None
    _entries: dict[str, object] = field(default_factory=dict)
    _parts: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        self.path = self.path.resolve()
        if not self.path.exists():
            return
        with _held(self.path) as file:
            data = file.readall()
            if not data.endswith(b"\n"):
                os.truncate(file.fileno(), data.rfind(b"\n") + 1)
                data = data[: data.rfind(b"\n") + 1]
        for line in data[len(HEADER) :].splitlines():
            part = _part_of(line)
            if part is not None:
                self._parts[part] = line
                continue
            try:
                name, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            if isinstance(name, str):
                self._entries[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self._entries)

    def get(self, name: str) -> object:
        return self._entries.get(name)

    def put(self, name: str, value: object) -> None:
        """Record one answer; it is in the file when this returns."""
        self._entries[name] = value
        if self.path is not None:
            with _held(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                torn = os.pread(file.fileno(), 1, size - 1) != b"\n"  # by another emission that was killed
                try:
                    _write(file, b"\n" * torn + _line(name, value) + b"\n")
                except BaseException:
                    os.truncate(file.fileno(), size)
                    raise

    def part(self, name: str) -> object:
        """A part of a proof, or ``None``."""
        try:
            return json.loads(self._parts[name])[-1] if name in self._parts else None
        except ValueError:
            del self._parts[name]
            return None

    def keep_parts(self, parts: Mapping[str, object]) -> None:
        """Keep these parts and no others; what a name stands for never changes."""
        if parts.keys() == self._parts.keys():
            return
        stale = self._parts.keys() - parts.keys()
        self._parts = {n: self._parts.get(n) or _line("part", n, part) for n, part in parts.items()}
        if self.path is not None:
            with _held(self.path) as file:
                # What another emission has added since this one began stays.
                lines = file.readall()[len(HEADER) :].splitlines()
                kept = [line for line in lines if _part_of(line) not in (*stale, *parts)]
                _replace(self.path, file, [*kept, *self._parts.values()])

    def delete(self) -> None:
        """The run is complete: nothing to continue."""
        if self.path is not None and self.path.exists():
            with _held(self.path):
                self.path.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[FileIO]:
    """The file at its beginning, held by this process alone; it is made if it is not there."""
    while True:
        with FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666), "r+") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ForeignFile(f"{path} is not a regular file")
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _still(path, file):
                continue  # it was replaced or deleted while this process waited
            begin = os.pread(file.fileno(), len(HEADER), 0)
            if begin != HEADER:
                if not HEADER.startswith(begin):
                    raise ForeignFile(f"{path} exists and is no file of answers; it is not changed")
                os.truncate(file.fileno(), 0)
                _write(file, HEADER)
                file.seek(0)
            yield file
            return


def _still(path: Path, file: FileIO) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def _write(file: FileIO, data: bytes) -> None:
    """All of the data: a disk that fills up takes a part of it first."""
    while data:
        data = data[file.write(data) :]


def _replace(path: Path, old: FileIO, lines: list[bytes]) -> None:
    """The file with other lines, or, whatever happens, as it was."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with FileIO(handle, "w") as scratch:
            os.fchmod(handle, stat.S_IMODE(os.fstat(old.fileno()).st_mode))
            _write(scratch, HEADER + b"".join(line + b"\n" for line in lines))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _part_of(line: bytes) -> str | None:
    """The name of the part that a line holds."""
    named = line.startswith(_PART)
    return line[len(_PART) : len(_PART) + _DIGITS].decode("ascii", "replace") if named else None


def _line(*values: object) -> bytes:
    return json.dumps(values).encode("ascii")


def key(*parts: str) -> str:
    """SHA-256 over the parts with their lengths."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()
