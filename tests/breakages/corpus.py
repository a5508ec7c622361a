"""The parts of a training step, each with right plans and mistakes."""

from __future__ import annotations

from . import (
    accumulation,
    checkpointing,
    data_parallel,
    masks,
    megatron,
    sharded,
    vocabulary,
    zero1,
)
from .kit import Part

PARTS: dict[str, Part] = {
    "1": data_parallel.PART,
    "2": sharded.PART,
    "3": zero1.ZERO1,
    "4": megatron.TENSOR,
    "5": vocabulary.PART,
    "6": accumulation.ACCUMULATION,
    "7": checkpointing.PART,
    "8": accumulation.COUNTS,
    "9": masks.PART,
    "10": megatron.FINAL,
    "11": megatron.CLIP,
    "12": zero1.ADAMW,
}
