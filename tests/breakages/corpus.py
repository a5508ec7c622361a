"""The parts of a training step, each with right plans and mistakes."""

from __future__ import annotations

from . import data_parallel
from .kit import Part

PARTS: dict[str, Part] = {
    "1": data_parallel.PART,
}
