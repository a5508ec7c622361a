"""The exception of this package."""

from __future__ import annotations


class NoDefinition(Exception):
    """An op has no ``def`` premise in this kind of stage; the message names op, tensor and rule."""
