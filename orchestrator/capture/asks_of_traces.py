"""Code that asks whether it is traced: it may do something else in a job, and a trace would not show it.

A branch on ``detect_fake_mode()`` or ``hasattr(t, "fake_mode")`` goes one way in a trace and the other in
every job. What these say cannot be disguised as the class of a tensor is (:mod:`.disguise`), since PyTorch
itself asks. So a step that names them is refused.
"""

from __future__ import annotations

import dis
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from .bytecode import chains, names, said
from .errors import StateError
from .frames import PROJECT, is_installed, written_in

#: What only a trace has, and functions and modules that say whether one runs.
_OF_TRACES = frozenset(
    (
        *("fake_mode", "fake_device", "fake_tensor", "FakeTensor", "FakeTensorMode", "is_fake"),
        *("detect_fake_mode", "maybe_get_fake_mode", "unset_fake_temporarily", "in_kernel_invocation"),
        *("_get_current_dispatch_mode", "_get_current_dispatch_mode_stack", "is_in_torch_dispatch_mode"),
        *("_len_torch_dispatch_stack", "_get_dispatch_stack_at", "_get_dispatch_mode", "_dispatch_keys"),
        *("AsyncCollectiveTensor", "_are_we_tracing"),  # a trace waits at once, and has no such tensor
        *("builtins", "__builtins__", "f_builtins"),  # something else stands there for type, id and others
        "f_back",  # who has called the step is another one in a job
        *("is_in_any_mode_without_ignore_compile_internals", "_is_functional_tensor", "active_fake_mode"),
    )
)
#: Top packages that only a trace has loaded.
_OURS = frozenset((*(Path(p).stem for p in PROJECT), "z3", "cvc5", "sexpdata", "networkx", "click"))
#: Steps that say nothing of the order in which code reads.
_NOTHING = frozenset(("CACHE", "COPY", "PUSH_NULL", "PRECALL", "RESUME", "NOP"))
_OF_ONE = ("get", "setdefault")
_INSTEAD = "what a job does, without the question"


def refuse_asking(first: Iterable[FunctionType], own: Iterable[FunctionType]) -> None:
    """Raises a :class:`StateError` at a line that names what only a trace has.

    Looked at are the functions that come ``first``, and those of the user's ``own`` that the step may call:
    that are named (:func:`_names_of`) by one that it may call. Other code of the file may ask.
    """
    for code in _reached(first, own):
        asked = (names(code) | said(code)) & _OF_TRACES
        asked |= _of_processes(code)
        if asked:
            name, line = next(_lines(code, asked), (min(asked), code.co_firstlineno))
            raise StateError(
                f"{name} asks whether the step is traced: in a job it says something else",
                frame=(code.co_filename, line, code.co_name),
                instead=_INSTEAD,
            )


def _of_processes(code: CodeType) -> set[str]:
    """What code asks of the process: by which words it was begun, and what it has loaded.

    It may ask for a module that it names, or for its own (``sys.modules[__name__]``), unless it is one that
    a trace alone needs.
    """
    if not any(chain[:2] in (("sys", "modules"), ("sys", "orig_argv")) for chain in chains(code)):
        return set()
    steps = [s for s in dis.get_instructions(code) if s.opname not in _NOTHING]
    found = {
        read.argval
        for at, (holder, read) in enumerate(itertools.pairwise(steps))
        if holder.argval == "sys"
        and (read.argval == "orig_argv" or (read.argval == "modules" and not _named(steps, at)))
    }
    inner = (x for x in code.co_consts if isinstance(x, CodeType))
    return found.union(*map(_of_processes, inner))


def _named(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Is ``sys.modules``, read at this step, asked for one module by its name?"""
    key, after = steps[max(at - 1, 0)], steps[at + 2 :]
    if after[0].opname != "CONTAINS_OP":
        asked = after[0].argval in _OF_ONE or after[1].opname in ("BINARY_SUBSCR", "STORE_SUBSCR")
        if not asked:
            return False
        key = after[after[0].argval in _OF_ONE]
    if key.opname == "LOAD_CONST":
        return str(key.argval).partition(".")[0] not in _OURS
    return key.opname in ("LOAD_GLOBAL", "LOAD_NAME") and key.argval == "__name__"


def _reached(first: Iterable[FunctionType], own: Iterable[FunctionType]) -> Iterator[CodeType]:
    named = defaultdict[str, list[CodeType]](list)
    for function in own:
        for key in _names_of(function):
            named[key].append(function.__code__)
    waiting = [f.__code__ for f in first if not is_installed(written_in(f))]
    seen = set(waiting)
    while waiting:
        code = waiting.pop()
        yield code
        more = {inner for name in names(code) | said(code) for inner in named[name]} - seen
        seen |= more
        waiting += more


def _names_of(function: FunctionType) -> set[str]:
    """What code says that calls this: its name or its class's. ``__init__`` alone, as ``super()`` has it,
    is no one's in particular: such a method is called by the name of its class or of one that inherits it."""
    *_, owner, name = f".{function.__qualname__}".split(".")
    kind = function.__globals__.get(owner)
    if isinstance(kind, type) and name.startswith("__") and vars(kind).get(name) is function:
        return {owner, *(k.__name__ for k in _inheriting(kind))}
    return {owner, name}


def _inheriting(kind: type) -> Iterator[type]:
    inner: type
    for inner in type.__subclasses__(kind):
        yield inner
        yield from _inheriting(inner)


def _lines(code: CodeType, asked: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Where code names one of these."""
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = step.starts_line or line
        if isinstance(step.argval, str) and step.argval in asked:
            yield step.argval, line
        elif isinstance(step.argval, CodeType):
            yield from _lines(step.argval, asked)
