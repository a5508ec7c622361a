"""``about.json``: what the maker says of the run; nothing of it is proved, and a signature covers it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..canonical import parse_json
from ..errors import FormatError

#: What may be said, and what it is.
FIELDS = {
    "who": "who made the bundle",
    "when": "when, for example 2026-11-24",
    "commit": "the source commit of the training code",
    "config": "the configuration, or its digest",
    "image": "the container image, by digest",
    "launch": "the fingerprint of the launch",
    "dataset": "the identity of the data set",
    "note": "anything else, in one line",
}
_LINE = re.compile(r"[ -~]{1,200}")


def checked_about(said: Mapping[str, object], where: str = "about.json") -> dict[str, str]:
    """Texts of known names, in one line of printable ASCII, or a ``FormatError``."""
    found: dict[str, str] = {}
    for name, value in said.items():
        if name not in FIELDS:
            raise FormatError(
                f"{where}: nothing is said under the name {name[:60]!r}; known: {', '.join(FIELDS)}"
            )
        if not isinstance(value, str) or not _LINE.fullmatch(value):
            raise FormatError(f"{where}: {name} must be one line of 1 to 200 printable ASCII characters")
        found[name] = value
    return found


def read_about(data: bytes, where: str = "about.json") -> dict[str, str]:
    """What an ``about`` file says."""
    raw = parse_json(data)
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: an object is expected")
    return checked_about(raw, where)
