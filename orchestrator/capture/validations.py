"""Questions to a tensor of which one answer only raises: ``assert torch.isfinite(loss)``, and PyTorch's own.

A trace has no values, and a job in which the exception is raised has no such step. So the other answer is
given, unless somebody would handle the exception and go on: what a step does then, a trace does not show.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .handlers import goes_on

_TORCH = torch.__file__.rpartition("/")[0] + "/"
_ENDS = ("RAISE_VARARGS", "RERAISE")
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "RETURN_GENERATOR", "YIELD_VALUE", "SEND")


@contextmanager
def validated() -> Iterator[None]:
    """``bool`` of a tensor without a value is what does not raise."""
    asked = torch.Tensor.__bool__

    def answer(tensor: Any) -> bool:
        frame = sys._getframe(1)
        unknown = tensor.constant is None and not any(isinstance(n, torch.SymInt) for n in tensor.shape)
        says = _passes(frame.f_code, frame.f_lasti) if unknown and tensor.numel() == 1 else None
        return bool(asked(tensor)) if says is None or goes_on(frame, _judged(frame)) else says

    FakeTensor.__bool__ = answer
    try:
        yield
    finally:
        del FakeTensor.__bool__


def _judged(frame: FrameType | None) -> Callable[[FrameType], bool]:
    """All code but PyTorch's counts; its own where it asks itself."""
    return lambda each: each is frame or not each.f_code.co_filename.startswith(_TORCH)


@functools.cache
def _passes(code: CodeType, place: int) -> bool | None:
    """The answer to the question at a place of the code behind which it does not only raise an exception.

    ``None`` if neither answer leads to that, or if it is no question of an ``if``, ``assert`` or ``while``.
    """
    steps = list(dis.get_instructions(code))
    at = {step.offset: i for i, step in enumerate(steps)}
    here = at[place] + (steps[at[place]].opname == "TO_BOOL")
    jump = steps[here].opname
    if not jump.startswith("POP_JUMP") or not jump.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = jump.endswith("IF_TRUE")
    if _only_raises(steps, at, here + 1):
        return jumps_if
    return not jumps_if if _only_raises(steps, at, at[steps[here].argval]) else None


def _only_raises(steps: list[dis.Instruction], at: dict[int, int], begin: int) -> bool:
    """Does every way from here end in an exception that the code raises itself?"""
    waiting, seen = [begin], set[int]()
    while waiting:
        i = waiting.pop()
        while steps[i].opname not in _ENDS and i not in seen:
            if steps[i].opname in _LEAVES:
                return False
            seen.add(i)
            if "JUMP" in steps[i].opname or steps[i].opname == "FOR_ITER":
                waiting.append(at[steps[i].argval])
                if steps[i].opname.startswith("JUMP_") and "IF" not in steps[i].opname:
                    break
            i += 1
    return True
