"""Captures a training step from PyTorch code as a plan (extra ``torch``); see ``docs/capture.md``."""

from .assemble import capture
from .definition import Batch, Definition
from .errors import CaptureError, UnsupportedOpError

__all__ = ["Batch", "CaptureError", "Definition", "UnsupportedOpError", "capture"]
