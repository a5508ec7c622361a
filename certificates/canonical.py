"""JSON as it is archived: strict in, canonical out, and the bytes of files with their digest."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

from certificates.errors import FormatError

MAX_BYTES = 1 << 30


def read_bytes(path: Path) -> bytes:
    """The uncompressed bytes of a plan file.

    What is over 1 GiB, a pipe, a device, or not gzip after all is a ``FormatError``.
    """
    try:
        # Otherwise who opens a pipe waits for its other end, and a terminal may take over the process.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path} is no regular file")
            if found.st_size > MAX_BYTES:
                raise FormatError(f"{path} is over {MAX_BYTES} bytes")
            data = file.read(found.st_size + 1)  # to read with a larger limit takes as much memory
        if len(data) > found.st_size:
            raise FormatError(f"{path} grows while it is read")
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    if data[:2] == b"\x1f\x8b":
        try:
            engine = zlib.decompressobj(wbits=31)
            data = engine.decompress(data, MAX_BYTES)
        except zlib.error as error:
            raise FormatError(f"{path} is a damaged gzip file: {error}") from error
        if engine.unconsumed_tail:
            raise FormatError(f"{path} unpacks to more than {MAX_BYTES} bytes")
        if not engine.eof:
            raise FormatError(f"{path} is a truncated gzip file")
        if engine.unused_data:
            raise FormatError(f"{path} has data after the end of its gzip stream")
    return data


def parse_json(data: bytes) -> object:
    """JSON without floats, duplicate keys, integers of more than 18 digits or absurd nesting."""

    def no_float(text: str) -> object:
        raise FormatError(f"floating-point number {text[:20]} in the document; write a rational string")

    def short(text: str) -> int:
        if len(text) > 18 and len(text.lstrip("-")) > 18:
            raise FormatError(f"integer {text[:20]}... has more than 18 digits")
        return int(text)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise FormatError("an object of the document repeats a key")
        return out

    try:
        return json.loads(
            data,
            parse_float=no_float,
            parse_int=short,
            parse_constant=no_float,
            object_pairs_hook=unique,
        )
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a JSON document: {error}") from error


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical_text(data: object) -> str:
    """Deterministic JSON: sorted keys, no white space, ASCII."""
    return _CANONICAL.encode(data)


def object_text(members: Mapping[str, str]) -> str:
    """A canonical JSON object of members that are canonical JSON."""
    return "{" + ",".join(f"{canonical_text(key)}:{members[key]}" for key in sorted(members)) + "}"


def canonical_bytes(data: object) -> bytes:
    """A deterministic JSON document, with a newline at its end."""
    return (canonical_text(data) + "\n").encode("ascii")


def digest(data: bytes) -> str:
    """SHA-256 of uncompressed document bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
