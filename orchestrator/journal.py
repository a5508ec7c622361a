"""What a run has finished, appended to a file, so that a killed run continues where it stood."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Journal:
    """Answers by key, one JSON line each; without a path they are kept in memory only.

    A kill can cut the last line short; it is dropped. Whatever is read back is a guess or is keyed by
    everything that it depends on (see :func:`key`).
    """

    path: Path | None = None
    _entries: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            self.path.write_bytes(data[: data.rfind(b"\n") + 1])
        for line in data.splitlines():
            try:
                name, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            if isinstance(name, str):
                self._entries[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> object:
        return self._entries.get(name)

    def put(self, name: str, value: object) -> None:
        """Record one answer; it is in the file when this returns."""
        self._entries[name] = value
        if self.path is not None:
            with self.path.open("a", encoding="ascii") as out:
                out.write(json.dumps([name, value]) + "\n")

    def delete(self) -> None:
        """The run is complete: nothing to continue."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def key(*parts: str) -> str:
    """SHA-256 over the parts with their lengths."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()
