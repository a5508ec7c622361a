"""The parts of a training step, each with right plans and mistakes."""

from __future__ import annotations

from . import data_parallel, megatron, zero1
from .kit import Part

PARTS: dict[str, Part] = {
    "1": data_parallel.PART,
    "3": zero1.ZERO1,
    "4": megatron.TENSOR,
    "10": megatron.FINAL,
    "11": megatron.CLIP,
    "12": zero1.ADAMW,
}
