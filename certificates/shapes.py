"""The shapes of JSON values that readers ask for; of another one a :class:`FormatError` says what it is."""

from __future__ import annotations

from collections.abc import Collection

from .errors import FormatError


def as_object(data: object, what: str, keys: Collection[str]) -> dict[str, object]:
    """An object with exactly these keys."""
    if not isinstance(data, dict) or set(data) != set(keys):
        raise FormatError(f"{what} must be an object with exactly the keys {', '.join(sorted(keys))}")
    return data


def as_list(data: object, what: str) -> list[object]:
    """A list."""
    if not isinstance(data, list):
        raise FormatError(f"{what} must be a list")
    return data


def as_text(data: object, what: str) -> str:
    """A string."""
    if not isinstance(data, str):
        raise FormatError(f"{what} must be a string")
    return data
