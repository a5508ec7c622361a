"""A bag (RFC 8493): payload in ``data/``, its digests, and tag files that say no more than they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..canonical import digest
from ..errors import FormatError

DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
PAYLOAD, TAGS = "manifest-sha256.txt", "tagmanifest-sha256.txt"
_LINE = re.compile(r"([0-9a-f]{64})  ([!-~]+)")


def sealed(payload: Mapping[str, bytes], info: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """All files of the bag by their names in it. ``info`` are labels and values of ``bag-info.txt``."""
    files = {f"data/{name}": payload[name] for name in sorted(payload)}
    size = f"{sum(map(len, payload.values()))}.{len(payload)}"
    lines = [f"{label}: {value}\n" for label, value in (*info, ("Payload-Oxum", size))]
    tags = {
        "bagit.txt": DECLARATION,
        "bag-info.txt": "".join(lines).encode("ascii"),
        PAYLOAD: listing(files),
    }
    return files | tags | {TAGS: listing(tags)}


def listing(files: Mapping[str, bytes]) -> bytes:
    """Lines that ``sha256sum -c`` reads, in the order of names."""
    return "".join(f"{digest(files[name])}  {name}\n" for name in sorted(files)).encode("ascii")


def opened(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The payload by names without ``data/``; a ``FormatError`` if the bag is not what its manifests list."""
    if files.get("bagit.txt") != DECLARATION:
        raise FormatError("bagit.txt declares no bag of version 1.0")
    wanted = listed(files, TAGS) | listed(files, PAYLOAD) | {TAGS: digest(files.get(TAGS, b""))}
    for name in sorted({*wanted, *files}):
        if name not in wanted:
            raise FormatError(f"{name} is not listed in the bag")
        if name not in files or digest(files[name]) != wanted[name]:
            raise FormatError(f"{name} is missing or has not the SHA-256 that the bag lists")
    return {name[5:]: data for name, data in files.items() if name.startswith("data/")}


def listed(files: Mapping[str, bytes], manifest: str) -> dict[str, str]:
    """Digests by name, as a manifest of the bag lists them."""
    if manifest not in files:
        raise FormatError(f"{manifest} is missing")
    found: dict[str, str] = {}
    for line in files[manifest].decode("ascii", "replace").splitlines():
        parts = _LINE.fullmatch(line)
        if parts is None or parts[2] in found or parts[2].startswith("data/") != (manifest == PAYLOAD):
            raise FormatError(f"{manifest}: {line[:90]!r} is no line of the form 'SHA-256  NAME'")
        found[parts[2]] = parts[1]
    return found
