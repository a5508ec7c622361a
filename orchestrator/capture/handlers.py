"""Would anybody go on after an exception that is raised here? A trace sees no such exception, a job may.

Python keeps for each function a table of the blocks that handle exceptions, and among what a frame computes
with the way out of each ``with`` that was entered: so it is known which handler or context manager there is,
however the code has come to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from .frames import of_user

#: Exceptions that may be raised; ``None`` if any may.
Raised = tuple[type[BaseException], ...] | None

_FOLDER = __file__.rpartition("/")[0] + "/"
#: The package's files that call the user's functions: nobody above goes on with a step.
_CALLS = tuple(f"{_FOLDER}{name}.py" for name in ("tracing", "cutting", "making", "steps"))
#: Of these it is taken that their context managers handle no exception but as they say.
_TRUSTED = (_FOLDER, torch.__file__.rpartition("/")[0] + "/")
#: What may stand between an exception and the question of which class it is.
_NAMES = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF"))
_OF_A_CLAUSE = _NAMES | {"LOAD_ATTR", "BUILD_TUPLE"}
#: Where a frame of Python's says what it runs, and where that keeps what it computes with.
_FRAME, _LOCALS, _WORD = 24, 72, ctypes.sizeof(ctypes.c_void_p)
_generators: Any = contextlib._GeneratorContextManager


@dataclass(frozen=True)
class Clause:
    """``except`` with the steps that name classes, if any; does its end ``go_on``, or raise ``anew``?"""

    names: tuple[dis.Instruction, ...]
    goes_on: bool
    anew: bool


@dataclass(frozen=True)
class Block:
    """Around a place of code: clauses of a handler, or a ``with`` whose way out is kept at a depth."""

    clauses: tuple[Clause, ...] = ()
    depth: int = 0


def goes_on(frame: FrameType | None, whose: Callable[[FrameType], bool], raised: Raised = None) -> bool:
    """May code of a frame that is one of ``whose`` go on after an exception in this frame, or below it?"""
    while frame is not None and frame.f_code.co_filename not in _CALLS:
        if frame.f_code.co_exceptiontable and whose(frame):
            handled, raised = _passed(frame, raised)
            if handled:
                return True
        frame = frame.f_back
    return False


def _passed(frame: FrameType, raised: Raised) -> tuple[bool, Raised]:
    """Does a frame handle it, and what is raised further up otherwise?"""
    for block in _blocks(frame.f_code, frame.f_lasti):
        if block.depth and not (KNOWN and _passes_on(_way_out(frame, block.depth), raised)):
            return True, raised
        for clause in block.clauses:
            if _catches(_classes(frame, clause.names), raised):
                if clause.goes_on:
                    return True, raised
                raised = None if clause.anew else raised
    return False, raised


@functools.cache
def _blocks(code: CodeType, place: int) -> tuple[Block, ...]:
    """The blocks around a place, the innermost first."""
    steps = list(dis.get_instructions(code))
    table: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    found: list[Block] = []
    while (entry := _around(table, place)) is not None:
        # What a handler itself leaves by, if an exception is raised in it.
        last = _around(table, entry.target)
        until = entry.target if last is None else last.target
        inside = [step for step in steps if entry.target <= step.offset < until]
        if "WITH_EXCEPT_START" in (step.opname for step in inside[:2]):
            found.append(Block(depth=entry.depth))
        else:
            found.append(Block(tuple(_clauses(inside))))
        place = next(s.offset for s in steps if s.offset >= until and s.opname == "RERAISE")
    return tuple(found)


def _around(table: Sequence[Any], place: int) -> Any:
    return next((entry for entry in table if entry.start <= place < entry.end), None)


def _clauses(steps: Sequence[dis.Instruction]) -> Iterator[Clause]:
    """Those of a handler. A ``finally`` is one that handles everything, and raises it again."""
    rest = list(steps[1:])
    while rest:
        names = tuple(itertools.takewhile(lambda step: step.opname in _OF_A_CLAUSE, rest))
        asks = rest[len(names) : len(names) + 2]
        if [s.opname.partition("_")[0] for s in asks] != ["CHECK", "POP"] or not names:
            names, asks, until = (), [], rest[-1].offset + 1
        else:
            until = asks[1].argval
        body = [step for step in rest[len(names) + len(asks) :] if step.offset < until]
        leaves = any(step.opname == "POP_EXCEPT" for step in body)
        anew = any(step.opname == "RAISE_VARARGS" and step.arg for step in body)
        yield Clause(names, leaves, anew)
        rest = [step for step in rest if step.offset >= until]


def _classes(frame: FrameType, names: Sequence[dis.Instruction]) -> tuple[Any, ...] | None:
    """The classes that a clause names; ``None`` if it handles everything, or nobody knows what."""
    held: list[Any] = []
    try:
        for step in names:
            if step.opname in _NAMES:
                scopes = frame.f_locals, frame.f_globals, frame.f_builtins
                own = scopes[1:] if step.opname == "LOAD_GLOBAL" else scopes
                held.append(next(scope[step.argval] for scope in own if step.argval in scope))
            elif step.opname == "LOAD_ATTR":
                held.append(getattr(held.pop(), step.argval))
            else:
                held[len(held) - step.argval :] = [tuple(held[len(held) - step.argval :])]
    except (StopIteration, AttributeError):
        return None
    return _flat(held[-1]) if held else None


def _flat(classes: Any) -> tuple[Any, ...]:
    """Classes as Python takes them: tuples may be in one another."""
    return sum(map(_flat, classes), ()) if isinstance(classes, tuple) else (classes,)


def _catches(classes: tuple[Any, ...] | None, raised: Raised) -> bool:
    """May one of these be among what is raised? Nobody but the user raises what the user has defined."""
    if classes is None or raised is None:
        return True
    return any(
        not isinstance(kind, type)
        or (issubclass(kind, raised) and not of_user(kind))
        or any(issubclass(other, kind) for other in raised)
        for kind in classes
    )  # fmt: skip


def _passes_on(way_out: Any, raised: Raised) -> bool:
    """Does what leaves a ``with`` handle no such exception?"""
    manager: Any = getattr(way_out, "__self__", None)
    function: Any = getattr(way_out, "__func__", way_out)
    if function is contextlib.suppress.__exit__:
        return not _catches(_flat(manager._exceptions), raised)
    if function is contextlib.ExitStack.__exit__:
        return all(_passes_on(each, raised) for _, each in manager._exit_callbacks)
    if function is _generators.__exit__:
        waits = manager.gen.gi_frame
        return waits is None or _trusted(waits.f_code) or not _passed(waits, raised)[0]
    if isinstance(function, FunctionType):
        return _trusted(function.__code__) or _says_nothing(function.__code__)
    return not isinstance(function, functools.partial) and not of_user(type(function))


def _trusted(code: CodeType) -> bool:
    return code.co_filename.startswith(_TRUSTED)


@functools.cache
def _says_nothing(code: CodeType) -> bool:
    """Does a function return nothing but ``None`` and ``False``?"""
    steps = list(dis.get_instructions(code))
    return all(
        step.opname != "RETURN_VALUE"
        or (before.opname == "LOAD_CONST" and not before.argval and not step.is_jump_target)
        for before, step in itertools.pairwise(steps)
    )


def _way_out(frame: FrameType, depth: int) -> Any:
    """What is called at the end of a ``with``: Python keeps it among what the frame computes with."""
    return ctypes.py_object.from_address(_place(frame, depth)).value


def _place(frame: FrameType, depth: int) -> int:
    """Where the last of so many values lies that a frame computes with: behind its variables."""
    code = frame.f_code
    variables = len({*code.co_varnames, *code.co_cellvars, *code.co_freevars})
    runs = ctypes.c_void_p.from_address(id(frame) + _FRAME).value or 0
    return runs + _LOCALS + _WORD * (variables + depth - 1)


def _is_kept_so() -> bool:
    """Is that where this Python keeps it? A word is compared: nothing is taken for an object that is none."""

    def way_out(*_: object) -> None:
        return None

    manager = type("_", (), {"__enter__": lambda _: sys._getframe(1), "__exit__": staticmethod(way_out)})()
    with manager as frame:
        at = _place(frame, 1)
        return ctypes.c_void_p.from_address(at).value == id(way_out)


KNOWN = _is_kept_so()
