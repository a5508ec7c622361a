"""What runs have finished, in a file: a killed run continues there, the next one has what still holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PART, _DIGITS = b'["part", "', 64


@dataclass
class Journal:
    """Solver answers by key, one JSON line each; without a path they are kept in memory only.

    A kill can cut the last line short; it is dropped. Whatever is read back is a guess or is keyed by
    everything that it depends on (see :func:`key`). Beside answers there may be *parts* of finished proofs,
    which are large and decoded when they are asked for.
    """

    path: Path | None = None
    _entries: dict[str, object] = field(default_factory=dict)
    _parts: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            self.path.write_bytes(data[: data.rfind(b"\n") + 1])
        for line in data.splitlines():
            if line.startswith(_PART):
                name = line[len(_PART) : len(_PART) + _DIGITS].decode("ascii", "replace")
                self._parts[name] = line
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
            with self.path.open("ab") as out:
                out.write(_line(name, value) + b"\n")

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
        self._parts = {n: self._parts.get(n) or _line("part", n, part) for n, part in parts.items()}
        if self.path is not None:
            scratch = self.path.with_name(self.path.name + ".partial")
            lines = [*(_line(name, value) for name, value in self._entries.items()), *self._parts.values()]
            scratch.write_bytes(b"".join(line + b"\n" for line in lines))
            scratch.replace(self.path)

    def delete(self) -> None:
        """The run is complete: nothing to continue."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _line(*values: object) -> bytes:
    return json.dumps(values).encode("ascii")


def key(*parts: str) -> str:
    """SHA-256 over the parts with their lengths."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()
