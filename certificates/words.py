"""Words on terminals and in reports: nothing that a stranger's file contains can steer a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Of all packages; ``pyproject.toml`` has the same.
VERSION = "0.1.0"
#: More lines than this are folded.
MANY = 200


def clean(text: object) -> str:
    """Printable ASCII; everything else as a backslash escape."""
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    ascii_only = whole.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in ascii_only)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def folded(lines: Sequence[str], many: int = MANY) -> list[str]:
    """Of many lines, those that differ in numbers only as one; a missing proof keeps its own."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        alone = len(lines) <= many or line.startswith(("  REFUTED", "  UNKNOWN"))
        kinds.setdefault(line if alone else re.sub("[0-9]+", "#", line), []).append(line)
    return [
        found[0] if len(found) == 1 else f"{kind} ({len(found)} such lines)" for kind, found in kinds.items()
    ]


def one_line(error: BaseException, limit: int = 500) -> str:
    """A message fit for one line of a terminal, whatever the file contained."""
    text = clean(" ".join(str(error).split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."
