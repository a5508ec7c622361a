"""Captures a training step from PyTorch code as a plan (extra ``torch``); see ``docs/capture.md``.

The names below are loaded on first use, so that importing this package needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import CaptureError, FingerprintError, UnsupportedOpError

if TYPE_CHECKING:
    from .assemble import capture
    from .definition import Batch, Bucket, Definition

__all__ = [
    "Batch",
    "Bucket",
    "CaptureError",
    "Definition",
    "FingerprintError",
    "UnsupportedOpError",
    "capture",
]

_HOMES = {"capture": ".assemble"} | dict.fromkeys(("Batch", "Bucket", "Definition"), ".definition")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
