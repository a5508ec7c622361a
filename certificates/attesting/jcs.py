"""Canonical JSON (RFC 8785) of texts, integers, truth values, lists and objects.

Floats have no place in an attestation, so the part of the standard that prints them is not here.
"""

from __future__ import annotations

import json

from ..errors import FormatError

#: Integers that every reader of JSON keeps exactly (RFC 8785, 3.2.2.3 and appendix B).
EXACT = 2**53 - 1


def canonical(value: object) -> bytes:
    """The one spelling of a value, in UTF-8; ``FormatError`` for what has none here."""
    try:
        return _text(value).encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError("a text with half of a surrogate pair has no canonical form") from None


def _text(value: object) -> str:
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case int() if abs(value) <= EXACT:
            return str(value)
        case list() | tuple():
            return f"[{','.join(map(_text, value))}]"
        case dict() if all(isinstance(key, str) for key in value):
            keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
            return f"{{{','.join(f'{_text(key)}:{_text(value[key])}' for key in keys)}}}"
    raise FormatError(f"{value!r:.60} has no canonical form in an attestation")
