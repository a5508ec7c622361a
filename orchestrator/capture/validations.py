"""Questions to a tensor of which one answer only raises: ``assert torch.isfinite(loss)``, and PyTorch's own.

A trace has no values, and a job in which the exception is raised has no such step. So the other answer is
given, unless somebody would handle the exception and go on: what a step does then, a trace does not show.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import sys
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

#: The package's own folder.
_OWN = __file__.rpartition("/")[0] + "/"
_TORCH = torch.__file__.rpartition("/")[0] + "/"
#: Context managers of PyTorch and Python that handle no exception.
_PASS_ON = frozenset(
    (
        *("no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "no_sync"),
        *("nullcontext", "record_function", "sdpa_kernel", "loss_parallel", "implicit_replication"),
        "profile",
    )
)
_HOMES = ("torch", "contextlib")
#: Steps that do nothing to what a context manager is.
_NOTHING = frozenset(("NOP", "PUSH_NULL", "RESUME"))
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
        return bool(asked(tensor)) if says is None or _goes_on(frame) else says

    FakeTensor.__bool__ = answer
    try:
        yield
    finally:
        del FakeTensor.__bool__


def _goes_on(frame: FrameType | None) -> bool:
    """May anybody around go on after an exception that is raised here?"""
    first = frame
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN):
        if frame is first or not frame.f_code.co_filename.startswith(_TORCH):
            blocks = _blocks(frame.f_code, frame.f_lasti)
            if blocks is None or not all(_passes_on(frame, begins) for begins in blocks):
                return True
        frame = frame.f_back
    return False


@functools.cache
def _blocks(code: CodeType, place: int) -> tuple[int, ...] | None:
    """Where the blocks of the context managers around a place begin; ``None`` if there is a handler that may
    end otherwise than by raising."""
    steps = list(dis.get_instructions(code))
    table: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    found: list[int] = []
    while (entry := _around(table, place)) is not None:
        # What a handler itself leaves by, if an exception is raised in it.
        last = _around(table, entry.target)
        until = entry.target if last is None else last.target
        ops = [step.opname for step in steps if entry.target <= step.offset < until]
        if "WITH_EXCEPT_START" in ops[:2]:
            found.append(entry.start)
        elif "POP_EXCEPT" in ops:
            return None
        place = next(s.offset for s in steps if s.offset >= until and s.opname == "RERAISE")
    return tuple(found)


def _around(table: list[Any], place: int) -> Any:
    return next((entry for entry in table if entry.start <= place < entry.end), None)


def _passes_on(frame: FrameType, begins: int) -> bool:
    """Is the context manager that was entered last before a block begins one that handles nothing?"""
    found: Any = None
    names = _manager(frame.f_code, begins)
    for i, name in enumerate(names):
        held = ChainMap(frame.f_locals, frame.f_globals, frame.f_builtins) if i == 0 else {}
        children = getattr(found, "_modules", {}) if isinstance(found, torch.nn.Module) else {}
        found = held.get(name) or children.get(name) or inspect.getattr_static(found, name, None)
    made = found if isinstance(found, type | FunctionType) else type(found)
    return made.__name__ in _PASS_ON and made.__module__.partition(".")[0] in _HOMES


@functools.cache
def _manager(code: CodeType, begins: int) -> tuple[str, ...]:
    """Names and attributes by which the context manager is called that was entered last before a block
    begins; none if it is chosen among others."""
    steps = [s for s in dis.get_instructions(code) if s.offset < begins and s.opname not in _NOTHING]
    entered = [i for i, s in enumerate(steps) if s.opname == "BEFORE_WITH"]
    if not entered:
        return ()
    line, since = _line(steps[entered[-1]]), entered[-2] + 1 if len(entered) > 1 else 0
    there = [s for s in steps[since : entered[-1]] if _line(s) == line]
    there = list(itertools.dropwhile(lambda s: s.opname.startswith(("POP_TOP", "STORE")), there))
    if any("JUMP" in s.opname for s in there):
        return ()
    attributes = itertools.takewhile(lambda s: s.opname in ("LOAD_ATTR", "LOAD_METHOD"), there[1:])
    return tuple(s.argval for s in (*there[:1], *attributes) if isinstance(s.argval, str))


def _line(step: dis.Instruction) -> int | None:
    return step.positions.lineno if step.positions else None


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
