"""The exceptions of this package: malformed documents only."""

from __future__ import annotations


class FormatError(ValueError):
    """A plan or bundle is unreadable, malformed or ill-typed. Commands exit with code 5 on it."""
